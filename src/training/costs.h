// Costs of the pieces of a training step: layers of a stage for one micro-batch, collectives,
// weights.
#pragma once

#include <cstdint>
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
  double recompute_us = 0;
  double weights_us = 0;  // kFsdp: collectives that are not hidden

  [[nodiscard]] double total_us() const {
    return linear_us + attention_us + exposed_us + tensor_parallel_us + recompute_us + weights_us;
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

class StepCosts {
 public:
  // Checks that the parts of the step fit each other.
  explicit StepCosts(const TrainingStep& step);

  // Layers of a virtual stage. They are split evenly; if they do not divide, the first stages have
  // one more.
  [[nodiscard]] std::int32_t layers_of(std::int32_t virtual_stage) const;
  [[nodiscard]] std::int32_t layers_of_stage(std::int32_t stage) const;
  // Parameters on one device of a stage.
  [[nodiscard]] std::int64_t weights_of_stage(std::int32_t stage) const;

  [[nodiscard]] PhaseCost phase(Direction direction, std::int32_t replica,
                                std::int32_t virtual_stage, std::int32_t micro_batch) const;
  // How much longer a layer of a phase takes if a collective that alone takes `collective_us` runs
  // during each one. It has the links for itself between two attentions, and shares them with
  // attention.
  [[nodiscard]] double layer_delay_us(Direction direction, std::int32_t replica,
                                      std::int32_t virtual_stage, std::int32_t micro_batch,
                                      double collective_us) const;
  // Time of a collective of one layer's weights or gradients of a stage, of `bytes` each.
  [[nodiscard]] double weights_us(Collective op, double bytes, std::int32_t stage) const;
  // Time of a transfer from virtual stage `boundary` to the next one, one way.
  [[nodiscard]] double transfer_us(std::int32_t boundary, const MicroBatchWork& micro_batch) const;

  // Attention of one part: of the micro-batch itself, or with kSamePhase of its tick.
  [[nodiscard]] const MicroBatchAttention& attention_of(Direction direction, std::int32_t replica,
                                                        std::int32_t virtual_stage,
                                                        std::int32_t micro_batch,
                                                        std::size_t part) const;

  // The group of the ranks that hold the same weights.
  [[nodiscard]] const GroupCollectives& gradient_group() const { return gradient_group_; }
  [[nodiscard]] double optimizer_us(std::int32_t stage) const;
  [[nodiscard]] const ModelWeights& weights() const { return weights_; }

 private:
  // Work outside attention.
  struct OutsideCost {
    double linear_us = 0;
    double tensor_parallel_us = 0;
    double recompute_us = 0;

    [[nodiscard]] double total_us() const { return linear_us + tensor_parallel_us + recompute_us; }
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
  [[nodiscard]] LayerCost layer_cost(Direction direction, std::int64_t tokens) const;
  [[nodiscard]] OutsideCost head_cost(Direction direction, std::int64_t tokens) const;
  // Costs before the first of `layers` attentions, between them and after the last one.
  [[nodiscard]] GapCost gaps_cost(Direction direction, const RoundShares& round,
                                  std::int32_t layers, bool has_head) const;
  [[nodiscard]] PhaseCost layers_cost(Direction direction, const Place& place, bool has_head) const;
  // Collectives of the weights of a phase that nothing hides, with kFsdp.
  [[nodiscard]] double fsdp_us(Direction direction, const Place& place) const;
  [[nodiscard]] const AttentionTimes& attention_times(Direction direction, const Place& place,
                                                      std::size_t part) const;
  // Time that two alternating parts wait for transfers.
  [[nodiscard]] double ping_pong_us(Direction direction, const Place& place) const;
  [[nodiscard]] double linear_us(double flops_per_token, std::int64_t tokens) const;
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
  bool gradients_leave_node_ = false;
};

}  // namespace contextile
