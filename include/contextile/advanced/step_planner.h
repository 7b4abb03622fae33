// Predicts training steps from lengths: plans the attention of every micro-batch, once for all
// parallel sizes that share it, and predicts the step.
//
//   const TrainingJob job = {.model = load_model("llama-3-8b"),
//                            .cluster = load_cluster("dgx-h200:4x8"),
//                            .micro_batches = {{90'000, 40'572}}};
//   StepPlanner planner(job, [](const std::string& what) { std::puts(what.c_str()); });
//   const StepSetting setting = {.sizes = {.tp = 8, .cp = 4}, .strategy = {"auto"}};
//   std::printf("%s\n", planner.predict(setting).reason.c_str());
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "contextile/advanced/training.h"
#include "contextile/planner.h"
#include "contextile/workload.h"

namespace contextile {

using BatchLengths = std::vector<std::int64_t>;
struct DocumentRows;  // rows of a document

// Rows of one document in a nano-batch. They attend the document's keys [0, rows.end).
struct NanoBatchRows {
  std::int32_t document = 0;
  Range rows;
};
// Returns the two nano-batches of a micro-batch, or one if it has a single token, as same-phase
// ping-pong cuts them. Their tokens are equal, to one, and at most one document is cut; its first
// rows are in the first nano-batch. A document is cut only if every mask lets its first rows stand
// alone. Without such a document, tokens are only about equal. O(documents · log).
[[nodiscard]] std::vector<std::vector<NanoBatchRows>> nano_batches_of(
    std::span<const std::int64_t> lengths, std::span<const MaskUse> masks);

// The properties of one job that all its parallel sizes share.
struct TrainingJob {
  ModelSpec model;
  Cluster cluster;             // all devices
  std::vector<MaskUse> masks;  // empty: causal
  PlanOptions plan;            // options of all attention plans
  IterationOptions options;
  // The micro-batches of all replicas: micro-batch k is the (k / DP)-th of replica k % DP.
  std::vector<BatchLengths> micro_batches;
};

enum class NanoBatches : std::uint8_t {
  kOne,
  // Two that alternate. With kSamePhase they have equal tokens, and one document is cut if needed
  // and if the masks let its first rows stand alone. Otherwise they have whole documents and about
  // equal tokens.
  kPingPong,
};

// One way to run a job.
struct StepSetting {
  ParallelSizes sizes;
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::int32_t chunks = 1;
  std::int32_t group = 0;
  NanoBatches nano_batches = NanoBatches::kOne;
  StrategyChoice strategy;
  // true: a strategy that schedules micro-batches (Strategy::has_schedule) counts as one plan per
  // micro-batch of the job. false: its scheduler deals the sequences of the whole step over DP x CP
  // ranks in rounds, and the rounds are the step's micro-batches. Its option `cap` is then by
  // default an even share of the largest micro-batch: what a rank of a static group holds.
  bool one_plan = false;
  // Strategy inside the groups of a schedule; unset: that of the original, a zigzag ring.
  std::optional<StrategyChoice> group_strategy = std::nullopt;
  // In place of TrainingJob::options. Settings may differ in recompute and optimizer and still
  // share their plans.
  std::optional<IterationOptions> options = std::nullopt;
  // true: collectives of weights and gradients take nothing from attention during which they run.
  // Then a plan is simulated once, not four times, and the time is a lower bound.
  bool undisturbed = false;
};
// Returns true if the setting's strategy schedules the step's micro-batches. Pools of kSamePhase
// and ping-pong need one plan.
[[nodiscard]] bool is_scheduled(const StepSetting& setting);
// Returns a text such as "TP 8, CP 4, DP 2, PP 1", and EP if it is above 1.
[[nodiscard]] std::string sizes_text(const ParallelSizes& sizes);

enum class Verdict : std::uint8_t { kFits, kOutOfMemory, kImpossible };
[[nodiscard]] std::string_view to_string(Verdict verdict);  // "fits", "out_of_memory", …

struct StepOutcome {
  StepSetting setting;
  Verdict verdict = Verdict::kImpossible;
  std::string reason;    // set unless it fits
  bool planned = false;  // true: the verdict is about this strategy, not the parallel sizes alone
  std::optional<StepPrediction> prediction;  // none if nothing was planned
  std::vector<StageMemory> memory;           // none if impossible

  [[nodiscard]] std::int64_t memory_bytes() const;  // of the fullest stage
};

// Called before every plan that is made, with a text that names its purpose.
using PlanNotice = std::function<void(const std::string& what)>;

class StepPlanner {
 public:
  // `job` must outlive the planner. Throws InvalidArgument on bad masks.
  StepPlanner(const TrainingJob& job, PlanNotice notice);

  // Predicts one setting. It checks sizes and memory before it plans anything: weights, optimizer
  // and activations of evenly spread tokens alone may be too much. Throws InvalidArgument on
  // unknown strategies and bad options, CheckFailed when a plan does not verify.
  [[nodiscard]] StepOutcome predict(const StepSetting& setting);

  // The same without a plan: attention's work is spread evenly, and nothing of it is transferred or
  // waited for. The prediction of the setting is not faster, for any strategy and exchange. Not
  // for kSamePhase and ping-pong, whose attention then takes no time.
  [[nodiscard]] StepOutcome bound(const StepSetting& setting);

 private:
  // Strategy, shape of the cluster, heads, the planned workload, and the collective that shares its
  // links.
  using Key = std::tuple<std::string, std::int32_t, std::int32_t, double, std::int32_t, std::string,
                         CollectiveTraffic>;
  // A part, or the reason why the strategy cannot plan it.
  struct PlannedPart {
    BatchPart part;
    std::optional<std::string> unsupported;
  };

  [[nodiscard]] Workload workload_of(const std::vector<DocumentRows>& documents,
                                     std::int32_t tp) const;
  // The rounds of a schedule, or the reason why there is none.
  struct PlannedRounds {
    std::vector<BatchPart> rounds;
    std::optional<std::string> unsupported;
    std::optional<std::string> unpipelined;  // why stages cannot run them
  };
  [[nodiscard]] const PlannedRounds& planned_rounds(const StepSetting& setting);

  [[nodiscard]] const PlannedPart& planned(const StepSetting& setting, const Cluster& group,
                                           const Workload& workload, const std::string& what);
  [[nodiscard]] const IterationOptions& options_of(const StepSetting& setting) const {
    return setting.options ? *setting.options : job_.options;
  }
  // The collective that attention is simulated with: none if it is undisturbed.
  [[nodiscard]] CollectiveTraffic traffic_of(const StepSetting& setting) const;
  // Forward FLOPs of attention in one layer of a micro-batch, mean over masks, all heads.
  [[nodiscard]] double attention_flops_of(std::size_t micro_batch);
  // The step without plans, or nothing; then the outcome has the verdict and its reason.
  [[nodiscard]] std::optional<TrainingStep> unplanned_step(const StepSetting& setting,
                                                           StepOutcome& outcome) const;
  [[nodiscard]] TrainingStep even_step(const StepSetting& setting) const;
  // These fill the step. They return why it cannot be planned, or nothing.
  std::optional<std::string> plan_micro_batches(const StepSetting& setting, TrainingStep& step);
  std::optional<std::string> plan_ticks(const StepSetting& setting, TrainingStep& step);
  std::optional<std::string> plan_rounds(const StepSetting& setting, TrainingStep& step);
  [[nodiscard]] BatchPart unplanned_part(const StepSetting& setting,
                                         const std::vector<DocumentRows>& documents) const;

  const TrainingJob& job_;
  std::vector<MaskUse> masks_;
  PlanNotice notice_;
  std::map<Key, PlannedPart> plans_;
  std::map<Key, PlannedRounds> rounds_;
  std::vector<double> attention_flops_;  // by micro-batch, once one was needed
};

// ------------------------------------------------------------------------------- sweeps

// Sizes that are fixed; a sweep varies the others.
struct GivenSizes {
  std::optional<std::int32_t> tp = {};
  std::optional<std::int32_t> cp = {};
  std::optional<std::int32_t> dp = {};
  std::optional<std::int32_t> pp = {};
  std::optional<std::int32_t> ep = {};
};

// Returns the sizes on `num_devices`. TP, PP and EP are 1 unless given. CP or DP, if not given, is
// the remaining factor (if neither is given, DP is 1). Throws InvalidArgument when the product is
// another number.
[[nodiscard]] ParallelSizes complete_sizes(const GivenSizes& given, std::int64_t num_devices);

// Returns all sizes of the model on the cluster that keep to the given ones, in order of TP, PP,
// CP, EP. TP is inside a node and divides the heads. The CP, DP and EP groups are whole nodes or
// equal parts of one. DP divides the micro-batches, and there are at most as many stages as layers.
// EP divides the experts and the devices of a stage; it is 1 for models without experts.
[[nodiscard]] std::vector<ParallelSizes> all_sizes(const GivenSizes& given, const ModelSpec& model,
                                                   const Cluster& cluster,
                                                   std::int64_t micro_batches, std::int32_t chunks);

}  // namespace contextile
