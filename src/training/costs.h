// Costs of the pieces of a training step: layers of a stage for one micro-batch, collectives,
// weights.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "contextile/advanced/training.h"
#include "contextile/cluster.h"

namespace contextile {

inline constexpr double kActivationBytes = 2;         // of an element, bf16
inline constexpr double kWeightBytes = 2;             // bf16
inline constexpr double kGradientBytes = 4;           // fp32
inline constexpr double kOptimizerBytes = 12;         // fp32 master weight, two moments
inline constexpr double kBytesPerUsAtOneGbyte = 1e3;  // 1 GB/s

// A stage's work on one micro-batch in one direction, µs.
struct PhaseCost {
  double linear_us = 0;
  double attention_us = 0;
  double exposed_us = 0;
  double tensor_parallel_us = 0;
  double expert_parallel_us = 0;
  double recompute_us = 0;
  double weights_us = 0;  // kFsdp: collectives that are not hidden

  [[nodiscard]] double total_us() const {
    return linear_us + attention_us + exposed_us + tensor_parallel_us + expert_parallel_us +
           recompute_us + weights_us;
  }
};

// A collective over `ranks` in a ring: latency of every hop, and the bytes through one port.
struct RingCost {
  std::int32_t ranks = 1;
  double latency_us = 0;
  double gbytes_per_s = 1;

  // Time of an all-gather to, or a reduce-scatter of, `bytes` on every rank.
  [[nodiscard]] double us(double bytes) const;
};

// Collectives of one of the groups into which a cluster's devices are split. An operation whose
// cost Cluster::collectives has takes that time, another one that of the ring.
class GroupCollectives {
 public:
  GroupCollectives() = default;
  // The group is on so many nodes. `groups_per_node` groups have devices on the same nodes and run
  // their collectives at the same time, so that they share the NICs.
  GroupCollectives(const Cluster& cluster, const RingCost& ring, std::int32_t nodes = 1,
                   std::int32_t groups_per_node = 1);

  [[nodiscard]] std::int32_t ranks() const { return ring_.ranks; }
  // Time of all-gathers, reduce-scatters and all-reduces, for the bytes of CollectiveCost. An
  // all-reduce without a cost is a reduce-scatter and an all-gather.
  [[nodiscard]] double us(Collective op, double bytes) const;

 private:
  RingCost ring_;
  std::vector<CollectiveCost> measured_;
  double groups_ = 1;  // that share links with this one
};

// The ranks of a step that hold the same weights, and the ring around them.
struct GradientRing {
  RingCost cost;
  std::int32_t nodes = 1;
};
[[nodiscard]] GradientRing gradient_ring(const Cluster& cluster, const ParallelSizes& sizes,
                                         double collective_share);

// Parameters on one device, by the ranks that hold the same ones.
struct DeviceWeights {
  std::int64_t common = 0;   // held by CP x DP ranks: all but routed experts, divided by TP
  std::int64_t experts = 0;  // routed experts, whole, held by every ep-th device

  [[nodiscard]] std::int64_t total() const { return common + experts; }
};

// The devices among which the tokens of one expert-parallel group are exchanged.
class ExpertGroup {
 public:
  ExpertGroup() = default;
  // Links reach `collective_share` of their rates, unless the cluster has a measured all-to-all.
  ExpertGroup(const Cluster& cluster, std::int32_t ep, double collective_share);

  // Time of an all-to-all of `bytes` of every device, an equal part to each device of the group,
  // itself included. All groups run theirs at the same time. Without a measured cost, what stays in
  // the node goes through the device's port while the rest goes through its share of the node's
  // NICs, and the slower one decides.
  [[nodiscard]] double us(double bytes) const;

 private:
  std::int32_t ranks_ = 1;
  std::int32_t ranks_in_node_ = 1;
  double latency_us_ = 0;
  double intra_gbytes_per_s_ = 1;
  double inter_gbytes_per_s_ = 1;  // of a device
  std::optional<CollectiveCost> measured_;
};

// The collectives of the devices of a stage that hold the same experts: every ep-th of them.
[[nodiscard]] GroupCollectives same_experts_group(const Cluster& cluster,
                                                  const ParallelSizes& sizes,
                                                  double collective_share);

// Elements of the feed-forward that one token meets in a layer on average, if `share` of the
// layers have experts.
struct TokenFfn {
  double inner = 0;       // between its matrices
  double dispatched = 0;  // of its inputs that are sent to routed experts
};
[[nodiscard]] TokenFfn token_ffn(const ModelSpec& model, double share);

class StepCosts {
 public:
  // Checks that the parts of the step fit each other.
  explicit StepCosts(const TrainingStep& step);

  // Layers of a virtual stage. They are split evenly; if they do not divide, the first stages have
  // one more.
  [[nodiscard]] std::int32_t layers_of(std::int32_t virtual_stage) const;
  [[nodiscard]] std::int32_t layers_of_stage(std::int32_t stage) const;
  // The same of layers that have experts: those behind the model's first dense_layers.
  [[nodiscard]] std::int32_t expert_layers_of(std::int32_t virtual_stage) const;
  [[nodiscard]] std::int32_t expert_layers_of_stage(std::int32_t stage) const;
  // Parameters on one device of a stage. With tied embeddings the first and the last stage both
  // have the matrix.
  [[nodiscard]] DeviceWeights weights_of_stage(std::int32_t stage) const;
  // The same of the largest layer of a stage.
  [[nodiscard]] DeviceWeights largest_layer(std::int32_t stage) const;

  [[nodiscard]] PhaseCost phase(Direction direction, std::int32_t replica,
                                std::int32_t virtual_stage, std::int32_t micro_batch) const;
  // How much longer a layer of a phase takes if a collective that alone takes `collective_us` runs
  // during each one. It has the links for itself between two attentions, and shares them with
  // attention.
  [[nodiscard]] double layer_delay_us(Direction direction, std::int32_t replica,
                                      std::int32_t virtual_stage, std::int32_t micro_batch,
                                      double collective_us) const;
  // Time of a collective of all weights or gradients of a stage, of `bytes` each: first of those
  // that all ranks have, then of experts.
  [[nodiscard]] double stage_weights_us(Collective op, double bytes, std::int32_t stage) const {
    return weights_us(op, bytes, weights_of_stage(stage), 1);
  }
  // The same of one of the stage's layers, the mean.
  [[nodiscard]] double layer_weights_us(Collective op, double bytes, std::int32_t stage) const {
    return weights_us(op, bytes, weights_of_stage(stage), layers_of_stage(stage));
  }
  // Time of a transfer from virtual stage `boundary` to the next one, one way.
  [[nodiscard]] double transfer_us(std::int32_t boundary, const MicroBatchWork& micro_batch) const;

  // Attention of one part: of the micro-batch itself, or with kSamePhase of its tick.
  [[nodiscard]] const MicroBatchAttention& attention_of(Direction direction, std::int32_t replica,
                                                        std::int32_t virtual_stage,
                                                        std::int32_t micro_batch,
                                                        std::size_t part) const;

  // The number of ranks that hold the same weights, and of those that hold the same experts.
  [[nodiscard]] std::int32_t gradient_ranks() const { return gradient_group_.ranks(); }
  [[nodiscard]] std::int32_t expert_gradient_ranks() const { return same_experts_group_.ranks(); }
  [[nodiscard]] double optimizer_us(std::int32_t stage) const;

 private:
  // Work outside attention.
  struct OutsideCost {
    double linear_us = 0;
    double tensor_parallel_us = 0;
    double expert_parallel_us = 0;
    double recompute_us = 0;

    [[nodiscard]] double total_us() const {
      return linear_us + tensor_parallel_us + expert_parallel_us + recompute_us;
    }
    OutsideCost& add(const OutsideCost& other, double times = 1);
  };
  // Work of a device before and after the attention of a layer, in the order of the direction.
  struct LayerCost {
    OutsideCost before;
    OutsideCost after;
  };
  // Work between attentions, on devices that others wait for: their own work, and how long before
  // the end of attention they began with it.
  struct GapCost {
    OutsideCost work;
    double early_us = 0;

    [[nodiscard]] double total_us() const { return work.total_us() - early_us; }
  };
  // A micro-batch in a stage.
  struct Place {
    std::int32_t replica = 0;
    std::int32_t virtual_stage = 0;
    std::int32_t micro_batch = 0;
  };

  void check() const;
  [[nodiscard]] const MicroBatchWork& work_of(const Place& place) const;
  [[nodiscard]] bool has_head(const Place& place) const;
  // Returns the cost of the average layer of a virtual stage.
  [[nodiscard]] LayerCost layer_cost(Direction direction, const Place& place,
                                     std::int64_t tokens) const;
  [[nodiscard]] OutsideCost head_cost(Direction direction, std::int64_t tokens) const;
  // Costs before the first attention of a virtual stage, between them and after the last one.
  [[nodiscard]] GapCost gaps_cost(Direction direction, const Place& place, const RoundShares& round,
                                  bool has_head) const;
  [[nodiscard]] PhaseCost layers_cost(Direction direction, const Place& place, bool has_head) const;
  // Collectives of the weights of a phase that nothing hides, with kFsdp.
  [[nodiscard]] double fsdp_us(Direction direction, const Place& place) const;
  [[nodiscard]] const AttentionTimes& attention_times(Direction direction, const Place& place,
                                                      std::size_t part) const;
  // Time that two alternating parts wait for transfers.
  [[nodiscard]] double ping_pong_us(Direction direction, const Place& place) const;
  [[nodiscard]] double linear_us(double flops_per_token, std::int64_t tokens) const;
  // Parameters of one layer on one device.
  [[nodiscard]] DeviceWeights layer_weights(std::int64_t common, bool experts) const;
  // Time of a collective of one of `parts` of weights.
  [[nodiscard]] double weights_us(Collective op, double bytes, const DeviceWeights& weights,
                                  double parts) const;
  // The share of a virtual stage's layers that have experts.
  [[nodiscard]] double expert_share(std::int32_t virtual_stage) const {
    return static_cast<double>(expert_layers_of(virtual_stage)) / layers_of(virtual_stage);
  }
  // Time in which tokens are sent to experts and back in the average layer of a virtual stage.
  [[nodiscard]] double expert_parallel_us(std::int32_t virtual_stage, std::int64_t tokens) const;
  // Exposed time of one collective over the TP group.
  [[nodiscard]] double tensor_parallel_us(Collective op, std::int64_t tokens) const;
  [[nodiscard]] double elementwise_us(double elements_per_token, std::int64_t tokens) const;

  // Index of a chunk of a micro-batch among the forwards of a stage.
  [[nodiscard]] std::size_t place_in_order(std::int32_t micro_batch, std::int32_t chunk) const {
    return static_cast<std::size_t>(micro_batch * step_.pipeline.chunks + chunk);
  }

  const TrainingStep& step_;
  // With kSamePhase: number of the tick in which stage 0 runs a forward, by place_in_order.
  std::vector<std::int32_t> tick_of_stage_0_;
  ModelWeights weights_;
  LinearFlops flops_;
  GroupCollectives tensor_group_;
  GroupCollectives gradient_group_;
  GroupCollectives same_experts_group_;
  ExpertGroup expert_group_;
  bool gradients_leave_node_ = false;
};

}  // namespace contextile
