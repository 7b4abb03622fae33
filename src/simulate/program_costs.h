// What a device's instructions cost on a cluster: durations of compute, sizes of messages.
#pragma once

#include <array>
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

// Costs of one round and mask. Both directions meet the same tiles: their pieces are found once.
class ProgramCosts {
 public:
  ProgramCosts(const Plan& plan, const Cluster& cluster, std::size_t round, std::size_t mask);

  [[nodiscard]] TimedProgram of(Rank rank, Direction direction);

 private:
  using TileTimes = std::array<double, 2>;  // µs, by Direction

  [[nodiscard]] const TileTimes& tile_us(const TileOp& tile);
  [[nodiscard]] TileTimes partial_tile_us(BlockId q_block, BlockId kv_block);
  void add_piece(std::int64_t rows, std::int64_t keys, std::int64_t pairs, TileTimes& times) const;
  [[nodiscard]] TimedStep launch_step(const LaunchOp& launch);
  [[nodiscard]] std::vector<MessageEnd> message_ends(const std::vector<TransferEnd>& transfers);
  [[nodiscard]] std::int64_t transfer_bytes(const TransferEnd& transfer) const;
  [[nodiscard]] TimedStep merge_step(Kind kind, BlockId block, std::size_t sources) const;
  // Of reading and writing that many bytes in a device's memory.
  [[nodiscard]] double memory_us(double bytes) const;
  [[nodiscard]] double accumulator_bytes(Kind kind, BlockId block) const;

  const Plan& plan_;
  const Cluster& cluster_;
  const PlanRound& round_;
  std::size_t mask_;
  std::array<bool, 2> has_direction_{};  // by Direction
  TileCosts costs_;
  TileIndex index_;
  std::array<double, 2> flops_per_pair_{};                   // by Direction
  std::unordered_map<std::uint64_t, TileTimes> partial_us_;  // by (q block, kv block)
  // The last full rectangle asked for: blocks mostly have one size.
  std::int64_t last_rows_ = -1;
  std::int64_t last_keys_ = -1;
  TileTimes last_us_{};
  std::vector<LocalBand> bands_;
  std::vector<std::int32_t> end_of_peer_;  // scratch of message_ends, -1 between calls
};

}  // namespace contextile
