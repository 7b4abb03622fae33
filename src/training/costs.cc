#include "training/costs.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/check.h"

namespace contextile {
namespace {

constexpr double kBytesPerUsAtOneGbyte = 1e3;  // 1 GB/s
constexpr double kBackwardLinear = 2;          // times forward's FLOPs
// Sequence parallel TP (Korthikanti et al., 2022): an all-gather before and a reduce-scatter after
// each of the two blocks of a layer; one of the four stands before attention.
constexpr double kCollectivesBefore = 1;
constexpr double kCollectivesAfter = 3;

// Two parts in turns, `layers` of them. Barriered ticks of compute beside transfers, by part: L0
// beside the results of the layer before, L1 beside inputs of 0, attention of 0 beside inputs of 1,
// attention of 1 beside results of 0. L is what lies between two attentions. Returns how much
// longer than their compute the ticks are: exactly 0 where compute hides all transfers.
double ping_pong_exposed_us(std::int32_t layers, const std::array<AttentionTimes, 2>& attention,
                            const std::array<double, 2>& first_us,
                            const std::array<double, 2>& last_us) {
  const auto beyond = [](double transfers_us, double compute_us) {
    return std::max(0.0, transfers_us - compute_us);
  };
  double us = 0;
  double results_us = 0;
  for (std::int32_t k = 0; k < layers; ++k) {
    const double l0 = first_us[0] + (k == 0 ? 0 : last_us[0]);
    const double l1 = first_us[1] + (k == 0 ? 0 : last_us[1]);
    us += beyond(results_us, l0) + beyond(attention[0].input_us, l1) +
          beyond(attention[1].input_us, attention[0].compute_us) +
          beyond(attention[0].output_us, attention[1].compute_us);
    results_us = attention[1].output_us;
  }
  return us + beyond(results_us, last_us[0]);
}

}  // namespace

PhaseCost& PhaseCost::operator+=(const PhaseCost& other) {
  linear_us += other.linear_us;
  attention_us += other.attention_us;
  exposed_us += other.exposed_us;
  tensor_parallel_us += other.tensor_parallel_us;
  recompute_us += other.recompute_us;
  return *this;
}

double RingCost::us(double bytes) const {
  if (ranks <= 1) return 0;
  return (ranks - 1) * (latency_us + bytes / ranks / (gbytes_per_s * kBytesPerUsAtOneGbyte));
}

StepCosts::StepCosts(const TrainingStep& step)
    : step_(step), weights_(weights_of(step.model)), flops_(linear_flops_of(step.model)) {
  check();
  const Cluster& cluster = step.cluster;
  const double share = step.options.collective_share;
  tensor_ring_ = {step.sizes.tp, cluster.intra_latency_us, share * cluster.intra_gbytes_per_s};
  const std::int32_t ranks = step.sizes.cp * step.sizes.dp;
  gradient_ring_ = {ranks, cluster.intra_latency_us, share * cluster.intra_gbytes_per_s};
  if (ranks > cluster.devices_per_node / step.sizes.tp) {
    // A ring for each TP rank crosses every node's NICs once.
    gradient_ring_.latency_us = cluster.inter_latency_us;
    gradient_ring_.gbytes_per_s =
        share *
        std::min(cluster.intra_gbytes_per_s, cluster.inter_gbytes_per_s_per_node / step.sizes.tp);
  }
}

void StepCosts::check() const {
  check_cluster(step_.cluster);
  check_pipeline(step_.pipeline);
  check_iteration_options(step_.options);
  const PipelineShape& pipeline = step_.pipeline;
  if (const auto problem =
          parallel_sizes_problem(step_.model, step_.cluster, step_.sizes, pipeline.chunks)) {
    fail_argument("training step: {}", *problem);
  }
  CONTEXTILE_CHECK(pipeline.stages == step_.sizes.pp,
                   "training step: expected a pipeline of {} stages (PP), found {}", step_.sizes.pp,
                   pipeline.stages);
  CONTEXTILE_CHECK(step_.replicas.size() == static_cast<std::size_t>(step_.sizes.dp),
                   "training step: expected micro-batches of {} replicas (DP), found {}",
                   step_.sizes.dp, step_.replicas.size());
  std::size_t parts = 0;
  for (const std::vector<MicroBatchWork>& replica : step_.replicas) {
    CONTEXTILE_CHECK(replica.size() == static_cast<std::size_t>(pipeline.micro_batches),
                     "training step: expected {} micro-batches of every replica, found {}",
                     pipeline.micro_batches, replica.size());
    for (const MicroBatchWork& micro_batch : replica) {
      parts = std::max(parts, micro_batch.parts.size());
      CONTEXTILE_CHECK(micro_batch.parts.size() == 1 || micro_batch.parts.size() == 2,
                       "training step: expected micro-batches of 1 part or 2, found {}",
                       micro_batch.parts.size());
    }
  }
  if (pipeline.schedule != PipelineSchedule::kSamePhase) return;
  const std::int32_t num_ticks = pipeline.stages + pipeline.micro_batches - 1;
  CONTEXTILE_CHECK(step_.ticks.size() == step_.replicas.size(),
                   "training step, same phase: expected ticks of {} replicas, found {}",
                   step_.replicas.size(), step_.ticks.size());
  for (const auto& replica : step_.ticks) {
    CONTEXTILE_CHECK(replica.size() == static_cast<std::size_t>(num_ticks),
                     "training step, same phase: expected {} ticks, found {}", num_ticks,
                     replica.size());
    for (const auto& tick : replica) {
      CONTEXTILE_CHECK(tick.size() == parts,
                       "training step, same phase: expected attention of {} parts in every tick, "
                       "found {}",
                       parts, tick.size());
    }
  }
}

std::int32_t StepCosts::layers_of(std::int32_t virtual_stage) const {
  const std::int32_t stages = step_.pipeline.virtual_stages();
  return step_.model.layers / stages + (virtual_stage < step_.model.layers % stages ? 1 : 0);
}

std::int32_t StepCosts::layers_of_stage(std::int32_t stage) const {
  std::int32_t layers = 0;
  for (std::int32_t c = 0; c < step_.pipeline.chunks; ++c) {
    layers += layers_of(c * step_.pipeline.stages + stage);
  }
  return layers;
}

std::int64_t StepCosts::weights_of_stage(std::int32_t stage) const {
  std::int64_t weights = layers_of_stage(stage) * weights_.layer;
  if (stage == 0) weights += weights_.embedding;
  if (stage == step_.pipeline.stages - 1) weights += weights_.head;
  return (weights + step_.sizes.tp - 1) / step_.sizes.tp;
}

double StepCosts::linear_us(double flops_per_token, std::int64_t tokens) const {
  const double flops_per_us = 1e6 * peak_tflops_of(step_.cluster) * step_.options.linear_mfu;
  return flops_per_token * static_cast<double>(tokens) / (step_.sizes.tp * flops_per_us);
}

double StepCosts::elementwise_us(double elements_per_token, std::int64_t tokens) const {
  return elements_per_token * kActivationBytes * static_cast<double>(tokens) / step_.sizes.tp /
         (step_.cluster.memory_gbytes_per_s * kBytesPerUsAtOneGbyte);
}

double StepCosts::tensor_parallel_us(std::int64_t tokens) const {
  return (1 - step_.options.tensor_parallel_overlap) *
         tensor_ring_.us(static_cast<double>(tokens) * step_.model.hidden * kActivationBytes);
}

StepCosts::LayerCost StepCosts::layer_cost(Direction direction, const BatchPart& part,
                                           const AttentionTimes& attention) const {
  const std::int64_t tokens = part.device_tokens;
  const double hidden = step_.model.hidden;
  const double collective_us = tensor_parallel_us(tokens);
  const double factor = direction == Direction::kForward ? 1 : kBackwardLinear;
  LayerCost cost;
  cost.attention = attention;
  cost.before = {factor * linear_us(flops_.before_attention, tokens),
                 kCollectivesBefore * collective_us, 0};
  cost.after = {factor * linear_us(flops_.after_attention, tokens),
                kCollectivesAfter * collective_us, 0};
  if (direction == Direction::kBackward && step_.options.recompute == Recompute::kSelective) {
    // A norm reads and writes `hidden`; the activation reads all matrices but the last's input and
    // writes that.
    const double ffn = step_.model.ffn;
    cost.before.recompute_us = elementwise_us(2 * hidden, tokens);
    cost.after.recompute_us = elementwise_us(2 * hidden + step_.model.ffn_matrices() * ffn, tokens);
  }
  return cost;
}

PhaseCost StepCosts::layers_cost(Direction direction, std::int32_t layers,
                                 const std::vector<LayerCost>& parts) const {
  PhaseCost cost;
  for (const LayerCost& part : parts) {
    for (const LayerHalf& half : {part.before, part.after}) {
      cost.linear_us += layers * half.linear_us;
      cost.tensor_parallel_us += layers * half.tensor_parallel_us;
      cost.recompute_us += layers * half.recompute_us;
    }
    cost.attention_us += layers * part.attention.compute_us;
    cost.exposed_us += layers * (part.attention.time_us - part.attention.compute_us);
  }
  if (parts.size() == 1) return cost;
  const bool forward = direction == Direction::kForward;
  std::array<AttentionTimes, 2> attention;
  std::array<double, 2> first_us{};
  std::array<double, 2> last_us{};
  for (std::size_t i = 0; i < 2; ++i) {
    attention[i] = parts[i].attention;
    first_us[i] = (forward ? parts[i].before : parts[i].after).total_us();
    last_us[i] = (forward ? parts[i].after : parts[i].before).total_us();
  }
  cost.exposed_us = ping_pong_exposed_us(layers, attention, first_us, last_us);
  return cost;
}

const MicroBatchAttention& StepCosts::attention_of(Direction direction, std::int32_t replica,
                                                   std::int32_t stage, std::int32_t micro_batch,
                                                   std::size_t part) const {
  const auto d = static_cast<std::size_t>(replica);
  if (step_.pipeline.schedule != PipelineSchedule::kSamePhase) {
    return step_.replicas[d][static_cast<std::size_t>(micro_batch)].parts[part].attention;
  }
  const std::int32_t behind =
      direction == Direction::kForward ? stage : step_.pipeline.stages - 1 - stage;
  return step_.ticks[d][static_cast<std::size_t>(micro_batch + behind)][part];
}

PhaseCost StepCosts::phase(Direction direction, std::int32_t replica, std::int32_t virtual_stage,
                           std::int32_t micro_batch) const {
  const MicroBatchWork& batch =
      step_.replicas[static_cast<std::size_t>(replica)][static_cast<std::size_t>(micro_batch)];
  const std::int32_t stage = virtual_stage % step_.pipeline.stages;
  const bool forward = direction == Direction::kForward;
  std::vector<LayerCost> parts;
  for (std::size_t i = 0; i < batch.parts.size(); ++i) {
    const MicroBatchAttention& attention = attention_of(direction, replica, stage, micro_batch, i);
    parts.push_back(
        layer_cost(direction, batch.parts[i], forward ? attention.forward : attention.backward));
  }
  PhaseCost cost = layers_cost(direction, layers_of(virtual_stage), parts);
  if (!forward && step_.options.recompute == Recompute::kFull) {
    // The layers' forward alone: logits are kept.
    PhaseCost again;
    std::vector<LayerCost> forward_parts;
    for (std::size_t i = 0; i < batch.parts.size(); ++i) {
      forward_parts.push_back(
          layer_cost(Direction::kForward, batch.parts[i],
                     attention_of(direction, replica, stage, micro_batch, i).forward));
    }
    again = layers_cost(Direction::kForward, layers_of(virtual_stage), forward_parts);
    cost.recompute_us += again.total_us();
  }
  if (virtual_stage + 1 == step_.pipeline.virtual_stages()) {
    for (const BatchPart& part : batch.parts) {
      cost.linear_us +=
          (forward ? 1 : kBackwardLinear) * linear_us(flops_.head, part.device_tokens);
      cost.tensor_parallel_us += tensor_parallel_us(part.device_tokens);
    }
  }
  return cost;
}

double StepCosts::transfer_us(std::int32_t boundary, const MicroBatchWork& micro_batch) const {
  const Cluster& cluster = step_.cluster;
  const std::int32_t stages = step_.pipeline.stages;
  const std::int32_t stage_devices = step_.sizes.tp * step_.sizes.cp * step_.sizes.dp;
  const Rank from{(boundary % stages) * stage_devices};
  const Rank to{((boundary + 1) % stages) * stage_devices};
  if (from == to) return 0;
  const double bytes = static_cast<double>(micro_batch.device_tokens()) * step_.model.hidden *
                       kActivationBytes / step_.sizes.tp;
  if (cluster.same_node(from, to)) {
    return cluster.intra_latency_us + bytes / (cluster.intra_gbytes_per_s * kBytesPerUsAtOneGbyte);
  }
  // All devices of a node send at the same time.
  const double port = std::min(cluster.intra_gbytes_per_s,
                               cluster.inter_gbytes_per_s_per_node / cluster.devices_per_node);
  return cluster.inter_latency_us + bytes / (port * kBytesPerUsAtOneGbyte);
}

double StepCosts::optimizer_us(std::int32_t stage) const {
  // Reads the gradient, reads and writes master weight and moments, writes the weight.
  constexpr double kBytes = kGradientBytes + 2 * kOptimizerBytes + kWeightBytes;
  const double shards = step_.options.optimizer == OptimizerShards::kZero1
                            ? static_cast<double>(gradient_ring_.ranks)
                            : 1;
  return static_cast<double>(weights_of_stage(stage)) / shards * kBytes /
         (step_.cluster.memory_gbytes_per_s * kBytesPerUsAtOneGbyte);
}

}  // namespace contextile
