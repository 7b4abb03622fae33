#include "strategy/axp/presets.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "strategy/axp/axp.h"
#include "strategy/options.h"

namespace contextile {
namespace {

enum class GatherAlgorithm : std::uint8_t { kRing, kDirect };
enum class Switch : std::uint8_t { kOff, kOn };

struct AxpOptions {
  std::int32_t head_parallel = 0;  // 0: chosen from cluster and heads
  GatherAlgorithm algorithm = GatherAlgorithm::kRing;
  TokenLayout layout = TokenLayout::kZigzag;
  Switch padded = Switch::kOff;
  std::int32_t grid_heads = 1;  // double_ring's head parallelism; 0: as hybrid's
  std::int32_t inner_ring = 0;  // 0: the ranks of a node
};

const std::vector<std::string>& layout_names() {  // in the order of TokenLayout
  static const std::vector<std::string> kNames = {"zigzag", "contiguous", "per_document",
                                                  "per_sequence"};
  return kNames;
}

// What the presets have in common; each fixes layout, movement and head parallelism, or exposes
// them.
class AxpStrategy : public Strategy {
 public:
  AxpStrategy(std::string_view name, std::string_view summary) : name_(name), summary_(summary) {}

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] std::string_view summary() const override { return summary_; }
  [[nodiscard]] std::vector<OptionSpec> options() const override { return table_.specs(); }

  [[nodiscard]] std::optional<std::string> unsupported(
      const Workload& workload, const Cluster& cluster,
      const StrategyRequest& request) const override {
    const AxpOptions options = table_.parse(name_, request.options);
    const std::int32_t heads = head_parallel(workload, cluster, options);
    if (heads > workload.shape.kv_heads) {
      return fmt::format(
          "splits heads over {} ranks: expected at most as many as KV heads ({}), found {}", heads,
          workload.shape.kv_heads, heads);
    }
    if (workload.shape.kv_heads % heads != 0) {
      return fmt::format("splits heads over {} ranks: expected a divisor of {} KV heads", heads,
                         workload.shape.kv_heads);
    }
    if (cluster.num_devices() % heads != 0) {
      return fmt::format("splits heads over {} ranks: expected a divisor of {} devices", heads,
                         cluster.num_devices());
    }
    return std::nullopt;
  }

  [[nodiscard]] Arrangement arrange(const Workload& workload, const Cluster& cluster,
                                    const StrategyRequest& request) const override {
    if (const auto reason = unsupported(workload, cluster, request)) {
      fail_argument("strategy {}: {}", name_, *reason);
    }
    AxpOptions options = table_.parse(name_, request.options);
    fill_defaults(workload, cluster, options);
    AxpConfig config;
    config.head_parallel = options.head_parallel;
    config.context_parallel = cluster.num_devices() / options.head_parallel;
    config.layout = layout(options);
    config.movement = movement(options);
    config.inner_ring = options.inner_ring;
    config.block_size = request.block_size;
    config.backward = request.backward;
    Arrangement arrangement = arrange_axp(workload, cluster, config);
    arrangement.strategy = name_;
    arrangement.options = table_.print(options);
    if (request.block_size) {
      arrangement.options["block_size"] = fmt::format("{}", *request.block_size);
    }
    arrangement.partial_wire = request.wire.value_or(original_wire(workload));
    if (options.padded == Switch::kOn) {
      const PaddingFactors factors =
          padding_factors(workload, config.layout, cluster.num_devices());
      arrangement.padded_bytes_factor = factors.tokens;
      arrangement.padded_pairs_factor = factors.pairs;
    }
    return arrangement;
  }

 protected:
  [[nodiscard]] virtual std::int32_t head_parallel(const Workload&, const Cluster&,
                                                   const AxpOptions&) const {
    return 1;
  }
  virtual void fill_defaults(const Workload& workload, const Cluster& cluster,
                             AxpOptions& options) const {
    options.head_parallel = head_parallel(workload, cluster, options);
  }
  [[nodiscard]] virtual TokenLayout layout(const AxpOptions& options) const {
    return options.layout;
  }
  [[nodiscard]] virtual KvMovement movement(const AxpOptions&) const { return KvMovement::kRing; }
  // TransformerEngine sends dKV in the activation dtype.
  [[nodiscard]] virtual Dtype original_wire(const Workload& workload) const {
    return workload.shape.dtype;
  }

  void add_padded_option() {
    table_.choice(
        "padded", &AxpOptions::padded, {"off", "on"},
        "charge the original's padding of sequences to whole chunks in statistics: off, on");
  }
  OptionTable<AxpOptions> table_;

 private:
  std::string name_;
  std::string_view summary_;
};

// Source: Liu et al., Ring Attention (2023); as ring-flash-attention runs it on packed batches.
// Steps: R; KV one hop a step, overlapped; backward reversed, dKV one step behind.
// Bytes sent per rank: forward ·kv, backward ·(kv + dkv), of T/R tokens; dKV in fp32.
// Memory: two KV buffers. Loses under causal masks (the last rank works R times longer than the
// first) and whenever documents are short: everything goes round the whole ring.
class RingStrategy : public AxpStrategy {
 public:
  RingStrategy()
      : AxpStrategy("ring",
                    "RingAttention: contiguous slices of every sequence, KV round the ring") {
    add_padded_option();
  }

 protected:
  [[nodiscard]] TokenLayout layout(const AxpOptions&) const override {
    return TokenLayout::kContiguous;
  }
  [[nodiscard]] Dtype original_wire(const Workload&) const override { return Dtype::kF32; }
};

// Source: Megatron-LM / TransformerEngine p2p context parallelism; Striped and zigzag ring
// attention. Steps, bytes and memory as `ring`, dKV in the activation dtype. Balanced under the
// causal mask of every document, if documents are long enough to be cut 2R times. Loses on short
// documents and sparse masks: most of what travels is read by nobody.
class ZigzagStrategy : public AxpStrategy {
 public:
  ZigzagStrategy()
      : AxpStrategy("zigzag",
                    "Megatron/TransformerEngine p2p: chunks r and 2R-1-r of every sequence, "
                    "KV round the ring") {
    add_padded_option();
  }
};

// Source: Jacobs et al., DeepSpeed Ulysses (2023); TransformerEngine a2a.
// Steps: all-to-all of Q, K, V; attention on H/R heads of the whole batch; all-to-all of O;
// backward dO in, dQ, dK, dV out. Bytes sent per rank: forward and backward (R-1)/R · (q + kv + o)
// of T/R tokens. Memory: Q, K, V of the whole batch for 1/R of the heads, retained for backward.
// Loses by exposing all communication, and cannot use more ranks than KV heads.
class UlyssesStrategy : public AxpStrategy {
 public:
  UlyssesStrategy()
      : AxpStrategy("ulysses", "DeepSpeed Ulysses: heads split over all ranks by all-to-all") {
    table_.choice("layout", &AxpOptions::layout, layout_names(),
                  "tokens of each rank: zigzag, contiguous, per_document, per_sequence");
    add_padded_option();
  }

 protected:
  [[nodiscard]] std::int32_t head_parallel(const Workload&, const Cluster& cluster,
                                           const AxpOptions&) const override {
    return cluster.num_devices();
  }
};

// Source: TransformerEngine a2a+p2p; Fang and Zhao, USP (2024); LoongTrain's head x context grid.
// Steps: ulysses inside A consecutive ranks, zigzag ring over P = R/A positions of stride A.
// Bytes sent per rank: (A-1)/A · (q + kv + o) each way, plus (P-1)·kv (backward 2x) of A·T/R tokens
// and 1/A of the heads. Memory: retained Q, K, V plus two ring buffers. Loses where KV heads are
// few (A small).
class HybridStrategy : public AxpStrategy {
 public:
  HybridStrategy()
      : AxpStrategy("hybrid",
                    "TransformerEngine a2a+p2p, USP: heads split inside A ranks, zigzag "
                    "ring across them") {
    table_.integer("A", &AxpOptions::head_parallel, 0, 1 << 16,
                   "ranks that split heads; 0: the largest divisor of the KV heads that divides a "
                   "node's devices");
    add_padded_option();
  }

 protected:
  [[nodiscard]] std::int32_t head_parallel(const Workload& workload, const Cluster& cluster,
                                           const AxpOptions& options) const override {
    if (options.head_parallel > 0) return options.head_parallel;
    return std::gcd(workload.shape.kv_heads, cluster.devices_per_node);
  }
};

// Source: Gu et al., LoongTrain (2024): 2D attention, Double-Ring-Attention. Steps: as hybrid, but
// the P positions are inner rings of `inner` positions joined by an outer ring: keys go round the
// inner ring while the hop to the next inner ring has the whole round. Bytes sent per rank as
// hybrid; of a unit's P-1 hops only P/inner-1 leave the inner ring; dKV in fp32. Memory: one more
// ring buffer than hybrid. Loses like zigzag: everything goes to everybody.
class DoubleRingStrategy : public AxpStrategy {
 public:
  DoubleRingStrategy()
      : AxpStrategy("double_ring",
                    "LoongTrain: heads split inside A ranks, inner zigzag rings joined by an outer "
                    "ring") {
    table_.integer("inner", &AxpOptions::inner_ring, 0, 1 << 16,
                   "positions of an inner ring, divides devices / head_parallel; 0: as many as a "
                   "node has");
    table_.integer("head_parallel", &AxpOptions::grid_heads, 0, 1 << 16,
                   "ranks that split heads; 0: as hybrid chooses");
    add_padded_option();
  }

  [[nodiscard]] std::optional<std::string> unsupported(
      const Workload& workload, const Cluster& cluster,
      const StrategyRequest& request) const override {
    if (auto reason = AxpStrategy::unsupported(workload, cluster, request)) return reason;
    AxpOptions options = table_.parse(name(), request.options);
    fill_defaults(workload, cluster, options);
    const std::int32_t positions = cluster.num_devices() / options.head_parallel;
    if (positions % options.inner_ring == 0) return std::nullopt;
    return fmt::format("nests rings: expected an inner ring of a divisor of {} positions, found {}",
                       positions, options.inner_ring);
  }

 protected:
  [[nodiscard]] std::int32_t head_parallel(const Workload& workload, const Cluster& cluster,
                                           const AxpOptions& options) const override {
    if (options.grid_heads > 0) return options.grid_heads;
    return std::gcd(workload.shape.kv_heads, cluster.devices_per_node);
  }
  void fill_defaults(const Workload& workload, const Cluster& cluster,
                     AxpOptions& options) const override {
    options.head_parallel = options.grid_heads = head_parallel(workload, cluster, options);
    if (options.inner_ring > 0) return;
    options.inner_ring = std::gcd(cluster.num_devices() / options.head_parallel,
                                  std::max(1, cluster.devices_per_node / options.head_parallel));
  }
  // Built on ring-flash-attention, whose dKV travel in fp32.
  [[nodiscard]] Dtype original_wire(const Workload&) const override { return Dtype::kF32; }
};

// Source: TransformerEngine all_gather, Llama 3 (2024) §3.3.2, WLB-LLM (2025) per-document
// sharding. Steps: all KV gathered before compute (R-1 ring hops, or every owner straight to
// everybody), then one attention; backward gathers again and reduce-scatters dKV. Bytes sent per
// rank as zigzag. Memory: KV (and in backward dKV) of the whole batch on every rank. Loses by
// exposing all communication, and on memory.
class AllGatherStrategy : public AxpStrategy {
 public:
  AllGatherStrategy()
      : AxpStrategy("all_gather",
                    "TransformerEngine/Llama 3/WLB-LLM: all KV gathered before compute") {
    table_.choice("algorithm", &AxpOptions::algorithm, {"ring", "direct"},
                  "ring: hop by hop, a node boundary crossed once per node; direct: every owner to "
                  "everybody");
    table_.choice("layout", &AxpOptions::layout, layout_names(),
                  "tokens of each rank: zigzag, contiguous, per_document, per_sequence");
    add_padded_option();
  }

 protected:
  [[nodiscard]] KvMovement movement(const AxpOptions& options) const override {
    return options.algorithm == GatherAlgorithm::kRing ? KvMovement::kGatherRing
                                                       : KvMovement::kGatherDirect;
  }
};

}  // namespace

const Strategy& ring_strategy() {
  static const RingStrategy kStrategy;
  return kStrategy;
}
const Strategy& zigzag_strategy() {
  static const ZigzagStrategy kStrategy;
  return kStrategy;
}
const Strategy& ulysses_strategy() {
  static const UlyssesStrategy kStrategy;
  return kStrategy;
}
const Strategy& hybrid_strategy() {
  static const HybridStrategy kStrategy;
  return kStrategy;
}
const Strategy& double_ring_strategy() {
  static const DoubleRingStrategy kStrategy;
  return kStrategy;
}
const Strategy& all_gather_strategy() {
  static const AllGatherStrategy kStrategy;
  return kStrategy;
}

}  // namespace contextile
