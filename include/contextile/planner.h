// Plans a batch: from lengths to a verified plan in one call, and strategies side by side.
//
//   #include "contextile/planner.h"
//
//   using namespace contextile;
//   const std::vector<std::int64_t> lengths = {500, 90'000, 40'572};  // tokens of each document
//   const Workload batch = make_workload(lengths, AttentionShape{}, parse_mask_use("causal"));
//   const Cluster cluster = load_cluster("dgx-h200:4x8");
//   const PlannedBatch planned = plan_batch(batch, cluster, {"auto"});
//   if (!planned.verified.ok()) return 1;  // planned.verified.violations says why
//   save_plan(*planned.plan, "batch.plan");
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"
#include "contextile/bounds.h"
#include "contextile/cluster.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/plan_options.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"
#include "contextile/workload.h"

namespace contextile {

class Strategy;      // extend/strategy.h
struct Arrangement;  // extend/arrangement.h

// ---------------------------------------------------------------------------------------- registry
//
// The available strategies, and how a caller names one with its options.

// All strategies, in the order in which tables list them. Their class is in extend/strategy.h.
[[nodiscard]] std::span<const Strategy* const> strategies();
// Finds a strategy by name. Throws InvalidArgument with the list of names and a "did you mean".
[[nodiscard]] const Strategy& find_strategy(std::string_view name);

// Parses "name:key=value,key=value,other,…". An item without '=' starts the next strategy; values
// may hold colons; "all" stands for every strategy. Names and keys are checked when used.
[[nodiscard]] std::vector<StrategyChoice> parse_strategies(std::string_view text);
// Returns "name" or "name:key=value,…", as given.
[[nodiscard]] std::string choice_text(const StrategyChoice& choice);

// ----------------------------------------------------------------------------------- plan estimate
//
// The size of a plan, estimated before it is made: a slip of the keyboard ("--block-size 1") can
// request more than any machine holds.

// The smallest block size, in tokens, that strategies choose by themselves.
inline constexpr std::int64_t kSmallestDefaultBlock = 512;

// Estimates the number of tiles of all masks, in one direction, with blocks of `block_size` tokens:
// attended pairs over the pairs of a block pair, plus the blocks along the edges of sequences and
// bands. O(bands).
[[nodiscard]] double estimated_tiles(const Workload& workload, std::int64_t block_size);

// Limits of what planning is meant for. Beyond them it takes minutes and gigabytes.
inline constexpr double kMostTiles = 2e8;
inline constexpr double kMostDevicePairs = 2e8;
inline constexpr std::int32_t kMostKvHeads = 1024;

// Throws InvalidArgument when a plan would have more than kMostTiles tiles, when the cluster has
// more than kMostDevicePairs ordered pairs of devices that may send to each other, or when there
// are more than kMostKvHeads KV heads, each of which may be placed separately. The message gives
// the number of tiles or devices, the number that would fit, and a block size that gives it. A
// block size of 0 is the strategy's own.
void check_plan_size(const Workload& workload, const Cluster& cluster, std::int64_t block_size);

// ----------------------------------------------------------------------------------------- planner

// A plan, its verification and statistics, and the planning time in seconds.
struct PlannedBatch {
  std::shared_ptr<const Plan> plan;
  PlanStats statistics;
  VerifyReport verified;
  double arrange_s = 0;
  double build_s = 0;
  double verify_s = 0;
  // The search that found the plan. Set if the strategy has Strategy::search_phases.
  std::optional<SearchReport> search = {};

  [[nodiscard]] double planning_s() const { return arrange_s + build_s; }
};

// Arranges, builds, verifies and counts a plan. A strategy that leaves its block size open
// (Strategy::block_sizes) is arranged at each of its sizes. The plan that is predicted fastest on
// the cluster is returned; the prediction includes the linear layers on the device with the most
// tokens. Deterministic on any number of threads, unless the strategy has a time budget.
//
// Throws InvalidArgument on an unknown strategy, bad options, and a workload that check_workload
// refuses. It also throws, with the reason, when the strategy does not support the workload. Blocks
// so small that check_plan_size refuses them throw at once, with the tiles they would make and a
// size that fits (unless `force`). A plan that does not verify is returned, not thrown.
[[nodiscard]] PlannedBatch plan_batch(const Workload& workload, const Cluster& cluster,
                                      const StrategyChoice& choice,
                                      const PlanOptions& options = {});

// The same from any arrangement: builds, verifies and counts. Only the limits and the progress hook
// of the options are used. Throws InvalidArgument when the workload is not valid, or when the
// arrangement contradicts itself or does not fit the workload and the cluster.
[[nodiscard]] PlannedBatch plan_arrangement(const Workload& workload, const Cluster& cluster,
                                            const Arrangement& arrangement,
                                            const PlanOptions& options = {});

// Returns why the strategy cannot plan this batch, or nothing. Throws InvalidArgument on an unknown
// strategy or bad options.
[[nodiscard]] std::optional<std::string> unsupported_reason(const Workload& workload,
                                                            const Cluster& cluster,
                                                            const StrategyChoice& choice,
                                                            const PlanOptions& options = {});

// Thrown when a plan does not verify. None of its numbers count.
class CheckFailed : public Error {
 public:
  using Error::Error;
};
// The same as plan_batch, for callers with no use for a plan that does not verify: throws
// CheckFailed with the number of violations and the first one.
[[nodiscard]] PlannedBatch plan_and_check(const Workload& workload, const Cluster& cluster,
                                          const StrategyChoice& choice,
                                          const PlanOptions& options = {});

// Time of one layer of every mask, both directions, µs: attention as simulated, and the linear
// layers of the device that owns the most tokens. Linear layers take `linear_us_per_token` per
// token, and twice that in backward.
[[nodiscard]] double layer_us(const PlannedBatch& planned, const Simulation& simulation,
                              double linear_us_per_token);
// Its linear layers alone, and the part that the tokens of that device above the mean take, µs.
struct LinearTimes {
  double linear_us = 0;
  double uneven_us = 0;
};
[[nodiscard]] LinearTimes linear_times(const PlannedBatch& planned, const Simulation& simulation,
                                       double linear_us_per_token);

// ------------------------------------------------------------------------------- comparison

// Batches to plan for one machine, with the same options.
struct PlanInput {
  Cluster cluster;                // the context-parallel group
  std::vector<Workload> batches;  // at least one
  PlanOptions options;
  // false: strategies that schedule micro-batches (Strategy::has_schedule) count only as one plan.
  bool schedules = true;
};

// Lower bounds on the time of any plan that owns no more tokens per device and node than the
// defaults of BoundOptions allow, or than the compared plan owns if that is more. They are never
// above the time of that plan.
struct BatchBound {
  std::optional<TimeBound> forward;
  std::optional<TimeBound> backward;
};
[[nodiscard]] BatchBound bound_beside(const Plan& plan, const Workload& workload,
                                      const Cluster& cluster, const Simulation& simulation);

// A batch as micro-batches (schedule.h).
struct ComparedSchedule {
  std::size_t micro_batches = 0;
  std::int64_t most_tokens = 0;   // that a rank holds at a time
  std::int64_t memory_bytes = 0;  // peak of attention on a rank, one micro-batch at a time
  double layer_us = 0;            // with linear layers
  LinearTimes linear;             // the part that these add, and what is more than with even tokens
};

// The result of one strategy on all batches of a comparison.
struct ComparedStrategy {
  StrategyChoice choice;
  std::string skipped;                  // reason why it does not apply; then nothing below is set
  std::string failed;                   // message of the error it threw; then the same
  std::vector<PlannedBatch> batches;    // plans without bands and programs, which would often not
                                        // fit in memory
  std::vector<Simulation> simulations;  // one for each batch whose plan verifies
  std::vector<BatchBound> bounds;       // one for each batch whose plan verifies
  // Times of a layer with its linear layers (layer_us), one for each batch whose plan verifies, and
  // the parts of them that linear_times tells. The price of a token is that of the options, or a
  // guess (guessed_linear_us_per_token).
  std::vector<double> layers_us;
  std::vector<double> linear_us;
  std::vector<double> uneven_us;
  // One for each batch whose plan verifies, if the strategy schedules micro-batches. The plans
  // and times above are of all its rounds in one plan; those of layers are the schedule's.
  std::vector<ComparedSchedule> schedules;

  // Returns true if every plan verifies, or if the strategy does not apply.
  [[nodiscard]] bool ok() const;
};

struct ComparisonHooks {
  // Called before each batch of each strategy, including strategies that do not apply.
  std::function<void(std::size_t strategy, std::size_t batch)> started = {};
  // Called with each whole plan that verifies. An Error from it counts as the failure of that
  // strategy; a TransportError ends the comparison.
  std::function<void(std::size_t strategy, std::size_t batch, const PlannedBatch&)> planned = {};
};

// Plans every batch with every choice and predicts its time on the input's cluster. Element i of
// the result belongs to choice i. Throws InvalidArgument on unknown strategies, bad options and
// batches that check_workload refuses. An error inside one strategy is recorded as that strategy's
// failure.
[[nodiscard]] std::vector<ComparedStrategy> compare_strategies(
    const PlanInput& input, std::span<const StrategyChoice> choices,
    const ComparisonHooks& hooks = {});

}  // namespace contextile
