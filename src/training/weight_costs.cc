// Costs of the weights of a step: their collectives, during the layers or not, and the optimizer.
#include <algorithm>
#include <cstddef>
#include <vector>

#include "training/costs.h"

namespace contextile {

double RingCost::us(double bytes) const {
  if (ranks <= 1) return 0;
  return (ranks - 1) * (latency_us + bytes / ranks / (gbytes_per_s * kBytesPerUsAtOneGbyte));
}

GroupCollectives::GroupCollectives(const Cluster& cluster, const RingCost& ring, std::int32_t nodes,
                                   std::int32_t groups_per_node)
    : ring_(ring), groups_(nodes > 1 ? groups_per_node : 1) {
  for (const Collective op : kCollectives) {
    if (const auto cost = cluster.collective_cost(op, ring.ranks, nodes))
      measured_.push_back(*cost);
  }
}

double GroupCollectives::us(Collective op, double bytes) const {
  if (ring_.ranks <= 1) return 0;
  const auto found = std::ranges::find(measured_, op, &CollectiveCost::op);
  if (found != measured_.end()) return found->us(groups_ * bytes);
  if (op != Collective::kAllReduce) return ring_.us(bytes);
  return us(Collective::kReduceScatter, bytes) + us(Collective::kAllGather, bytes);
}

GradientRing gradient_ring(const Cluster& cluster, const ParallelSizes& sizes,
                           double collective_share) {
  const std::int32_t tp = sizes.tp;
  const std::int32_t ranks_per_node = cluster.devices_per_node / tp;
  GradientRing ring;
  ring.cost = {sizes.cp * sizes.dp, cluster.intra_latency_us,
               collective_share * cluster.intra_gbytes_per_s};
  ring.nodes = (ring.cost.ranks + ranks_per_node - 1) / ranks_per_node;
  if (ring.nodes == 1) return ring;
  // A ring for each TP rank crosses every node's NICs once.
  ring.cost.latency_us = cluster.inter_latency_us;
  ring.cost.gbytes_per_s = collective_share * std::min(cluster.intra_gbytes_per_s,
                                                       cluster.inter_gbytes_per_s_per_node / tp);
  return ring;
}

CollectiveTraffic gradient_traffic(const Cluster& cluster, const ParallelSizes& sizes,
                                   const IterationOptions& options) {
  const GradientRing ring = gradient_ring(cluster, sizes, options.collective_share);
  if (options.gradient_overlap == GradientOverlap::kOff || ring.cost.ranks <= 1) return {};
  return {.device_gbytes_per_s = ring.cost.gbytes_per_s,
          .node_gbytes_per_s = ring.nodes > 1 ? ring.cost.gbytes_per_s : 0};
}

// Every TP rank has its part of a layer, and each EP rank its experts.
DeviceWeights StepCosts::layer_weights(std::int64_t common, bool experts) const {
  return {(common + step_.sizes.tp - 1) / step_.sizes.tp,
          experts ? weights_.experts / step_.sizes.ep : 0};
}

DeviceWeights StepCosts::weights_of_stage(std::int32_t stage) const {
  const std::int32_t expert_layers = expert_layers_of_stage(stage);
  const bool last = stage == step_.pipeline.stages - 1;
  std::int64_t common = (layers_of_stage(stage) - expert_layers) * weights_.layer +
                        expert_layers * weights_.expert_layer;
  if (stage == 0) common += weights_.embedding;
  if (last) common += weights_.head;
  if (last && stage > 0 && step_.model.tied_embeddings) common += weights_.embedding;
  DeviceWeights weights = layer_weights(common, expert_layers > 0);
  weights.experts *= expert_layers;
  return weights;
}

DeviceWeights StepCosts::largest_layer(std::int32_t stage) const {
  const std::int32_t expert_layers = expert_layers_of_stage(stage);
  const DeviceWeights with = layer_weights(weights_.expert_layer, true);
  const DeviceWeights without = layer_weights(weights_.layer, false);
  if (expert_layers == 0) return without;
  if (expert_layers == layers_of_stage(stage)) return with;
  return with.total() > without.total() ? with : without;
}

double StepCosts::weights_us(Collective op, double bytes, const DeviceWeights& weights,
                             double parts) const {
  const double us = gradient_group_.us(op, bytes * static_cast<double>(weights.common) / parts);
  if (weights.experts == 0) return us;
  return us + same_experts_group_.us(op, bytes * static_cast<double>(weights.experts) / parts);
}

double StepCosts::layer_delay_us(Direction direction, std::int32_t replica,
                                 std::int32_t virtual_stage, std::int32_t micro_batch,
                                 double collective_us) const {
  const Place place{replica, virtual_stage, micro_batch};
  const PhaseCost cost = layers_cost(direction, place, false);
  // TP's collectives use the links inside the node, as those of weights do unless they leave it.
  double free_us = cost.linear_us + cost.recompute_us;
  if (gradients_leave_node_) free_us += cost.tensor_parallel_us;
  AttentionTimes attention{.shared_us = SharedTimesOfLoads{}};
  const std::size_t parts = work_of(place).parts.size();
  for (std::size_t i = 0; i < parts; ++i) attention += attention_times(direction, place, i);
  if (parts == 1) {
    // Devices that end attention early have begun with the work that follows it.
    free_us -= layers_of(virtual_stage) * attention.time_us - cost.attention_us - cost.exposed_us;
  }
  if (direction == Direction::kBackward && step_.options.recompute == Recompute::kFull) {
    const PhaseCost again = layers_cost(Direction::kForward, place, false);
    free_us += again.linear_us + again.attention_us;
  }
  const double left_us = collective_us - std::max(0.0, free_us) / layers_of(virtual_stage);
  return left_us > 0 ? attention.later_us(left_us) : 0;
}

double StepCosts::fsdp_us(Direction direction, const Place& place) const {
  const std::int32_t stage = place.virtual_stage % step_.pipeline.stages;
  const std::int32_t layers = layers_of(place.virtual_stage);
  const double gather_us = layer_weights_us(Collective::kAllGather, kWeightBytes, stage);
  const bool forward = direction == Direction::kForward;
  const double scatter_us =
      forward ? 0 : layer_weights_us(Collective::kReduceScatter, kGradientBytes, stage);
  const double layer_us = gather_us + scatter_us;
  if (step_.options.gradient_overlap == GradientOverlap::kOff) return layers * layer_us;
  // The first layer waits for its weights, and keeps them until backward, which it is the first of.
  // The last gradients have no layer left to hide them, but the next micro-batch.
  const bool last = place.micro_batch + 1 == step_.pipeline.micro_batches;
  const double alone_us = forward ? gather_us : last ? scatter_us : 0;
  return alone_us + (layers - 1) * layer_delay_us(direction, place.replica, place.virtual_stage,
                                                  place.micro_batch, layer_us);
}

double StepCosts::optimizer_us(std::int32_t stage) const {
  // Reads the gradient, reads and writes master weight and moments, writes the weight.
  constexpr double kBytes = kGradientBytes + 2 * kOptimizerBytes + kWeightBytes;
  const bool sharded = step_.options.optimizer != OptimizerShards::kNone;
  const DeviceWeights weights = weights_of_stage(stage);
  const double common = static_cast<double>(weights.common) / (sharded ? gradient_ranks() : 1);
  const double experts =
      static_cast<double>(weights.experts) / (sharded ? expert_gradient_ranks() : 1);
  return (common + experts) * kBytes / (step_.cluster.memory_gbytes_per_s * kBytesPerUsAtOneGbyte);
}

}  // namespace contextile
