// Costs of a device's instructions on a cluster: durations of compute, sizes of messages.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "contextile/plan.h"
#include "contextile/simulate.h"
#include "predict/simulate/known_calls.h"
#include "predict/simulate/part_runs.h"

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
  double merge_us = 0;  // of attention: merging its results afterwards, apart from the kernel
  double host_us = 0;   // that the host needs to issue it
  std::int32_t launch_id = -1;  // of launches and waits
  bool is_wait = false;
  std::int32_t group = -1;             // set by Machine: which launch of the device
  std::vector<MessageEnd> sends = {};  // of a launch, each peer once
  std::vector<MessageEnd> receives = {};
};

struct TimedProgram {
  std::vector<TimedStep> steps;  // one for each instruction
  double flops = 0;
};

// Costs of one round and mask on the requested devices. Memory: that of the largest call's pieces,
// not of all tiles'.
class ProgramCosts {
 public:
  // `index` is of the round's mask and blocks, and must outlive the object; making it is expensive,
  // so it is shared. Has room for the calls of `num_devices` devices from `first` on, and is
  // fastest with these.
  ProgramCosts(const Plan& plan, const Cluster& cluster, std::size_t round, std::size_t mask,
               const TileIndex& index, Rank first, std::int32_t num_devices);

  [[nodiscard]] TimedProgram of(Rank rank, Direction direction);

 private:
  struct KnownRun {
    std::int64_t rows = 0;  // 0: nothing
    std::int32_t head_groups = 1;
    double computed_pairs = 0;
    CallTimes us{};
  };

  // Time of one call, without its overhead.
  [[nodiscard]] double attention_us(const std::vector<TileOp>& tiles, Direction direction);
  // Returns true if a tile is less than its two blocks.
  [[nodiscard]] bool has_cut_tile(const std::vector<TileOp>& tiles) const;
  void add_runs(const std::vector<TileOp>& tiles);
  // Time of the runs that were added.
  [[nodiscard]] CallTimes runs_us();
  void clear_runs();
  // TileCosts::run_us, from the cache if possible.
  [[nodiscard]] const CallTimes& part_run_us(std::int64_t rows, double computed_pairs,
                                             std::int32_t head_groups);
  [[nodiscard]] KnownRun new_run(std::int64_t rows, double computed_pairs,
                                 std::int32_t head_groups) const;
  // Head groups of the query block of a run.
  [[nodiscard]] std::int32_t groups_of_run(std::size_t run) const;
  void add_to_run(std::size_t run, std::int64_t rows, double computed_pairs);
  // Bytes that attention of that direction moves to merge with outputs that its slots hold.
  [[nodiscard]] double merged_bytes(const AttentionOp& attention, Direction direction);
  [[nodiscard]] TimedStep launch_step(const LaunchOp& launch);
  [[nodiscard]] std::vector<MessageEnd> message_ends(const std::vector<TransferEnd>& transfers);
  [[nodiscard]] std::int64_t transfer_bytes(const TransferEnd& transfer) const;
  [[nodiscard]] TimedStep merge_step(Kind kind, BlockId block, std::size_t sources) const;
  // Time of reading and writing that many bytes of a device's memory.
  [[nodiscard]] double memory_us(double bytes) const;
  [[nodiscard]] double accumulator_bytes(Kind kind, BlockId block) const;

  const Plan& plan_;
  const Cluster& cluster_;
  const PlanRound& round_;
  std::size_t mask_;
  TileCosts costs_;
  const TileIndex& index_;
  std::array<double, 2> flops_per_pair_{};  // of one of the round's head groups, by Direction
  KnownCalls known_calls_;                  // those with a cut tile
  // Scratch of attention_us: runs of whole blocks with their rows, and the pairs that each computes
  // (0 between calls), by q block and group; then those of parts of blocks.
  std::vector<std::pair<std::size_t, std::int64_t>> runs_;
  std::vector<double> computed_of_run_;
  PartRuns part_runs_;
  std::vector<TilePiece> pieces_;
  std::vector<KnownRun> known_runs_;       // by hash, the last one looked up
  std::vector<std::int32_t> end_of_peer_;  // scratch of message_ends, -1 between calls
  // The call, numbered by merged_bytes, that added to a slot last.
  std::vector<std::int64_t> call_of_slot_;
  std::int64_t merging_call_ = 0;
};

}  // namespace contextile
