#include "strategy/wlb.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "schedule/rank_layout.h"
#include "strategy/axp/axp.h"
#include "strategy/options.h"
#include "strategy/shard_cost.h"

namespace contextile {
namespace {

enum class Sharding : std::uint8_t { kAdaptive, kPerDocument, kPerSequence };
enum class GatherAlgorithm : std::uint8_t { kRing, kDirect };

struct WlbOptions {
  Sharding sharding = Sharding::kAdaptive;
  GatherAlgorithm algorithm = GatherAlgorithm::kRing;
};

// Forward attention of the slowest rank over all layers.
double estimate_us(const Workload& workload, const Cluster& cluster, TokenLayout layout) {
  const auto ranges = rank_ranges(layout, workload.sequences, cluster.num_devices());
  double total_us = 0;
  for (const NamedMask& mask : workload.masks) {
    const auto shards = attention_shards(mask.mask, workload.sequences, ranges);
    total_us += mask.layers * estimate_attention_us(shards, workload.shape, cluster);
  }
  return total_us;
}

// Both shardings move the same bytes, so attention decides.
Sharding faster_sharding(const Workload& workload, const Cluster& cluster) {
  return estimate_us(workload, cluster, TokenLayout::kPerSequence) <
                 estimate_us(workload, cluster, TokenLayout::kPerDocument)
             ? Sharding::kPerSequence
             : Sharding::kPerDocument;
}

// Source: Wang et al., WLB-LLM (OSDI 2025), adaptive CP sharding of a micro-batch; its packing of
// micro-batches is `pack_wlb`. Steps: all KV gathered before compute, then one attention; backward
// gathers again and reduce-scatters dKV. Per document: every document in 2R parts, rank r has r and
// 2R-1-r, so work is even and shards are small; per sequence: the same of the packed batch as a
// whole, so shards are large and work is as even as the documents are. The faster one by estimated
// attention time is taken. Bytes sent per rank: forward ·kv, backward twice that, of T/R
// tokens. Memory: KV (and in backward dKV) of the whole batch on every rank. Loses by exposing all
// communication, on memory, and where one very long document leaves the choice without effect.
class WlbStrategy : public Strategy {
 public:
  WlbStrategy() {
    table_.choice("sharding", &WlbOptions::sharding, {"adaptive", "per_document", "per_sequence"},
                  "how a micro-batch is cut: adaptive (the faster one by estimated attention "
                  "time), per_document, per_sequence");
    table_.choice("algorithm", &WlbOptions::algorithm, {"ring", "direct"},
                  "of the KV all-gather. ring: hop by hop, a node boundary crossed once per node; "
                  "direct: every owner to everybody");
  }

  [[nodiscard]] std::string_view name() const override { return "wlb"; }
  [[nodiscard]] std::string_view summary() const override {
    return "WLB-LLM: per-document or per-sequence sharding by estimated time, all KV gathered";
  }
  [[nodiscard]] std::vector<OptionSpec> options() const override { return table_.specs(); }

  [[nodiscard]] std::optional<std::string> unsupported(
      const Workload&, const Cluster&, const StrategyRequest& request) const override {
    static_cast<void>(table_.parse(name(), request.options));
    return std::nullopt;
  }

  [[nodiscard]] Arrangement arrange(const Workload& workload, const Cluster& cluster,
                                    const StrategyRequest& request) const override {
    WlbOptions options = table_.parse(name(), request.options);
    if (options.sharding == Sharding::kAdaptive) {
      options.sharding = faster_sharding(workload, cluster);
    }
    AxpConfig config;
    config.context_parallel = cluster.num_devices();
    config.layout = options.sharding == Sharding::kPerDocument ? TokenLayout::kPerDocument
                                                               : TokenLayout::kPerSequence;
    config.movement = options.algorithm == GatherAlgorithm::kRing ? KvMovement::kGatherRing
                                                                  : KvMovement::kGatherDirect;
    config.block_size = request.block_size;
    config.backward = request.backward;
    Arrangement arrangement = arrange_axp(workload, cluster, config);
    arrangement.strategy = name();
    arrangement.options = table_.print(options);  // with the sharding that was chosen
    if (request.block_size) {
      arrangement.options["block_size"] = fmt::format("{}", *request.block_size);
    }
    // As the all-gather of TransformerEngine: dKV in the activation dtype.
    arrangement.partial_wire = request.wire.value_or(workload.shape.dtype);
    return arrangement;
  }

 private:
  OptionTable<WlbOptions> table_;
};

}  // namespace

const Strategy& wlb_strategy() {
  static const WlbStrategy kStrategy;
  return kStrategy;
}

}  // namespace contextile
