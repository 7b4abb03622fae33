// The general hypergraph engine on attention: quality, balance and time, compared with other
// partitioners.
//
//   partition_bench [--data FOLDER] [--seeds N] [--effort X] [--quick] [--scale] [--export FOLDER]
//
// Every batch, mask and block size is a hypergraph as DCP has it: a vertex for each token block
// (its bytes) and each tile (its work), a net for each Q and O, which have the same pins, and each
// KV unit. It is split over nodes, then every node's share over its devices. FOLDER may hold
// batches/*.txt and peer_partitions.csv (planner_bench describes them). --export writes the
// hypergraphs as .hgr files and does nothing else. One thread; times are thread CPU time. Every
// number is recomputed from the assignment alone, twice: as a hypergraph and as a grid of tiles.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "attention_batches.h"
#include "contextile/extend/hypergraph.h"
#include "contextile/extend/partition.h"
#include "strategy/dcp_hypergraph.h"

namespace contextile {
namespace {

using bench::Batch;
using bench::GeometricMean;
using bench::kMasks;
using bench::thread_seconds;

constexpr std::int32_t kNodes = 4;
constexpr std::int32_t kDevicesPerNode = 8;
constexpr std::int32_t kDevices = kNodes * kDevicesPerNode;
constexpr double kEpsNode = 0.04;   // of a node's work above the mean
constexpr double kEpsDevice = 0.1;  // of a device's

[[noreturn]] void fail(const std::string& message) {
  fmt::print(stderr, "partition_bench: {}\n", message);
  std::exit(1);
}

HyperWeight total_weight(const Hypergraph& graph) {
  HyperWeight total;
  for (const HyperWeight& weight : graph.vertex_weights) {
    total.compute += weight.compute;
    total.data += weight.data;
  }
  return total;
}

std::int64_t scaled(double factor, std::int64_t weight) {
  return static_cast<std::int64_t>(factor * static_cast<double>(weight));
}

struct Measured {
  std::int64_t inter_bytes = 0;
  std::int64_t total_bytes = 0;
  double compute_overload = 0;
  double data_overload = 0;
  double seconds = 0;
};

// As balanced in data as longest-first makes it, plus a block.
std::int64_t device_data_cap(const Hypergraph& graph, std::size_t num_blocks) {
  std::vector<std::int64_t> sizes;
  for (const VertexId b : IdRange<VertexId>(static_cast<std::int32_t>(num_blocks))) {
    sizes.push_back(graph.vertex_weights[b].data);
  }
  return longest_first_max(sizes, kDevices) + *std::max_element(sizes.begin(), sizes.end());
}

HypergraphPartition nodes_then_devices(const Hypergraph& graph, std::int64_t data_cap,
                                       double effort, std::uint64_t seed) {
  const HyperWeight total = total_weight(graph);
  std::int64_t heaviest = 0;
  for (const HyperWeight& weight : graph.vertex_weights) heaviest = std::max(heaviest, weight.data);
  HypergraphSpec spec;
  spec.num_parts = kNodes;
  spec.capacities.assign(IdRange<PartId>(kNodes), {scaled((1 + kEpsNode) / kNodes, total.compute),
                                                   total.data / kNodes + heaviest});
  spec.effort = effort;
  spec.max_threads = 1;
  spec.seed = seed;
  const IdVector<VertexId, PartId> node_of = partition_hypergraph(graph, spec).part;
  HypergraphPartition devices{IdVector<VertexId, PartId>(graph.vertices())};
  spec.num_parts = kDevicesPerNode;
  spec.capacities.assign(IdRange<PartId>(kDevicesPerNode),
                         {scaled((1 + kEpsDevice) / kDevices, total.compute), data_cap});
  for (const PartId node : IdRange<PartId>(kNodes)) {
    const HypergraphShare share = share_of(graph, node_of, node);
    const HypergraphPartition inside = partition_hypergraph(share.graph, spec);
    for (const VertexId i : share.vertices.ids()) {
      devices.part[share.vertices[i]] = PartId{node.value * kDevicesPerNode + inside.part[i].value};
    }
  }
  return devices;
}

// Computed from the assignment alone; the grid's own evaluation must agree.
Measured judged(const Hypergraph& graph, const AttentionGrid& grid, std::int64_t data_cap,
                const HypergraphPartition& devices) {
  HypergraphPartition nodes = devices;
  for (PartId& part : nodes.part) part.value /= kDevicesPerNode;
  Measured measured;
  measured.inter_bytes = connectivity(graph, kNodes, nodes);
  measured.total_bytes = connectivity(graph, kDevices, devices);
  GridPartition placed;
  for (const PartId part : devices.part) {
    const Rank device{part.value};
    if (placed.owner.size() < grid.blocks.size()) {
      placed.owner.push_back(device);
    } else {
      placed.device.push_back(device);
    }
  }
  const GridQuality quality =
      evaluate(grid, {.nodes = kNodes, .devices_per_node = kDevicesPerNode}, placed);
  if (quality.total_bytes != measured.total_bytes || quality.inter_bytes != measured.inter_bytes) {
    fail(fmt::format("hypergraph {} / {} bytes, grid {} / {}", measured.inter_bytes,
                     measured.total_bytes, quality.inter_bytes, quality.total_bytes));
  }
  measured.compute_overload = quality.compute_overload;
  measured.data_overload = quality.token_overload;
  const double data_bound =
      static_cast<double>(data_cap) * kDevices / static_cast<double>(total_weight(graph).data) - 1;
  if (measured.data_overload > data_bound + 1e-9) {
    fail(fmt::format("data overload {:.4f} above its bound {:.4f}", measured.data_overload,
                     data_bound));
  }
  return measured;
}

void against_peers(const std::vector<Batch>& batches,
                   const std::map<bench::PeerKey, bench::Peer>& peers, std::int64_t block,
                   std::uint64_t seeds, double effort) {
  fmt::print("\nblock {}, {} x {} devices, effort {}, {} seed(s); MB = 1e6 bytes\n", block, kNodes,
             kDevicesPerNode, effort, seeds);
  fmt::print(
      "  {:10} {:10} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} | ratio to the peer: total, "
      "3·inter+total, time\n",
      "batch", "mask", "vertices", "inter", "total", "work", "tokens", "s");
  GeometricMean total(bench::kLeastRatio), objective(bench::kLeastRatio), time(bench::kLeastRatio);
  for (const Batch& batch : batches) {
    for (const auto& [name, mask] : kMasks) {
      const AttentionGrid grid = bench::grid_of(batch.lengths, mask, block, 2);
      const Hypergraph graph = hypergraph_of(grid);
      const std::int64_t data_cap = device_data_cap(graph, grid.blocks.size());
      for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        const double start = thread_seconds();
        const HypergraphPartition devices = nodes_then_devices(graph, data_cap, effort, seed);
        const double seconds = thread_seconds() - start;
        const Measured m = judged(graph, grid, data_cap, devices);
        fmt::print("  {:10} {:10} {:8} {:8.1f} {:8.1f} {:7.3f} {:7.3f} {:7.2f}", batch.name, name,
                   graph.num_vertices(), static_cast<double>(m.inter_bytes) / 1e6,
                   static_cast<double>(m.total_bytes) / 1e6, m.compute_overload, m.data_overload,
                   seconds);
        const auto peer = peers.find({batch.name, name, block});
        if (peer != peers.end()) {
          const double r_total = static_cast<double>(m.total_bytes) / peer->second.total_bytes;
          const double r_objective = static_cast<double>(3 * m.inter_bytes + m.total_bytes) /
                                     (3 * peer->second.inter_bytes + peer->second.total_bytes);
          const double r_time = seconds / peer->second.seconds;
          total.add(r_total);
          objective.add(r_objective);
          time.add(r_time);
          fmt::print(" | {:.3f} {:.3f} {:.2f}", r_total, r_objective, r_time);
        }
        fmt::print("\n");
      }
    }
  }
  if (total.value() > 0) {
    fmt::print(
        "  geometric means: total {:.3f}, 3·inter+total {:.3f}, time {:.2f} (on this machine; "
        "the peer's was measured on another)\n",
        total.value(), objective.value(), time.value());
  }
}

// Many parts and vertices, where memory and time per vertex matter.
void scale() {
  fmt::print(
      "\nscale, flat, causal, one head group\n  {:24} {:>8} {:>9} {:>7} {:>9} {:>9} {:>8} {:>8}\n",
      "tokens, block", "vertices", "pins", "parts", "MB", "work", "data", "s");
  // Few blocks per part: two must fit where one and a quarter would be even.
  constexpr double kEpsData = 1;
  const auto run = [](std::int64_t tokens, std::int64_t block, std::int32_t parts) {
    const AttentionGrid grid = bench::grid_of({tokens}, "causal", block, 1);
    const Hypergraph graph = hypergraph_of(grid);
    const HypergraphSpec spec = {
        .num_parts = parts, .eps_compute = kEpsDevice, .eps_data = kEpsData, .max_threads = 1};
    const double start = thread_seconds();
    const HypergraphPartition partition = partition_hypergraph(graph, spec);
    const double seconds = thread_seconds() - start;
    const HypergraphQuality quality = evaluate_hypergraph(graph, spec, partition);
    if (!quality.feasible) fail(fmt::format("{} parts: above a capacity", parts));
    fmt::print("  {:24} {:8} {:9} {:7} {:9.1f} {:9.3f} {:8.3f} {:8.1f}\n",
               fmt::format("{}, {}", tokens, block), graph.num_vertices(), graph.pins.size(), parts,
               static_cast<double>(quality.connectivity) / 1e6, quality.compute_overload,
               quality.data_overload, seconds);
  };
  run(131072, 1024, 32);
  run(131072, 1024, 128);
  run(131072, 512, 128);
  run(655360, 1024, 512);
  run(655360, 1024, 4096);
}

void export_all(const std::vector<Batch>& batches, const std::filesystem::path& folder) {
  std::filesystem::create_directories(folder);
  for (const Batch& batch : batches) {
    for (const auto& [name, mask] : kMasks) {
      for (const std::int64_t block : {512, 1024, 2048}) {
        const std::string file = folder / fmt::format("{}_{}_{}.hgr", batch.name, name, block);
        write_hgr(hypergraph_of(bench::grid_of(batch.lengths, mask, block, 2)), file);
        fmt::print("{}\n", file);
      }
    }
  }
}

int run(const std::vector<std::string>& args) {
  std::filesystem::path data;
  std::filesystem::path export_folder;
  std::uint64_t seeds = 1;
  double effort = 1;
  bool quick = false;
  bool only_scale = false;
  for (std::size_t i = 0; i < args.size(); ++i) {
    const bool has_value = i + 1 < args.size();
    if (args[i] == "--data" && has_value) {
      data = args[++i];
    } else if (args[i] == "--export" && has_value) {
      export_folder = args[++i];
    } else if (args[i] == "--seeds" && has_value) {
      seeds = std::stoull(args[++i]);
    } else if (args[i] == "--effort" && has_value) {
      effort = std::stod(args[++i]);
    } else if (args[i] == "--quick") {
      quick = true;
    } else if (args[i] == "--scale") {
      only_scale = true;
    } else {
      fmt::print(
          stderr,
          "partition_bench: expected --data FOLDER, --seeds N, --effort X, --quick, --scale or "
          "--export FOLDER, found '{}'\n",
          args[i]);
      return 2;
    }
  }
  const std::vector<Batch> batches = bench::load_batches(data);
  if (!export_folder.empty()) {
    export_all(batches, export_folder);
    return 0;
  }
  if (only_scale) {
    scale();
    return 0;
  }
  const auto peers = bench::read_peers(data / "peer_partitions.csv");
  for (const std::int64_t block : {512, 1024, 2048}) {
    if (!quick || block == 1024) against_peers(batches, peers, block, seeds, effort);
  }
  if (!quick) scale();
  return 0;
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  return contextile::run(std::vector<std::string>(argv + 1, argv + argc));
}
