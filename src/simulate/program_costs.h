// What a device's instructions cost on a cluster: durations of compute, sizes of messages.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "contextile/plan.h"
#include "contextile/simulate.h"

namespace contextile {

// Bytes to or from one peer in one launch.
struct MessageEnd {
  Rank peer;
  std::int64_t bytes = 0;
};

// One instruction as the simulation sees it.
struct TimedStep {
  Activity activity = Activity::kAttention;
  double duration_us = 0;
  std::int32_t launch_id = -1;  // of launches and waits
  bool is_wait = false;
  std::int32_t group = -1;             // set by Machine: which launch of the device
  std::vector<MessageEnd> sends = {};  // of a launch, a peer once
  std::vector<MessageEnd> receives = {};
};

struct TimedProgram {
  std::vector<TimedStep> steps;  // one for each instruction
  double flops = 0;
};

// Costs of one round and mask in one direction.
class ProgramCosts {
 public:
  ProgramCosts(const Plan& plan, const Cluster& cluster, std::size_t round, std::size_t mask,
               Direction direction);

  [[nodiscard]] TimedProgram of(Rank rank);

 private:
  [[nodiscard]] double tile_us(const TileOp& tile);
  [[nodiscard]] double partial_tile_us(BlockId q_block, BlockId kv_block);
  [[nodiscard]] TimedStep launch_step(const LaunchOp& launch) const;
  [[nodiscard]] TimedStep merge_step(Kind kind, BlockId block, std::size_t sources) const;
  // Of reading and writing that many bytes in a device's memory.
  [[nodiscard]] double memory_us(double bytes) const;
  [[nodiscard]] double accumulator_bytes(Kind kind, BlockId block) const;

  const Plan& plan_;
  const Cluster& cluster_;
  const PlanRound& round_;
  std::size_t mask_;
  Direction direction_;
  TileCosts costs_;
  TileIndex index_;
  double flops_per_pair_ = 0;
  std::unordered_map<std::uint64_t, double> partial_us_;  // by (q block, kv block)
  // The last full rectangle asked for: blocks mostly have one size.
  std::int64_t last_rows_ = -1;
  std::int64_t last_keys_ = -1;
  double last_us_ = 0;
  std::vector<LocalBand> bands_;
};

}  // namespace contextile
