#include "strategy/magi/overlap_degree.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <vector>

namespace contextile {
namespace {

// One stage of one rank.
struct StageCost {
  std::map<BlockId, std::int64_t> pairs;    // of every query block: one run of its rows
  std::map<std::int32_t, double> moved_us;  // of what the stage needs, by launch stage
};

// The stages of every rank, as one direction has them.
class StageTimes {
 public:
  StageTimes(const ArrangedRound& round, const Workload& workload, const Cluster& cluster)
      : round_(round), workload_(workload), cluster_(cluster), shares_(cluster.attention) {}

  [[nodiscard]] double slowest_us(const ArrangedDirection& direction) {
    std::vector<std::map<std::int32_t, StageCost>> ranks(
        static_cast<std::size_t>(cluster_.num_devices()));
    for (const PlacedTile& tile : direction.tiles) {
      ranks[tile.device.index()][tile.stage].pairs[tile.q_block] += tile.pairs;
    }
    for (const Transfer& t : direction.transfers) {
      ranks[t.dst.index()][t.need_stage].moved_us[t.launch_stage] += transfer_us(t);
    }
    double slowest_us = 0;
    for (const auto& stages : ranks) slowest_us = std::max(slowest_us, end_us(stages));
    return slowest_us;
  }

 private:
  [[nodiscard]] double transfer_us(const Transfer& t) const {
    constexpr double kBytesPerUsAtOneGbyte = 1e3;
    const bool is_local =
        t.src.value / cluster_.devices_per_node == t.dst.value / cluster_.devices_per_node;
    const double gbytes_per_s =
        is_local ? cluster_.intra_gbytes_per_s
                 : std::min(cluster_.intra_gbytes_per_s,
                            cluster_.inter_gbytes_per_s_per_node / cluster_.devices_per_node);
    const std::int64_t bytes = unit_bytes(t.kind, round_.blocks.num_tokens(t.block),
                                          workload_.shape, 1, workload_.shape.dtype);
    return static_cast<double>(bytes) / (gbytes_per_s * kBytesPerUsAtOneGbyte);
  }

  [[nodiscard]] double compute_us(const StageCost& stage) const {
    if (stage.pairs.empty()) return 0;
    double us = cluster_.attention.call_us;
    for (const auto& [block, pairs] : stage.pairs) {
      const auto rows = static_cast<double>(round_.blocks.num_tokens(block));
      const double flops = forward_flops(pairs, workload_.shape.q_heads, workload_.shape);
      const double share = shares_.forward(rows, static_cast<double>(pairs) / rows);
      us += flops / (1e6 * cluster_.attention_tflops * share);
    }
    return us;
  }

  [[nodiscard]] double end_us(const std::map<std::int32_t, StageCost>& stages) const {
    const double latency_us = cluster_.launch_us + (cluster_.nodes > 1 ? cluster_.inter_latency_us
                                                                       : cluster_.intra_latency_us);
    std::map<std::int32_t, double> begin_us;  // of stages so far
    double port_free_us = 0;
    double done_us = 0;
    for (const auto& [number, stage] : stages) {
      for (const auto& [launch, moved_us] : stage.moved_us) {
        // A stage without work begins when the one before it does.
        const auto after = begin_us.upper_bound(launch);
        const double launched_us = after == begin_us.begin() ? 0 : std::prev(after)->second;
        port_free_us = std::max(port_free_us, launched_us + latency_us) + moved_us;
      }
      const double ready_us = stage.moved_us.empty() ? 0 : port_free_us;
      begin_us[number] = std::max(done_us, ready_us);
      done_us = begin_us[number] + compute_us(stage);
    }
    return done_us;
  }

  const ArrangedRound& round_;
  const Workload& workload_;
  const Cluster& cluster_;
  AttentionShares shares_;
};

}  // namespace

double overlapped_us(const ArrangedRound& round, const Workload& workload, const Cluster& cluster) {
  StageTimes times(round, workload, cluster);
  double us = 0;
  for (std::size_t m = 0; m < round.programs.size(); ++m) {
    us += times.slowest_us(*round.programs[m].forward) *
          static_cast<double>(workload.masks[m].layers);
  }
  return us;
}

}  // namespace contextile
