#include "training/costs.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"

namespace contextile {
namespace {

constexpr double kBackwardLinear = 2;  // times forward's FLOPs

// Two parts that alternate, for `layers` layers. Ticks with barriers overlap compute with
// transfers, by part: L0 with the results of the layer before, L1 with inputs of 0, attention of 0
// with inputs of 1, attention of 1 with results of 0. L is the work between two attentions. Returns
// how much longer than their compute the ticks are: exactly 0 if compute hides all transfers.
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

std::vector<RoundShares> even_shares(const BatchPart& part) {
  return {{.devices = {{.tokens = part.device_tokens}}}};
}
std::vector<RoundShares> shares_of(const BatchPart& part) {
  return part.shares.empty() ? even_shares(part) : part.shares;
}

}  // namespace

StepCosts::StepCosts(const TrainingStep& step)
    : step_(step), weights_(weights_of(step.model)), flops_(linear_flops_of(step.model)) {
  check();
  if (step.pipeline.schedule == PipelineSchedule::kSamePhase) {
    tick_of_stage_0_.resize(place_in_order(step.pipeline.micro_batches, 0));
    for (const PipelineTick& tick : pipeline_ticks(step.pipeline)) {
      const std::optional<PipelineStep>& first = tick.steps.front();
      if (!first || first->direction != Direction::kForward) continue;
      tick_of_stage_0_[place_in_order(first->micro_batch, first->chunk)] = tick.number;
    }
  }
  const Cluster& cluster = step.cluster;
  const std::int32_t tp = step.sizes.tp;
  tensor_group_ = GroupCollectives(
      cluster,
      {tp, cluster.intra_latency_us, step.options.collective_share * cluster.intra_gbytes_per_s});
  const GradientRing ring = gradient_ring(cluster, step.sizes, step.options.collective_share);
  gradient_group_ = GroupCollectives(cluster, ring.cost, ring.nodes, tp);
  gradients_leave_node_ = ring.nodes > 1;
  same_experts_group_ = same_experts_group(cluster, step.sizes, step.options.collective_share);
  expert_group_ = ExpertGroup(cluster, step.sizes.ep, step.options.collective_share);
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
  const std::int32_t num_ticks = pipeline.stages + pipeline.micro_batches * pipeline.chunks - 1;
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

double StepCosts::linear_us(double flops_per_token, std::int64_t tokens) const {
  const double flops_per_us = 1e6 * peak_tflops_of(step_.cluster) * step_.options.linear_mfu;
  return flops_per_token * static_cast<double>(tokens) / (step_.sizes.tp * flops_per_us);
}

double StepCosts::elementwise_us(double elements_per_token, std::int64_t tokens) const {
  return elements_per_token * kActivationBytes * static_cast<double>(tokens) / step_.sizes.tp /
         (step_.cluster.memory_gbytes_per_s * kBytesPerUsAtOneGbyte);
}

double StepCosts::tensor_parallel_us(Collective op, std::int64_t tokens) const {
  return (1 - step_.options.tensor_parallel_overlap) *
         tensor_group_.us(op, static_cast<double>(tokens) * step_.model.hidden * kActivationBytes);
}

StepCosts::OutsideCost& StepCosts::OutsideCost::add(const OutsideCost& other, double times) {
  linear_us += times * other.linear_us;
  tensor_parallel_us += times * other.tensor_parallel_us;
  expert_parallel_us += times * other.expert_parallel_us;
  recompute_us += times * other.recompute_us;
  return *this;
}

const MicroBatchWork& StepCosts::work_of(const Place& place) const {
  return step_.replicas[static_cast<std::size_t>(place.replica)]
                       [static_cast<std::size_t>(place.micro_batch)];
}

bool StepCosts::has_head(const Place& place) const {
  return place.virtual_stage + 1 == step_.pipeline.virtual_stages();
}

StepCosts::LayerCost StepCosts::layer_cost(Direction direction, const Place& place,
                                           std::int64_t tokens) const {
  const double hidden = step_.model.hidden;
  const double share = expert_share(place.virtual_stage);
  const bool forward = direction == Direction::kForward;
  const double factor = forward ? 1 : kBackwardLinear;
  // Sequence parallel TP (Korthikanti et al., 2022): an all-gather before and a reduce-scatter
  // after each of the two blocks of a layer; one of the four comes before attention. In backward
  // each is the other. Routed experts take the tokens of their ranks as they are, so that only
  // shared experts need the two around the feed-forward.
  const double gather_us = tensor_parallel_us(Collective::kAllGather, tokens);
  const double scatter_us = tensor_parallel_us(Collective::kReduceScatter, tokens);
  const double first_us = forward ? gather_us : scatter_us;
  const double second_us = forward ? scatter_us : gather_us;
  LayerCost cost;
  const double ffn_share = step_.model.experts.shared_ffn > 0 ? 1 : 1 - share;
  cost.before.linear_us = factor * linear_us(flops_.before_attention, tokens);
  cost.before.tensor_parallel_us = first_us;
  cost.after.linear_us = factor * linear_us(flops_.after(share), tokens);
  cost.after.tensor_parallel_us = second_us + ffn_share * (second_us + first_us);
  cost.after.expert_parallel_us = expert_parallel_us(place.virtual_stage, tokens);
  if (forward) return cost;
  if (step_.options.recompute == Recompute::kSelective) {
    // A norm reads and writes `hidden`. The activation reads the outputs of all matrices except
    // the last and writes the last one's input.
    const double ffn = token_ffn(step_.model, share).inner;
    cost.before.recompute_us = elementwise_us(2 * hidden, tokens);
    cost.after.recompute_us = elementwise_us(2 * hidden + step_.model.ffn_matrices() * ffn, tokens);
  }
  // Backward runs the layer in reverse order.
  std::swap(cost.before, cost.after);
  return cost;
}

StepCosts::OutsideCost StepCosts::head_cost(Direction direction, std::int64_t tokens) const {
  const bool forward = direction == Direction::kForward;
  OutsideCost cost;
  cost.linear_us = (forward ? 1 : kBackwardLinear) * linear_us(flops_.head, tokens);
  cost.tensor_parallel_us =
      tensor_parallel_us(forward ? Collective::kAllGather : Collective::kReduceScatter, tokens);
  return cost;
}

StepCosts::GapCost StepCosts::gaps_cost(Direction direction, const Place& place,
                                        const RoundShares& round, bool has_head) const {
  const std::int32_t layers = layers_of(place.virtual_stage);
  const bool forward = direction == Direction::kForward;
  // The gaps before, between and after the attentions, each on the device that is done last.
  std::array<std::optional<GapCost>, 3> latest;
  for (const DeviceShare& device : round.devices) {
    const double early_us = forward ? device.forward_idle_us : device.backward_idle_us;
    const LayerCost layer = layer_cost(direction, place, device.tokens);
    std::array<GapCost, 3> gaps = {GapCost{layer.before, 0}, GapCost{layer.after, early_us},
                                   GapCost{layer.after, early_us}};
    gaps[1].work.add(layer.before);
    if (has_head) gaps[forward ? 2 : 0].work.add(head_cost(direction, device.tokens));
    for (std::size_t i = 0; i < gaps.size(); ++i) {
      if (!latest[i] || gaps[i].total_us() > latest[i]->total_us()) latest[i] = gaps[i];
    }
  }
  GapCost sum;
  for (std::size_t i = 0; i < latest.size(); ++i) {
    const double times = i == 1 ? layers - 1 : 1;
    sum.work.add(latest[i]->work, times);
    sum.early_us += times * latest[i]->early_us;
  }
  return sum;
}

PhaseCost StepCosts::layers_cost(Direction direction, const Place& place, bool has_head) const {
  const MicroBatchWork& batch = work_of(place);
  const std::int32_t layers = layers_of(place.virtual_stage);
  const bool takes_turns = batch.parts.size() > 1;
  PhaseCost cost;
  for (std::size_t i = 0; i < batch.parts.size(); ++i) {
    const BatchPart& part = batch.parts[i];
    double early_us = 0;
    // Alternating parts meet at the end of every tick, so the fullest device counts.
    for (const RoundShares& round : takes_turns ? even_shares(part) : shares_of(part)) {
      const GapCost gaps = gaps_cost(direction, place, round, has_head);
      cost.linear_us += round.layers * gaps.work.linear_us;
      cost.tensor_parallel_us += round.layers * gaps.work.tensor_parallel_us;
      cost.expert_parallel_us += round.layers * gaps.work.expert_parallel_us;
      cost.recompute_us += round.layers * gaps.work.recompute_us;
      early_us += round.layers * gaps.early_us;
    }
    const AttentionTimes& attention = attention_times(direction, place, i);
    // Devices that finish attention early have begun the work of the gap by then.
    const double attention_us = std::max(0.0, layers * attention.time_us - early_us);
    const double compute_us = std::min(layers * attention.compute_us, attention_us);
    cost.attention_us += compute_us;
    cost.exposed_us += attention_us - compute_us;
  }
  if (takes_turns) cost.exposed_us = ping_pong_us(direction, place);
  return cost;
}

double StepCosts::ping_pong_us(Direction direction, const Place& place) const {
  std::array<AttentionTimes, 2> attention;
  std::array<double, 2> before_us{};
  std::array<double, 2> after_us{};
  for (std::size_t i = 0; i < 2; ++i) {
    const LayerCost layer = layer_cost(direction, place, work_of(place).parts[i].device_tokens);
    attention[i] = attention_times(direction, place, i);
    before_us[i] = layer.before.total_us();
    after_us[i] = layer.after.total_us();
  }
  return ping_pong_exposed_us(layers_of(place.virtual_stage), attention, before_us, after_us);
}

const MicroBatchAttention& StepCosts::attention_of(Direction direction, std::int32_t replica,
                                                   std::int32_t virtual_stage,
                                                   std::int32_t micro_batch,
                                                   std::size_t part) const {
  const auto d = static_cast<std::size_t>(replica);
  if (step_.pipeline.schedule != PipelineSchedule::kSamePhase) {
    return step_.replicas[d][static_cast<std::size_t>(micro_batch)].parts[part].attention;
  }
  // Backward goes through stages and chunks in reverse; its tick t has the micro-batches of forward
  // tick t.
  const std::int32_t stages = step_.pipeline.stages;
  const std::int32_t chunks = step_.pipeline.chunks;
  const bool forward = direction == Direction::kForward;
  const std::int32_t stage = virtual_stage % stages;
  const std::int32_t chunk = virtual_stage / stages;
  const std::size_t place = place_in_order(micro_batch, forward ? chunk : chunks - 1 - chunk);
  const std::int32_t behind = forward ? stage : stages - 1 - stage;
  return step_.ticks[d][static_cast<std::size_t>(tick_of_stage_0_[place] + behind)][part];
}

const AttentionTimes& StepCosts::attention_times(Direction direction, const Place& place,
                                                 std::size_t part) const {
  const MicroBatchAttention& attention =
      attention_of(direction, place.replica, place.virtual_stage, place.micro_batch, part);
  return direction == Direction::kForward ? attention.forward : attention.backward;
}

PhaseCost StepCosts::phase(Direction direction, std::int32_t replica, std::int32_t virtual_stage,
                           std::int32_t micro_batch) const {
  const Place place{replica, virtual_stage, micro_batch};
  PhaseCost cost = layers_cost(direction, place, has_head(place));
  if (direction == Direction::kBackward && step_.options.recompute == Recompute::kFull) {
    // Recomputes only the layers' forward: logits are kept.
    cost.recompute_us += layers_cost(Direction::kForward, place, false).total_us();
  }
  if (step_.options.optimizer == OptimizerShards::kFsdp) {
    cost.weights_us = fsdp_us(direction, place);
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
  const double flow = std::min(port, cluster.flow_limit_gbytes_per_s().value_or(port));
  return cluster.inter_latency_us + bytes / (flow * kBytesPerUsAtOneGbyte);
}

}  // namespace contextile
