// Lower bounds of training steps, without plans.
#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "contextile/advanced/step_planner.h"

namespace contextile {
namespace {

constexpr double kFlopsPerUsAtOneTflops = 1e6;

// One direction of attention that never waits, of a device that computes `flops` at the best rate
// the kernel has. A collective of weights that runs at the same time delays nothing.
AttentionTimes ideal_times(const Cluster& cluster, Direction direction, double flops) {
  const std::vector<double>& shares =
      direction == Direction::kForward ? cluster.attention.forward : cluster.attention.backward;
  const double rate = cluster.usable_attention_tflops() * std::ranges::max(shares);
  const double us = flops / (rate * kFlopsPerUsAtOneTflops);
  return {.time_us = us, .compute_us = us, .shared_us = SharedTimesOfLoads{}};
}

}  // namespace

double StepPlanner::attention_flops_of(std::size_t micro_batch) {
  if (attention_flops_.empty()) {
    for (const BatchLengths& lengths : job_.micro_batches) {
      const Workload workload = make_workload(lengths, attention_shape_of(job_.model, 1), masks_);
      double flops = 0;
      double layers = 0;
      for (const NamedMask& mask : workload.masks) {
        layers += mask.layers;
        flops += mask.layers *
                 forward_flops(mask.mask.num_pairs(), workload.shape.q_heads, workload.shape);
      }
      attention_flops_.push_back(flops / layers);
    }
  }
  return attention_flops_[micro_batch];
}

StepOutcome StepPlanner::bound(const StepSetting& setting) {
  StepOutcome outcome{.setting = setting,
                      .verdict = Verdict::kImpossible,
                      .reason = {},
                      .planned = false,
                      .prediction = std::nullopt,
                      .memory = {}};
  std::optional<TrainingStep> step = unplanned_step(setting, outcome);
  if (!step) return outcome;
  const ParallelSizes& sizes = setting.sizes;
  const AttentionShape shape = attention_shape_of(job_.model, 1);
  const double backward_share =
      backward_flops(1, shape.q_heads, shape) / forward_flops(1, shape.q_heads, shape);
  const bool scheduled = is_scheduled(setting);
  const std::size_t batches = job_.micro_batches.size();
  std::int64_t tokens = 0;
  double flops = 0;
  for (std::size_t k = 0; k < batches; ++k) {
    flops += attention_flops_of(k);
    tokens += std::reduce(job_.micro_batches[k].begin(), job_.micro_batches[k].end());
  }
  for (std::size_t k = 0; k < batches; ++k) {
    const auto dp = static_cast<std::size_t>(sizes.dp);
    MicroBatchWork& work = step->replicas[k % dp][k / dp];
    // A schedule may deal sequences to any rank at any time, so every rank has an even share.
    if (scheduled) {
      work = even_micro_batch(tokens / static_cast<std::int64_t>(batches), sizes.cp);
      work.parts.front().tokens_at_once = 0;
    }
    BatchPart& part = work.parts.front();
    part.attention_flops = scheduled ? flops / static_cast<double>(batches) : attention_flops_of(k);
    const double of_device = part.attention_flops / (sizes.tp * sizes.cp);
    if (setting.schedule == PipelineSchedule::kSamePhase) continue;
    part.attention.forward = ideal_times(job_.cluster, Direction::kForward, of_device);
    part.attention.backward =
        ideal_times(job_.cluster, Direction::kBackward, backward_share * of_device);
  }
  outcome.prediction = predict_step(*step);
  if (scheduled) {
    // Rounds may be more and smaller than micro-batches, and a pipeline then idles less.
    StepPrediction& prediction = *outcome.prediction;
    prediction.time_us = 0;
    for (const StageTimes& stage : prediction.stages) {
      prediction.time_us = std::max(prediction.time_us, stage.total_us() - stage.bubble_us);
    }
  }
  outcome.verdict = Verdict::kFits;
  return outcome;
}

}  // namespace contextile
