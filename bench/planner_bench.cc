// The grid partitioner compared with general partitioners, its time-quality curve, and its scale.
//
//   planner_bench [--data FOLDER] [--seeds N] [--quick]
//
// FOLDER may hold batches/*.txt (lengths) and peer_partitions.csv (Mt-KaHyPar's results on them:
// columns batch, mask, block, use, inter_bytes, total_bytes, max_device_bytes). Without it only
// built-in datasets are run. Times are CPU time of one thread, and at scale wall time. Peers cut
// blocks every so many tokens; the library also cuts them at band edges, except in the table that
// says so. Every partition is evaluated from the assignment alone and checked against its caps
// before a number is printed.
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "attention_batches.h"
#include "contextile/data.h"
#include "contextile/extend/partition.h"
#include "contextile/workload.h"

namespace contextile {
namespace {

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

using bench::Batch;
using bench::GeometricMean;
using bench::grid_of;
using bench::kMasks;
using bench::Peer;
using bench::PeerKey;

struct Measured {
  GridQuality quality;
  double seconds = 0;
  double token_bound = 0;  // overload of the longest-first greedy, plus one block
};

Measured measure(const AttentionGrid& grid, const GridSpec& spec,
                 clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  Measured measured;
  const double start = seconds_of(clock);
  const GridPartition partition = partition_grid(grid, spec);
  measured.seconds = seconds_of(clock) - start;
  measured.quality = evaluate(grid, spec, partition);
  std::vector<std::int64_t> sizes;
  std::int64_t tokens = 0;
  for (const GridBlock& block : grid.blocks) {
    sizes.push_back(block.tokens);
    tokens += block.tokens;
  }
  const std::int32_t devices = spec.nodes * spec.devices_per_node;
  const std::int64_t cap = spec.token_cap > 0 ? spec.token_cap
                                              : longest_first_max(sizes, devices) +
                                                    *std::max_element(sizes.begin(), sizes.end());
  measured.token_bound = static_cast<double>(cap) * devices / static_cast<double>(tokens) - 1;
  if (measured.quality.token_overload > measured.token_bound + 1e-9) {
    fmt::print(stderr, "token overload {:.4f} above its bound {:.4f}\n",
               measured.quality.token_overload, measured.token_bound);
    std::exit(1);
  }
  return measured;
}

// ------------------------------------------------------------------------------------- peers

void judge(const char* what, double found, double target) {
  fmt::print(
      "  {:44} {:7.3f}  target {:5.2f}  {}\n", what, found, target,
      found <= target ? "met" : fmt::format("missed by {:.1f}%", 100 * (found / target - 1)));
}

struct Setting {
  const char* name;
  double effort;
  bool exact_tokens;
  BandCuts cuts;
  double total_target;
  double objective_target;  // 0: none
  double device_target;
  double mixed_ms_target;  // 0: none
  double single_ms_target;
};

// Rows that cost more than the peer's, and the slowest instances.
struct Worst {
  int rows = 0;
  int rows_above_peer = 0;
  double objective_ratio = 0;
  double mixed_ms = 0;
  double single_ms = 0;
};

void judge_worst(const Setting& setting, const Worst& worst) {
  if (setting.mixed_ms_target > 0) {
    judge("slowest mixed batch, ms", worst.mixed_ms, setting.mixed_ms_target);
    judge("slowest single document, ms", worst.single_ms, setting.single_ms_target);
  }
  if (worst.rows > 0) {
    fmt::print("  rows whose 3·inter + total exceeds the peer's: {} of {}, largest ratio {:.3f}\n",
               worst.rows_above_peer, worst.rows, worst.objective_ratio);
  }
}

GridSpec spec_for(const AttentionGrid& grid, const Setting& setting, std::uint64_t seed) {
  GridSpec spec;
  spec.nodes = 4;
  spec.devices_per_node = 8;
  spec.effort = setting.effort;
  spec.seed = seed;
  if (setting.exact_tokens) {
    std::vector<std::int64_t> sizes;
    for (const GridBlock& block : grid.blocks) sizes.push_back(block.tokens);
    spec.token_cap = longest_first_max(sizes, spec.nodes * spec.devices_per_node);
  }
  return spec;
}

void against_peers(const std::vector<Batch>& batches, const std::map<PeerKey, Peer>& peers,
                   const Setting& setting, std::int64_t block, std::uint64_t seeds) {
  fmt::print("\n{} setting (effort {}), block {}{}, {} seed(s); MB = 1e6 bytes\n", setting.name,
             setting.effort, block,
             setting.cuts == BandCuts::kEdges ? " and band edges" : ", as the peer cuts", seeds);
  fmt::print(
      "  {:10} {:10} {:>6} {:>8} {:>8} {:>8} {:>7} {:>7} {:>7} | ratio to the peer: total, "
      "3·inter+total,"
      " worst device\n",
      "batch", "mask", "tiles", "inter", "total", "worst", "work", "tokens", "ms");
  GeometricMean total(bench::kLeastRatio), objective(bench::kLeastRatio),
      device(bench::kLeastRatio);
  Worst worst;
  for (const Batch& batch : batches) {
    for (const auto& [name, mask] : kMasks) {
      const AttentionGrid grid = grid_of(batch.lengths, mask, block, 2, setting.cuts);
      for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
        const Measured m = measure(grid, spec_for(grid, setting, seed));
        const GridQuality& q = m.quality;
        double& slowest_ms = batch.lengths.size() == 1 ? worst.single_ms : worst.mixed_ms;
        slowest_ms = std::max(slowest_ms, m.seconds * 1e3);
        fmt::print("  {:10} {:10} {:6} {:8.1f} {:8.1f} {:8.1f} {:7.3f} {:7.3f} {:7.1f}", batch.name,
                   name, grid.tiles.size(), static_cast<double>(q.inter_bytes) / 1e6,
                   static_cast<double>(q.total_bytes) / 1e6,
                   static_cast<double>(q.max_device_bytes) / 1e6, q.compute_overload,
                   q.token_overload, m.seconds * 1e3);
        const auto peer = peers.find({batch.name, name, block});
        if (peer != peers.end()) {
          const auto ours = static_cast<double>(3 * q.inter_bytes + q.total_bytes);
          const double r_total = static_cast<double>(q.total_bytes) / peer->second.total_bytes;
          const double r_objective =
              ours / (3 * peer->second.inter_bytes + peer->second.total_bytes);
          const double r_device =
              static_cast<double>(q.max_device_bytes) / peer->second.max_device_bytes;
          total.add(r_total);
          objective.add(r_objective);
          device.add(r_device);
          ++worst.rows;
          if (r_objective > 1) ++worst.rows_above_peer;
          worst.objective_ratio = std::max(worst.objective_ratio, r_objective);
          fmt::print(" | {:.3f} {:.3f} {:.3f}", r_total, r_objective, r_device);
        }
        fmt::print("\n");
      }
    }
  }
  if (total.value() > 0) {
    judge("total bytes, geometric mean", total.value(), setting.total_target);
    if (setting.objective_target > 0) {
      judge("3·inter + total", objective.value(), setting.objective_target);
      judge("worst device (relays)", device.value(), setting.device_target);
    }
  }
  judge_worst(setting, worst);
}

void time_quality_curve(const std::vector<Batch>& batches) {
  fmt::print("\ntime-quality curve, block 1024, all batches and masks\n  {:>7} {:>10} {:>14}\n",
             "effort", "mean ms", "total bytes*");
  std::vector<double> first;
  for (const double effort : {0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0}) {
    GeometricMean ratio(bench::kLeastRatio);
    double seconds = 0;
    std::size_t i = 0;
    for (const Batch& batch : batches) {
      for (const auto& [name, mask] : kMasks) {
        const AttentionGrid grid = grid_of(batch.lengths, mask, 1024, 2);
        GridSpec spec;
        spec.nodes = 4;
        spec.devices_per_node = 8;
        spec.effort = effort;
        const Measured m = measure(grid, spec);
        seconds += m.seconds;
        if (effort == 0.03) first.push_back(static_cast<double>(m.quality.total_bytes));
        ratio.add(static_cast<double>(m.quality.total_bytes) / std::max(1.0, first[i++]));
      }
    }
    fmt::print("  {:7} {:10.1f} {:14.3f}\n", effort, 1e3 * seconds / static_cast<double>(i),
               ratio.value());
  }
  fmt::print("  * relative to the first row\n");
}

void scale(bool quick) {
  fmt::print(
      "\nscale, head groups 1, effort 1, wall clock on all cores\n  {:28} {:>8} {:>8} {:>9} {:>10} "
      "{:>7} {:>7}\n",
      "batch", "devices", "tiles", "seconds", "tiles/s", "work", "tokens");
  const auto run = [](const std::string& name, const std::vector<std::int64_t>& lengths,
                      std::int64_t block, std::int32_t nodes, double target_s) {
    const AttentionGrid grid = grid_of(lengths, "causal", block, 1);
    GridSpec spec;
    spec.nodes = nodes;
    spec.devices_per_node = 8;
    const Measured m = measure(grid, spec, CLOCK_MONOTONIC);
    fmt::print("  {:28} {:8} {:8} {:9.2f} {:10.0f} {:7.3f} {:7.3f}  target {} s: {}\n", name,
               nodes * 8, grid.tiles.size(), m.seconds,
               static_cast<double>(grid.tiles.size()) / m.seconds, m.quality.compute_overload,
               m.quality.token_overload, target_s, m.seconds <= target_s ? "met" : "missed");
  };
  constexpr std::int64_t kMillion = std::int64_t{1} << 20;
  run("1M, one causal document", {kMillion}, 2048, 64, 1);
  for (const Dataset& dataset : datasets()) {
    run(fmt::format("1M, {}", dataset.name),
        batches_from_dataset(dataset.name, {.tokens = kMillion, .seed = 1}).front(), 2048, 64, 1);
  }
  if (!quick) run("16M, one causal document", {16 * kMillion}, 8192, 512, 20);
}

int run(const std::vector<std::string>& args) {
  std::filesystem::path data;
  std::uint64_t seeds = 1;
  bool quick = false;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--data" && i + 1 < args.size()) {
      data = args[++i];
    } else if (args[i] == "--seeds" && i + 1 < args.size()) {
      seeds = std::stoull(args[++i]);
    } else if (args[i] == "--quick") {
      quick = true;
    } else {
      fmt::print(stderr,
                 "planner_bench: expected --data FOLDER, --seeds N or --quick, found '{}'\n",
                 args[i]);
      return 2;
    }
  }
  const std::vector<Batch> batches = bench::load_batches(data);
  const std::map<PeerKey, Peer> peers = bench::read_peers(data / "peer_partitions.csv");
  const Setting fast{"fast", 0.65, false, BandCuts::kEdges, 0.75, 0.63, 0.60, 20, 35};
  const Setting thorough{"thorough", 5, false, BandCuts::kEdges, 0.65, 0.52, 0.53, 200, 200};
  const Setting exact{"exact token balance", 1, true, BandCuts::kEdges, 0.90, 0, 0, 0, 0};
  Setting peers_cut = fast;
  peers_cut.effort = 1;
  peers_cut.cuts = BandCuts::kNone;
  for (const std::int64_t block : {512, 1024, 2048}) {
    if (quick && block != 1024) continue;
    against_peers(batches, peers, fast, block, seeds);
  }
  against_peers(batches, peers, peers_cut, 1024, seeds);
  if (!quick) against_peers(batches, peers, thorough, 1024, seeds);
  against_peers(batches, peers, exact, 1024, seeds);
  time_quality_curve(batches);
  scale(quick);
  return 0;
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) {
  return contextile::run(std::vector<std::string>(argv + 1, argv + argc));
}
