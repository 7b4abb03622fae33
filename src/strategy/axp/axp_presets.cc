#include "strategy/axp/axp_presets.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>

#include "contextile/extend/strategies.h"
#include "strategy/axp/axp.h"
#include "strategy/typed_strategy.h"

namespace contextile {
namespace {

// Number of ranks that split heads.
enum class HeadRanks : std::uint8_t { kOne, kAll, kOption };

// One method of the family. If the options of the method have a field of that name too, the user
// decides it.
template <typename Options>
struct Preset {
  StrategyCard card;
  HeadRanks heads = HeadRanks::kOne;
  TokenLayout layout = TokenLayout::kZigzag;
  KvMovement movement = KvMovement::kRing;
};

// Source: Liu et al., Ring Attention (2023); as ring-flash-attention runs it on packed batches.
// Steps: R; KV one hop per step, overlapped; backward reversed, dKV one step behind. Bytes sent per
// rank: forward ·kv, backward ·(kv + dkv), of T/R tokens; dKV in fp32. Memory: two KV
// buffers. Loses under causal masks (the last rank computes 2R-1 times as many pairs as the first,
// in R times as many steps) and whenever documents are short: everything goes round the whole ring.
constexpr Preset<RingOptions> kRing = {
    .card = {"ring", "RingAttention: contiguous slices of every sequence, KV round the ring",
             PartialWire::kF32},
    .heads = HeadRanks::kOne,
    .layout = TokenLayout::kContiguous,
    .movement = KvMovement::kRing,
};

// Source: Megatron-LM / TransformerEngine p2p context parallelism; Striped and zigzag ring
// attention. Steps, bytes and memory are those of `ring`, with dKV in the activation dtype
// (TransformerEngine also keeps R partial outputs, see count_stashed). Balanced under the causal
// mask of every document, if documents are long enough to be cut 2R times. Loses on short documents
// and sparse masks: most of the keys that travel are never read.
constexpr Preset<ZigzagOptions> kZigzag = {
    .card = {"zigzag",
             "Megatron/TransformerEngine p2p: chunks r and 2R-1-r of every sequence, KV round the "
             "ring",
             PartialWire::kActivations},
    .heads = HeadRanks::kOne,
    .layout = TokenLayout::kZigzag,
    .movement = KvMovement::kRing,
};

// Source: Jacobs et al., DeepSpeed Ulysses (2023); TransformerEngine a2a.
// Steps: all-to-all of Q, K, V; attention on H/R heads of the whole batch; all-to-all of O;
// backward dO in, dQ, dK, dV out. Bytes sent per rank: forward and backward (R-1)/R · (q + kv + o)
// of T/R tokens. Memory: Q, K, V of the whole batch for 1/R of the heads, retained for backward.
// More ranks than KV heads, a multiple of them, hold replicas of KV heads, as in verl and
// DeepSpeed: with A KV heads, KV is (R-1)/A · kv, all else (A-1)/A. The originals split a KV head's
// queries among its replicas by heads. Here each replica takes all its query heads of the tokens of
// A ranks, so that work is only as even as the tokens. Loses by exposing all communication.
constexpr Preset<UlyssesOptions> kUlysses = {
    .card = {"ulysses", "DeepSpeed Ulysses: heads split over all ranks by all-to-all",
             PartialWire::kActivations},
    .heads = HeadRanks::kAll,
    .layout = TokenLayout::kZigzag,
    .movement = KvMovement::kRing,
};

// Source: TransformerEngine a2a+p2p; Fang and Zhao, USP (2024); LoongTrain's head x context grid.
// Steps: ulysses inside A consecutive ranks, zigzag ring over P = R/A positions of stride A. Bytes
// sent per rank: (A-1)/A · (q + kv + o) each way, plus (P-1)·kv (backward 2x) of A·T/R tokens and
// 1/A of the heads. Memory: retained Q, K, V plus two ring buffers (TransformerEngine also keeps P
// partial outputs, see count_stashed). Loses where KV heads are few (A small).
constexpr Preset<HybridOptions> kHybrid = {
    .card = {"hybrid",
             "TransformerEngine a2a+p2p, USP: heads split inside A ranks, zigzag ring across them",
             PartialWire::kActivations},
    .heads = HeadRanks::kOption,
    .layout = TokenLayout::kZigzag,
    .movement = KvMovement::kRing,
};

// Source: Gu et al., LoongTrain (2024): 2D attention, Double-Ring-Attention. Steps: like hybrid,
// but the P positions are inner rings of `inner_ring` positions joined by an outer ring. While keys
// go all the way round the inner ring, they also hop to the next inner ring, so that this hop may
// take all that time. Bytes sent per rank are those of hybrid; of a unit's P-1 hops only
// P/inner_ring-1 leave the inner ring; dKV in fp32. Memory: one more ring buffer than hybrid. Loses
// like zigzag: all keys go to all positions.
constexpr Preset<DoubleRingOptions> kDoubleRing = {
    .card = {"double_ring",
             "LoongTrain: heads split inside A ranks, inner zigzag rings joined by an outer ring",
             PartialWire::kF32},
    .heads = HeadRanks::kOption,
    .layout = TokenLayout::kZigzag,
    .movement = KvMovement::kRing,
};

// Source: TransformerEngine all_gather, Llama 3 (2024) §3.3.2, WLB-LLM (2025) per-document
// sharding. Steps: all KV gathered before compute (R-1 ring hops, or from every owner straight to
// all other ranks, or nested rings), then one attention; backward gathers again and reduce-scatters
// dKV. Bytes sent
// per rank are those of zigzag. Memory: KV (and in backward dKV) of the whole batch on every rank.
// Loses by exposing all communication, and on memory.
constexpr Preset<AllGatherOptions> kAllGather = {
    .card = {"all_gather", "TransformerEngine/Llama 3/WLB-LLM: all KV gathered before compute",
             PartialWire::kActivations},
    .heads = HeadRanks::kOne,
    .layout = TokenLayout::kZigzag,
    .movement = KvMovement::kGatherRing,
};

// Concepts for the fields that the options of a preset may have.
template <typename Options>
concept HasHeads = requires(Options options) {
  options.head_parallel;
};
template <typename Options>
concept HasInnerRing = requires(Options options) {
  options.inner_ring;
};
template <typename Options>
concept HasAlgorithm = requires(Options options) {
  options.algorithm;
};
template <typename Options>
concept HasLayout = requires(Options options) {
  options.layout;
};

template <typename Options>
concept HasStash = requires(Options options) {
  options.count_stashed;
};

template <typename Options>
OptionTable<Options> option_table() {
  OptionTable<Options> table;
  if constexpr (HasInnerRing<Options>) {
    table.integer("inner_ring", &Options::inner_ring, 0, 1 << 16,
                  "positions of an inner ring, divides devices / head_parallel; 0: as many as a "
                  "node has");
  }
  if constexpr (HasHeads<Options>) {
    table.integer("head_parallel", &Options::head_parallel, 0, 1 << 16,
                  "ranks that split heads; 0: the largest divisor of the KV heads that divides a "
                  "node's devices");
  }
  if constexpr (HasAlgorithm<Options>) {
    table.choice("algorithm", &Options::algorithm, {"ring", "direct", "nested"},
                 kGatherAlgorithmHelp);
  }
  if constexpr (HasLayout<Options>) {
    table.choice("layout", &Options::layout,
                 {"zigzag", "contiguous", "per_document", "per_sequence"},
                 "tokens of each rank: zigzag, contiguous, per_document, per_sequence");
  }
  if constexpr (HasStash<Options>) {
    table.on_off("count_stashed", &Options::count_stashed,
                 "count in statistics the partial outputs of all ring steps, which the original "
                 "keeps until forward ends: off, on");
  }
  return table.on_off(
      "count_padding", &Options::count_padding,
      "charge the original's padding of sequences to whole chunks in statistics: off, on");
}

template <typename Options>
class PresetStrategy : public TypedStrategy<Options> {
 public:
  explicit PresetStrategy(const Preset<Options>& preset)
      : TypedStrategy<Options>(preset.card, option_table<Options>()), preset_(preset) {}

 protected:
  [[nodiscard]] std::optional<std::string> unsupported_with(const Workload& workload,
                                                            const Cluster& cluster,
                                                            const Options& options) const override {
    const std::int32_t heads = head_parallel(workload, cluster, options);
    if (heads > workload.shape.kv_heads && preset_.heads == HeadRanks::kAll) {
      return fmt::format(
          "splits heads over {} ranks: expected a divisor or a multiple of the KV heads ({}), "
          "found "
          "{}",
          heads, workload.shape.kv_heads, heads);
    }
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
    if constexpr (HasInnerRing<Options>) {
      const std::int32_t positions = cluster.num_devices() / heads;
      const std::int32_t inner = inner_ring(cluster, heads, options);
      if (positions % inner != 0) {
        return fmt::format(
            "nests rings: expected an inner ring of a divisor of {} positions, found {}", positions,
            inner);
      }
    }
    return std::nullopt;
  }

  // hybrid is tried with every number of ranks that can split the heads, except all ranks: that is
  // ulysses. double_ring is also tried with as many as a node can.
  [[nodiscard]] std::vector<Options> variants_with(const Workload& workload, const Cluster& cluster,
                                                   const StrategyRequest&) const override {
    std::vector<Options> variants = {Options{}};
    if constexpr (std::is_same_v<Options, HybridOptions>) {
      const std::int32_t most = std::gcd(workload.shape.kv_heads, cluster.num_devices());
      for (std::int32_t heads = 2; heads <= most; ++heads) {
        const bool is_ulysses = heads == cluster.num_devices();
        const bool is_default = heads == head_parallel(workload, cluster, Options{});
        if (most % heads != 0 || is_ulysses || is_default) continue;
        variants.push_back({.head_parallel = heads});
      }
    }
    if constexpr (std::is_same_v<Options, DoubleRingOptions>) {
      if (head_parallel(workload, cluster, {.head_parallel = 0}) > 1) {
        variants.push_back({.head_parallel = 0});
      }
    }
    return variants;
  }

  [[nodiscard]] Arrangement arrange_with(const Workload& workload, const Cluster& cluster,
                                         const StrategyRequest& request,
                                         Options& options) const override {
    AxpConfig config;
    config.head_parallel = head_parallel(workload, cluster, options);
    config.context_parallel = cluster.num_devices() / config.head_parallel;
    config.layout = preset_.layout;
    config.movement = preset_.movement;
    config.block_size = request.block_size;
    config.backward = request.backward;
    if (preset_.heads == HeadRanks::kAll && config.context_parallel > 1) {
      config.movement = KvMovement::kReplicate;
    }
    if constexpr (HasLayout<Options>) config.layout = options.layout;
    if constexpr (HasAlgorithm<Options>) gather_by(options.algorithm, cluster, config);
    if constexpr (HasHeads<Options>) options.head_parallel = config.head_parallel;
    if constexpr (HasInnerRing<Options>) {
      config.inner_ring = options.inner_ring = inner_ring(cluster, config.head_parallel, options);
    }
    Arrangement arrangement = arrange_axp(workload, cluster, config);
    record_block_size(request, arrangement);
    if (options.count_padding) {
      const PaddingFactors factors =
          padding_factors(workload, config.layout, cluster.num_devices());
      arrangement.padded_bytes_factor = factors.tokens;
      arrangement.padded_pairs_factor = factors.pairs;
    }
    return arrangement;
  }

 private:
  [[nodiscard]] std::int32_t head_parallel(const Workload& workload, const Cluster& cluster,
                                           const Options& options) const {
    if constexpr (HasHeads<Options>) {
      if (options.head_parallel > 0) return options.head_parallel;
      return std::gcd(workload.shape.kv_heads, cluster.devices_per_node);
    }
    if (preset_.heads != HeadRanks::kAll) return 1;
    // If there are several ranks for every KV head, they are replicas.
    const bool has_replicas = cluster.num_devices() % workload.shape.kv_heads == 0;
    return has_replicas ? workload.shape.kv_heads : cluster.num_devices();
  }

  [[nodiscard]] static std::int32_t inner_ring(const Cluster& cluster, std::int32_t heads,
                                               const Options& options) {
    if (options.inner_ring > 0) return options.inner_ring;
    return std::gcd(cluster.num_devices() / heads, std::max(1, cluster.devices_per_node / heads));
  }

  Preset<Options> preset_;
};

const PresetStrategy<RingOptions>& ring() {
  static const PresetStrategy<RingOptions> kStrategy(kRing);
  return kStrategy;
}
const PresetStrategy<ZigzagOptions>& zigzag() {
  static const PresetStrategy<ZigzagOptions> kStrategy(kZigzag);
  return kStrategy;
}
const PresetStrategy<UlyssesOptions>& ulysses() {
  static const PresetStrategy<UlyssesOptions> kStrategy(kUlysses);
  return kStrategy;
}
const PresetStrategy<HybridOptions>& hybrid() {
  static const PresetStrategy<HybridOptions> kStrategy(kHybrid);
  return kStrategy;
}
const PresetStrategy<DoubleRingOptions>& double_ring() {
  static const PresetStrategy<DoubleRingOptions> kStrategy(kDoubleRing);
  return kStrategy;
}
const PresetStrategy<AllGatherOptions>& all_gather() {
  static const PresetStrategy<AllGatherOptions> kStrategy(kAllGather);
  return kStrategy;
}

}  // namespace

const Strategy& ring_strategy() { return ring(); }
const Strategy& zigzag_strategy() { return zigzag(); }
const Strategy& ulysses_strategy() { return ulysses(); }
const Strategy& hybrid_strategy() { return hybrid(); }
const Strategy& double_ring_strategy() { return double_ring(); }
const Strategy& all_gather_strategy() { return all_gather(); }

StrategyChoice choice_of(const RingOptions& options) { return ring().choice(options); }
StrategyChoice choice_of(const ZigzagOptions& options) { return zigzag().choice(options); }
StrategyChoice choice_of(const UlyssesOptions& options) { return ulysses().choice(options); }
StrategyChoice choice_of(const HybridOptions& options) { return hybrid().choice(options); }
StrategyChoice choice_of(const DoubleRingOptions& options) { return double_ring().choice(options); }
StrategyChoice choice_of(const AllGatherOptions& options) { return all_gather().choice(options); }

}  // namespace contextile
