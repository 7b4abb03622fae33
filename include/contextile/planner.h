// From lengths to a verified plan in one call, and strategies side by side.
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
#include "contextile/extend/arrangement.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"
#include "contextile/workload.h"

namespace contextile {

// ---------------------------------------------------------------------------------------- registry
//
// The strategies there are, and how a caller names one with its options.

// All strategies, in the order tables list them.
[[nodiscard]] std::span<const Strategy* const> strategies();
// Throws InvalidArgument with the list of names and a "did you mean".
[[nodiscard]] const Strategy& find_strategy(std::string_view name);

// "name:key=value,key=value,other,…": an item without '=' starts the next strategy; values may hold
// colons; "all" stands for every strategy. Names and keys are checked when used.
[[nodiscard]] std::vector<StrategyChoice> parse_strategies(std::string_view text);
// "name" or "name:key=value,…", as given.
[[nodiscard]] std::string choice_text(const StrategyChoice& choice);

// ----------------------------------------------------------------------------------- plan estimate
//
// What planning would make, estimated before it is made: a slip of the keyboard ("--block-size 1")
// can ask for more than any machine holds.

// Blocks as small as the smallest that strategies choose by themselves.
inline constexpr std::int64_t kSmallestDefaultBlock = 512;

// Tiles of all masks and one direction in blocks of `block_size` tokens, about: attended pairs over
// the pairs of a block pair, and the blocks along the edges of sequences and bands. O(bands).
[[nodiscard]] double estimated_tiles(const Workload& workload, std::int64_t block_size);

// What planning is meant for; beyond it minutes and gigabytes go by.
inline constexpr double kMostTiles = 2e8;
inline constexpr double kMostDevicePairs = 2e8;
inline constexpr std::int32_t kMostKvHeads = 1024;

// Throws InvalidArgument with the number of tiles or devices, what would fit and which block size
// gives it, when a plan would have more than kMostTiles tiles or the cluster more than
// kMostDevicePairs ordered pairs of devices that may send to each other; with more than
// kMostKvHeads KV heads, each of which may be placed for itself. A block size of 0 is the
// strategy's own.
void check_plan_size(const Workload& workload, const Cluster& cluster, std::int64_t block_size);

// ----------------------------------------------------------------------------------------- planner

// What a choice of a strategy and its own options asks of that strategy.
[[nodiscard]] StrategyRequest request_of(const StrategyChoice& choice, const PlanOptions& options);

// A plan, what verify and statistics say of it, and how long it took, seconds.
struct PlannedBatch {
  std::shared_ptr<const Plan> plan;
  PlanStats statistics;
  VerifyReport verified;
  double arrange_s = 0;
  double build_s = 0;
  double verify_s = 0;
  // The search that found the plan, where the strategy has Strategy::search_phases.
  std::optional<SearchReport> search = {};

  [[nodiscard]] double planning_s() const { return arrange_s + build_s; }
};

// Arranges, builds, verifies, counts. A strategy that leaves its block size open (Strategy::
// block_sizes) is arranged at each of its sizes, and the plan that is predicted fastest on the
// cluster, linear layers on the device with most tokens included, is the one. Deterministic, on any
// number of threads, unless the strategy is given a time budget. Throws InvalidArgument on an
// unknown strategy, bad options, a workload that check_workload refuses, blocks so small that
// check_plan_size refuses them (at once, with the tiles they would make and a size that fits;
// unless `force`), or with the reason when the strategy does not support the workload; a plan that
// does not verify is returned, not thrown.
[[nodiscard]] PlannedBatch plan_batch(const Workload& workload, const Cluster& cluster,
                                      const StrategyChoice& choice,
                                      const PlanOptions& options = {});

// The same from an arrangement, wherever it comes from: builds, verifies, counts. Of the options
// the limits and the progress hook are used. Throws InvalidArgument when the workload is not valid,
// or the arrangement contradicts itself or does not fit workload and cluster.
[[nodiscard]] PlannedBatch plan_arrangement(const Workload& workload, const Cluster& cluster,
                                            const Arrangement& arrangement,
                                            const PlanOptions& options = {});

// Why the strategy cannot plan this batch, or nothing. Throws InvalidArgument on an unknown
// strategy or bad options.
[[nodiscard]] std::optional<std::string> unsupported_reason(const Workload& workload,
                                                            const Cluster& cluster,
                                                            const StrategyChoice& choice,
                                                            const PlanOptions& options = {});

// A plan did not verify: none of its numbers count.
class CheckFailed : public Error {
 public:
  using Error::Error;
};
// plan_batch, for callers with no use for a plan that does not verify: throws CheckFailed with the
// number of violations and the first one.
[[nodiscard]] PlannedBatch plan_and_check(const Workload& workload, const Cluster& cluster,
                                          const StrategyChoice& choice,
                                          const PlanOptions& options = {});

// What one layer of every mask takes, both directions, µs: attention as simulated, and the linear
// layers of the device that owns most tokens, `linear_us_per_token` each, backward twice as long.
[[nodiscard]] double layer_us(const PlannedBatch& planned, const Simulation& simulation,
                              double linear_us_per_token);

// ------------------------------------------------------------------------------- comparison

// Batches to plan for one machine, with the same options.
struct PlanInput {
  Cluster cluster;                // the context-parallel group
  std::vector<Workload> batches;  // at least one
  PlanOptions options;
};

// How fast any plan could be that owns no more tokens per device and node than the defaults of
// BoundOptions, or than the plan it is put beside where that owns more: never above its time.
struct BatchBound {
  std::optional<TimeBound> forward;
  std::optional<TimeBound> backward;
};
[[nodiscard]] BatchBound bound_beside(const Plan& plan, const Workload& workload,
                                      const Cluster& cluster, const Simulation& simulation);

// One strategy on all batches of a comparison.
struct ComparedStrategy {
  StrategyChoice choice;
  std::string skipped;                  // why it does not apply; then nothing below is set
  std::string failed;                   // what it threw
  std::vector<PlannedBatch> batches;    // plans without bands and programs: many would not fit
  std::vector<Simulation> simulations;  // one for each batch whose plan verifies
  std::vector<BatchBound> bounds;       // likewise
  // A layer with its linear layers (layer_us), likewise; empty where nobody said what tokens cost.
  std::vector<double> layers_us;

  // Applied and every plan verifies, or did not apply.
  [[nodiscard]] bool ok() const;
};

struct ComparisonHooks {
  // Before each batch of each strategy, also of those that do not apply.
  std::function<void(std::size_t strategy, std::size_t batch)> started = {};
  // With each whole plan that verifies. An Error it throws is that strategy's failure, a
  // TransportError ends the comparison.
  std::function<void(std::size_t strategy, std::size_t batch, const PlannedBatch&)> planned = {};
};

// Plans every batch with every choice and predicts its time on the input's cluster; choice i is
// element i of the result. Throws InvalidArgument on unknown strategies, bad options and batches
// that check_workload refuses; what goes wrong inside one strategy is that strategy's failure.
[[nodiscard]] std::vector<ComparedStrategy> compare_strategies(
    const PlanInput& input, std::span<const StrategyChoice> choices,
    const ComparisonHooks& hooks = {});

}  // namespace contextile
