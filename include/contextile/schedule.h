// Schedules: batches that run as micro-batches, each by a group of ranks that fits its sequences.
// A rank holds the activations of one micro-batch at a time, which is why Megatron's dynamic
// context parallelism and ByteScale need less memory than a static group.
//
//   const std::vector<std::int64_t> lengths = {500, 90'000, 40'572};  // tokens of each document
//   const Workload batch = make_workload(lengths, AttentionShape{});
//   const Cluster cluster = load_cluster("dgx-h200:1x8");
//   const PlannedSchedule schedule = plan_schedule(batch, cluster, {"megatron_dynamic"});
//   for (const ScheduledMicroBatch* micro_batch : schedule.of(Rank{3}).front()) {
//     std::printf("%d ranks\n", micro_batch->group.size);
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "contextile/base.h"
#include "contextile/cluster.h"
#include "contextile/plan_options.h"
#include "contextile/planner.h"
#include "contextile/workload.h"

namespace contextile {

struct ScheduledMicroBatch {
  GroupBatch group;      // ranks and sequences
  std::size_t plan = 0;  // index into PlannedSchedule::plans
};

// The plan of all micro-batches with equal sequences and equal groups. Rank d of the plan is rank
// first + d of a micro-batch; its tokens are those of the micro-batch's sequences, end to end.
struct SchedulePlan {
  Cluster cluster;  // of the group alone
  PlannedBatch planned;
};

struct PlannedSchedule {
  std::string strategy;
  std::map<std::string, std::string> options;  // as used, defaults filled in
  std::int32_t num_ranks = 1;
  // Executed in order, a barrier between. A rank runs forward and backward of one micro-batch, then
  // those of the next.
  std::vector<std::vector<ScheduledMicroBatch>> rounds;
  std::vector<SchedulePlan> plans;  // all different
  double schedule_s = 0;            // time of deciding on groups
  double plan_s = 0;                // wall time of making the plans

  // Returns true if every plan verifies.
  [[nodiscard]] bool ok() const;
  [[nodiscard]] std::size_t num_micro_batches() const;
  // Returns the micro-batches of a rank, round by round. The pointers point into this object.
  // Throws InvalidArgument when there is no such rank.
  [[nodiscard]] std::vector<std::vector<const ScheduledMicroBatch*>> of(Rank rank) const&;
  void of(Rank rank) && = delete;
};

// Names the first micro-batch of a plan: "round 1, sequence 3 on ranks 4 to 5".
[[nodiscard]] std::string micro_batch_text(const PlannedSchedule& schedule, std::size_t plan);

// Names of the strategies that schedule micro-batches (Strategy::has_schedule), joined by commas.
[[nodiscard]] std::string scheduling_strategies();

// Returns why the strategy has no schedule for this batch, or nothing: it runs batches at once, the
// tokens have homes, or unsupported_reason. Throws InvalidArgument on an unknown strategy or bad
// options.
[[nodiscard]] std::optional<std::string> unscheduled_reason(const Workload& workload,
                                                            const Cluster& cluster,
                                                            const StrategyChoice& choice,
                                                            const PlanOptions& options = {});

// Schedules a batch and plans every micro-batch for its group. `attention` is the strategy inside
// the groups; unset: that of the original, a zigzag ring. The limits of the options hold for one
// micro-batch at a time. A plan that does not verify is returned, not thrown. Deterministic. Throws
// InvalidArgument as plan_batch does, and with unscheduled_reason.
//
// Sources: Megatron-LM, hybrid_cp_schedule.py and data_schedule.py; ByteScale (2025).
[[nodiscard]] PlannedSchedule plan_schedule(const Workload& workload, const Cluster& cluster,
                                            const StrategyChoice& choice,
                                            const PlanOptions& options = {},
                                            const std::optional<StrategyChoice>& attention = {});

// The same as plan_schedule, for callers with no use for plans that do not verify: throws
// CheckFailed with the micro-batch, the number of violations and the first one.
[[nodiscard]] PlannedSchedule plan_and_check_schedule(
    const Workload& workload, const Cluster& cluster, const StrategyChoice& choice,
    const PlanOptions& options = {}, const std::optional<StrategyChoice>& attention = {});

// The work of one rank, and the tokens and memory that it holds.
struct ScheduledRank {
  std::int64_t micro_batches = 0;
  std::int64_t tokens = 0;        // of all its micro-batches
  std::int64_t most_tokens = 0;   // of one micro-batch: it holds their activations at a time
  std::int64_t memory_bytes = 0;  // peak of attention, over its micro-batches
  double busy_us = 0;             // in micro-batches, waiting for peers of the group included
};

struct SchedulePrediction {
  double time_us = 0;             // of all rounds
  std::vector<double> rounds_us;  // until the last rank reaches the barrier
  double idle_share = 0;  // of the ranks' time: waiting for barriers and for groups to assemble
  std::vector<ScheduledRank> ranks;

  [[nodiscard]] std::int64_t most_tokens() const;
  [[nodiscard]] std::int64_t memory_bytes() const;  // of the rank with the most
};

// Predicts one layer of every mask, in all directions of the plans: attention as simulated on the
// group's own cluster, and linear layers of `linear_us_per_token` µs per token (layer_us). Groups
// that run at the same time are predicted as if none slowed the others down. A micro-batch begins
// when all its ranks have finished their micro-batches before it.
[[nodiscard]] SchedulePrediction predict_schedule(const PlannedSchedule& schedule,
                                                  double linear_us_per_token = 0);

}  // namespace contextile
