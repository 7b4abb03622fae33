#include "labs/papers/steps.h"

#include <utility>

#include "labs/papers/findings.h"

namespace contextile {

const std::string kStepsAreModelled =
    "Steps are modelled (docs/training-steps.md): linear layers at half of the peak, TP "
    "collectives not overlapped, gradients during the layers; attention simulated from verified "
    "plans. Nothing is measured on GPUs.";

StepOutcome predict_once(const TrainingJob& job, const StepSetting& setting) {
  return StepPlanner(job, [](const std::string&) {}).predict(setting);
}

Cell seconds_cell(double us) { return us < kInfinity ? Cell{1e-6 * us} : Cell{}; }

TrainingStep one_group_step(const TrainingJob& job, std::int32_t tp) {
  return {.model = job.model,
          .cluster = job.cluster,
          .sizes = {.tp = tp, .cp = job.cluster.num_devices() / tp, .dp = 1, .pp = 1},
          .pipeline = {},
          .options = job.options,
          .replicas = {},
          .ticks = {}};
}

BatchPart planned_part(const StrategyChoice& choice, const TrainingJob& job,
                       const ParallelSizes& sizes, const BatchLengths& documents,
                       AttentionDetail detail) {
  PlanInput input;
  input.cluster = context_parallel_cluster(job.cluster, sizes);
  input.options = job.plan;
  const MaskUse causal;
  const Workload workload =
      make_workload(documents, attention_shape_of(job.model, sizes.tp), {&causal, 1});
  return batch_part_of(*plan_and_check(workload, input.cluster, choice, input.options).plan,
                       input.cluster, sizes.tp, detail,
                       gradient_traffic(job.cluster, sizes, job.options));
}

StepPrediction predict_parts(TrainingStep step, std::vector<BatchPart> parts) {
  step.replicas = {{MicroBatchWork{std::move(parts)}}};
  return predict_step(step);
}

}  // namespace contextile
