// Exact edge colouring: edges per second; and how evenly fcp spreads work and KV traffic.
//
//   schedule_bench [--quick]
//
// One thread; times are thread CPU time. Every colouring is checked (proper, exactly Δ colours) and
// every plan verified before a number is printed. Imbalance is (max - mean) / max over devices, on
// the setting of the FCP paper's Fig. 9: Llama-70B's heads (64 query, 8 KV, dimension 128),
// lognormal lengths to 512K, 32K tokens per device, causal. "one block" is the imbalance that the
// costliest block forces on any plan that does not split blocks.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "contextile/data.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "contextile/verify.h"
#include "strategy/schedule/coloring.h"

namespace contextile {
namespace {

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// ---------------------------------------------------------------------------------- colouring

// Edges of a random multigraph; with `hot_share` of them at a tenth of the vertices.
std::vector<BipartiteEdge> random_edges(std::int64_t count, std::int32_t vertices,
                                        double hot_share) {
  Rng rng(static_cast<std::uint64_t>(count + vertices));
  const auto end = [&] {
    const std::int32_t limit = rng.uniform() < hot_share ? (vertices + 9) / 10 : vertices;
    return static_cast<std::int32_t>(rng.next() % static_cast<std::uint64_t>(limit));
  };
  std::vector<BipartiteEdge> edges(static_cast<std::size_t>(count));
  for (BipartiteEdge& edge : edges) {
    edge.left = end();
    edge.right = end();
  }
  return edges;
}

bool is_exact(std::span<const BipartiteEdge> edges, std::int32_t vertices,
              const EdgeColoring& coloring) {
  const auto ends = static_cast<std::size_t>(vertices);
  for (std::int32_t BipartiteEdge::*end : {&BipartiteEdge::left, &BipartiteEdge::right}) {
    std::vector<std::vector<std::int32_t>> at_vertex(ends);
    for (std::size_t e = 0; e < edges.size(); ++e) {
      const std::int32_t color = coloring.colors[e];
      if (color < 0 || color >= coloring.num_colors) return false;
      at_vertex[static_cast<std::size_t>(edges[e].*end)].push_back(color);
    }
    for (std::vector<std::int32_t>& colors : at_vertex) {
      std::sort(colors.begin(), colors.end());
      if (std::adjacent_find(colors.begin(), colors.end()) != colors.end()) return false;
    }
  }
  std::vector<std::int32_t> left(ends);
  std::vector<std::int32_t> right(ends);
  for (const BipartiteEdge& edge : edges) {
    ++left[static_cast<std::size_t>(edge.left)];
    ++right[static_cast<std::size_t>(edge.right)];
  }
  return coloring.num_colors == std::max(*std::max_element(left.begin(), left.end()),
                                         *std::max_element(right.begin(), right.end()));
}

void bench_coloring(std::int64_t most_edges) {
  fmt::print("exact colouring of random bipartite multigraphs\n");
  fmt::print("{:>9} {:>10} {:>5} {:>9} {:>10} {:>12}\n", "edges", "vertices", "hot", "colours",
             "ms", "edges/s");
  for (std::int64_t count = 10'000; count <= most_edges; count *= 10) {
    for (const std::int32_t vertices : {64, 512, 4096}) {
      for (const double hot_share : {0.0, 0.5}) {
        const std::vector<BipartiteEdge> edges = random_edges(count, vertices, hot_share);
        const double start = thread_seconds();
        const EdgeColoring coloring = color_edges(edges, vertices, vertices);
        const double seconds = thread_seconds() - start;
        if (!is_exact(edges, vertices, coloring)) {
          fmt::print(stderr, "{} edges, {} vertices: not an exact colouring\n", count, vertices);
          std::exit(1);
        }
        fmt::print("{:>9} {:>6}x{:<5} {:>3.0f}% {:>9} {:>10.2f} {:>12.2e}\n", count, vertices,
                   vertices, 100 * hot_share, coloring.num_colors, 1e3 * seconds,
                   static_cast<double>(count) / seconds);
      }
    }
  }
}

// ---------------------------------------------------------------------------------- imbalance

struct Imbalance {
  double compute = 0;
  double one_block = 0;
  double received = 0;
  double sent = 0;
};
constexpr double Imbalance::*kColumns[] = {&Imbalance::compute, &Imbalance::one_block,
                                           &Imbalance::received, &Imbalance::sent};

double imbalance(const std::vector<DeviceStats>& devices, std::int64_t DeviceStats::*field) {
  double most = 0;
  double total = 0;
  for (const DeviceStats& device : devices) {
    most = std::max(most, static_cast<double>(device.*field));
    total += static_cast<double>(device.*field);
  }
  return most > 0 ? 1 - total / static_cast<double>(devices.size()) / most : 0;
}

double forced_by_one_block(const Arrangement& arrangement, std::int32_t num_devices) {
  const ArrangedRound& round = arrangement.rounds.front();
  std::vector<std::int64_t> pairs(static_cast<std::size_t>(round.blocks.num_blocks()));
  double total = 0;
  for (const PlacedTile& tile : round.programs.front().forward->tiles) {
    pairs[tile.q_block.index()] += tile.pairs;
    total += static_cast<double>(tile.pairs);
  }
  const auto most = static_cast<double>(*std::max_element(pairs.begin(), pairs.end()));
  return std::max(0.0, 1 - total / num_devices / most);
}

Imbalance measure(const Strategy& strategy, const Workload& workload, const Cluster& cluster,
                  std::int64_t block_size) {
  StrategyRequest request;
  request.max_roundings = kAnyRoundings;  // as the originals
  request.block_size = block_size;
  const Arrangement arrangement = strategy.arrange(workload, cluster, request);
  const Plan plan = build_plan(workload, cluster, arrangement);
  const VerifyReport report = verify(plan);
  if (!report.ok()) {
    fmt::print(stderr, "{}: {}\n", strategy.name(), report.violations.front());
    std::exit(1);
  }
  const DirectionStats forward = *statistics(plan).forward;
  return {forward.compute_imbalance, forced_by_one_block(arrangement, cluster.num_devices()),
          imbalance(forward.devices, &DeviceStats::received_bytes),
          imbalance(forward.devices, &DeviceStats::sent_bytes)};
}

void bench_imbalance(std::int32_t most_devices, std::int64_t batches) {
  fmt::print("\nimbalance of one forward on lognormal512k, mean of {} batches (largest)\n",
             batches);
  fmt::print("the paper, on its own lengths: FCP under 5% in compute and communication,\n");
  fmt::print("MagiAttention up to 17% in communication\n");
  fmt::print("{:>7} {:>5} {:>6} {:>17} {:>17} {:>17} {:>17}\n", "devices", "plan", "block",
             "compute", "one block", "received", "sent");
  AttentionShape shape;
  shape.q_heads = 64;
  shape.kv_heads = 8;
  struct Case {
    std::string_view strategy;
    std::int64_t block_size;
  };
  for (std::int32_t devices = 16; devices <= most_devices; devices *= 2) {
    Cluster cluster;
    cluster.nodes = devices / cluster.devices_per_node;
    BatchOptions options;
    options.tokens = std::int64_t{devices} * 32768;
    options.batches = batches;
    const auto lengths = batches_from_dataset("lognormal512k", options);
    for (const Case& one : {Case{"fcp", 4096}, Case{"fcp", 1024}, Case{"magi", 512}}) {
      Imbalance mean;
      Imbalance most;
      for (const std::vector<std::int64_t>& batch : lengths) {
        const Workload workload = make_workload(batch, shape, std::vector<MaskUse>(1));
        const Imbalance measured =
            measure(find_strategy(one.strategy), workload, cluster, one.block_size);
        for (double Imbalance::*column : kColumns) {
          mean.*column += measured.*column / static_cast<double>(batches);
          most.*column = std::max(most.*column, measured.*column);
        }
      }
      fmt::print("{:>7} {:>5} {:>6}", devices, one.strategy, one.block_size);
      for (double Imbalance::*column : kColumns) {
        fmt::print(" {:>7.1f}% ({:>5.1f}%)", 100 * mean.*column, 100 * most.*column);
      }
      fmt::print("\n");
    }
  }
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  contextile::bench_coloring(quick ? 100'000 : 1'000'000);
  contextile::bench_imbalance(quick ? 32 : 128, quick ? 2 : 8);
  return 0;
}
