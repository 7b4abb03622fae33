// Sensitivity of a comparison to the cluster's constants: the same strategies on the cluster with
// one constant changed at a time. A ranking that a change of a constant reverses is worth no more
// than that constant.
//
//   SensitivityOfPlans kept(input.cluster, choices, input.batches.size());
//   ComparisonHooks hooks;
//   hooks.planned = [&](std::size_t strategy, std::size_t batch, const PlannedBatch& planned) {
//     kept.add(strategy, batch, *planned.plan);
//   };
//   const std::vector<ComparedStrategy> compared = compare_strategies(input, choices, hooks);
//   const Sensitivity found = kept.result();
//   for (std::size_t i = 0; i < found.clusters.size(); ++i) standing(found, i);
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/plan.h"
#include "contextile/planner.h"

namespace contextile {

// A cluster with one of its constants changed.
struct ChangedConstant {
  std::string constant;  // "intra_gbytes_per_s"; empty: nothing is changed
  std::string was;       // "450"; empty if a measured grid has no single number
  std::string is;        // "225", or "x 0.5" of such a grid
  Cluster cluster;
};

// Returns the cluster as it is, then the cluster with every constant of its cost model halved and
// doubled:
//
// * `call_us` and `attention_tflops` of attention. If the profile is one of
//   AttentionProfile::from_overheads, also `row_keys`, `call_pairs`, `kernel_tile_rows` and
//   `backward_share`, from which it is made again. If it is a measured grid, also `backward_share`
//   and `kernel_overheads`: all time that a rectangle takes beyond the grid's best rate.
// * `memory_gbytes_per_s`, `launch_us`, both latencies together (`latencies_us`) and
//   `intra_gbytes_per_s`; with several nodes also `inter_gbytes_per_s_per_node` and `nics_per_node`
//   (the uplink stays, it is cut into more or fewer NICs).
// * `launches` becomes the other of its two values; `sm_fraction` becomes 0.15 if it is 0;
//   `transfer_sms`.
//
// Constants that are 0, and so the same when halved, are omitted (except sm_fraction), and so are
// values that check_cluster refuses.
[[nodiscard]] std::vector<ChangedConstant> changed_constants(const Cluster& cluster);

// The plans that the changed clusters are tried on.
enum class SensitivityPlans : std::uint8_t {
  kKept,    // plans for the cluster as it is: the effect if the constant is not what was assumed
  kReplan,  // plans made for each changed cluster: the strategy that such a machine would need
};
[[nodiscard]] std::string_view to_string(SensitivityPlans plans);  // "kept", "replan"
[[nodiscard]] SensitivityPlans parse_sensitivity_plans(std::string_view text);

struct Sensitivity {
  SensitivityPlans plans = SensitivityPlans::kKept;
  std::vector<StrategyChoice> choices;
  std::vector<ChangedConstant> clusters;  // the first one as it is
  // [cluster][choice]: both directions, µs, means over batches. None if a batch has no plan that
  // verifies, or its programs wait for each other forever (launches one after another).
  std::vector<std::vector<std::optional<double>>> times_us;
};

// The ranking on one of the clusters. Times that differ by less than a billionth are the same.
struct Standing {
  std::vector<std::size_t> fastest;   // choices; several: they take the same time, often one plan
  std::optional<double> time_us;      // none: no choice has a time
  std::optional<std::size_t> second;  // the fastest of those that take longer
  std::optional<double> second_slower_by;  // 0.1: a tenth longer than the fastest
  std::optional<double> auto_slower_by;    // the best choice of `auto`; 0: it is the fastest
  bool same_fastest = true;                // one of `fastest` is so on the cluster as it is, too
  // Pairs of choices of which one is faster here and the other on the cluster as it is; `pairs`
  // counts all pairs that have times on both.
  std::int64_t turned_pairs = 0;
  std::int64_t pairs = 0;
};
[[nodiscard]] Standing standing(const Sensitivity& sensitivity, std::size_t cluster);

// Simulates plans on all changed clusters while the caller has the whole plans.
class SensitivityOfPlans {
 public:
  SensitivityOfPlans(const Cluster& cluster, std::span<const StrategyChoice> choices,
                     std::size_t num_batches);

  // Adds a plan, which must verify. Throws InvalidArgument if it is for a cluster of another shape.
  // Runs as many simulations as there are clusters, on all threads.
  void add(std::size_t choice, std::size_t batch, const Plan& plan);
  // Returns the result of the plans added so far; choices that lack a batch have no time.
  [[nodiscard]] Sensitivity result() const;

 private:
  Sensitivity sensitivity_;
  std::size_t num_batches_;
  std::vector<std::vector<std::vector<std::optional<double>>>>
      times_us_;  // [cluster][choice][batch]
};

// The same with every plan made again for every changed cluster: as many comparisons as there are
// clusters. `started` is called before each. A strategy that fails has no time. Throws
// InvalidArgument on unknown strategies and bad options.
[[nodiscard]] Sensitivity replan_sensitivity(
    const PlanInput& input, std::span<const StrategyChoice> choices,
    const std::function<void(const ChangedConstant& cluster, std::size_t choice)>& started = {});

}  // namespace contextile
