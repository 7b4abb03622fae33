// Costs of experts that are spread over devices.
#include <algorithm>
#include <cstdint>

#include "training/costs.h"

namespace contextile {

ExpertGroup::ExpertGroup(const Cluster& cluster, std::int32_t ep, double collective_share)
    : ranks_(ep),
      ranks_in_node_(std::min(ep, cluster.devices_per_node)),
      latency_us_(ep > ranks_in_node_ ? cluster.inter_latency_us : cluster.intra_latency_us),
      intra_gbytes_per_s_(collective_share * cluster.intra_gbytes_per_s),
      inter_gbytes_per_s_(collective_share *
                          std::min(cluster.intra_gbytes_per_s, cluster.inter_gbytes_per_s_per_node /
                                                                   cluster.devices_per_node)) {
  if (ep > 1) {
    measured_ = cluster.collective_cost(Collective::kAllToAll, ep, ep / ranks_in_node_);
  }
}

double ExpertGroup::us(double bytes) const {
  if (ranks_ <= 1) return 0;
  if (measured_) return measured_->us(bytes);
  const double part = bytes / ranks_;
  const double inside_us =
      (ranks_in_node_ - 1) * part / (intra_gbytes_per_s_ * kBytesPerUsAtOneGbyte);
  const double outside_us =
      (ranks_ - ranks_in_node_) * part / (inter_gbytes_per_s_ * kBytesPerUsAtOneGbyte);
  return latency_us_ + std::max(inside_us, outside_us);
}

GroupCollectives same_experts_group(const Cluster& cluster, const ParallelSizes& sizes,
                                    double collective_share) {
  const std::int64_t devices = sizes.stage_devices();
  const std::int32_t per_node = cluster.devices_per_node;
  const auto ranks = static_cast<std::int32_t>(devices / sizes.ep);
  RingCost ring{ranks, cluster.intra_latency_us, collective_share * cluster.intra_gbytes_per_s};
  if (devices <= per_node) return {cluster, ring};
  // Devices of a node belong to as many groups, up to EP. Each group crosses the node's NICs once.
  const std::int32_t groups = std::min(sizes.ep, per_node);
  ring.latency_us = cluster.inter_latency_us;
  ring.gbytes_per_s = collective_share * std::min(cluster.intra_gbytes_per_s,
                                                  cluster.inter_gbytes_per_s_per_node / groups);
  // With EP over several nodes a group has one device on each of fewer nodes.
  const std::int64_t nodes = std::min<std::int64_t>(devices / per_node, ranks);
  return {cluster, ring, static_cast<std::int32_t>(nodes), groups};
}

TokenFfn token_ffn(const ModelSpec& model, double share) {
  const ModelExperts& experts = model.experts;
  TokenFfn ffn;
  ffn.inner = (1 - share) * model.ffn;
  if (share == 0) return ffn;
  ffn.inner += share * (static_cast<double>(experts.per_token) * experts.ffn + experts.shared_ffn);
  ffn.dispatched = share * experts.per_token * static_cast<double>(model.hidden);
  return ffn;
}

std::int32_t StepCosts::expert_layers_of(std::int32_t virtual_stage) const {
  if (!step_.model.has_experts()) return 0;
  const std::int32_t stages = step_.pipeline.virtual_stages();
  const std::int32_t end = (virtual_stage + 1) * (step_.model.layers / stages) +
                           std::min(virtual_stage + 1, step_.model.layers % stages);
  return std::clamp(end - step_.model.experts.dense_layers, 0, layers_of(virtual_stage));
}

std::int32_t StepCosts::expert_layers_of_stage(std::int32_t stage) const {
  std::int32_t layers = 0;
  for (std::int32_t c = 0; c < step_.pipeline.chunks; ++c) {
    layers += expert_layers_of(c * step_.pipeline.stages + stage);
  }
  return layers;
}

// A token is dispatched as often as it has experts, and as many results are combined. TP ranks send
// their shares of the tokens.
double StepCosts::expert_parallel_us(std::int32_t virtual_stage, std::int64_t tokens) const {
  constexpr double kTimes = 2;  // dispatch and combine
  if (step_.sizes.ep == 1) return 0;
  const ModelExperts& experts = step_.model.experts;
  const double elements =
      static_cast<double>(tokens) * experts.per_token * step_.model.hidden / step_.sizes.tp;
  return kTimes * expert_share(virtual_stage) * expert_group_.us(elements * kActivationBytes);
}

}  // namespace contextile
