#include "strategy/wlb.h"

#include <vector>

#include "contextile/extend/strategies.h"
#include "strategy/axp/axp.h"
#include "strategy/schedule/rank_layout.h"
#include "strategy/shard_cost.h"
#include "strategy/typed_strategy.h"

namespace contextile {
namespace {

// Returns the forward attention time of the slowest rank over all layers.
double estimate_us(const Workload& workload, const Cluster& cluster, TokenLayout layout) {
  const auto ranges = rank_ranges(layout, workload.sequences, cluster.num_devices());
  double total_us = 0;
  for (const NamedMask& mask : workload.masks) {
    const auto shards = attention_shards(mask.mask, workload.sequences, ranges);
    total_us += mask.layers * estimate_attention_us(shards, workload.shape, cluster);
  }
  return total_us;
}

// Returns the sharding with the faster attention: both move the same bytes.
Sharding faster_sharding(const Workload& workload, const Cluster& cluster) {
  return estimate_us(workload, cluster, TokenLayout::kPerSequence) <
                 estimate_us(workload, cluster, TokenLayout::kPerDocument)
             ? Sharding::kPerSequence
             : Sharding::kPerDocument;
}

// Source: Wang et al., WLB-LLM (OSDI 2025), adaptive CP sharding of a micro-batch; its packing of
// micro-batches is `pack_wlb`. Steps: all KV gathered before compute, then one attention; backward
// gathers again and reduce-scatters dKV. Per document: every document is cut into 2R parts and rank
// r has parts r and 2R-1-r, so work is even and shards are small. Per sequence: the packed batch as
// a whole is cut like that, so shards are large and work is as even as the documents are. The one
// that is faster by estimated attention time is taken. Bytes sent per rank: forward ·kv,
// backward twice that, of T/R tokens. Memory: KV (and in backward dKV) of the whole batch on every
// rank. Loses by exposing all communication, on memory, and where one very long document leaves the
// choice without effect.
class WlbStrategy : public TypedStrategy<WlbOptions> {
 public:
  WlbStrategy()
      : TypedStrategy(
            {"wlb",
             "WLB-LLM: per-document or per-sequence sharding by estimated time, all KV gathered",
             PartialWire::kActivations},  // like the all-gather of TransformerEngine
            option_table()) {}

 protected:
  [[nodiscard]] Arrangement arrange_with(const Workload& workload, const Cluster& cluster,
                                         const StrategyRequest& request,
                                         WlbOptions& options) const override {
    if (options.sharding == Sharding::kAdaptive) {
      options.sharding = faster_sharding(workload, cluster);
    }
    AxpConfig config;
    config.context_parallel = cluster.num_devices();
    config.layout = options.sharding == Sharding::kPerDocument ? TokenLayout::kPerDocument
                                                               : TokenLayout::kPerSequence;
    gather_by(options.algorithm, cluster, config);
    config.block_size = request.block_size;
    config.backward = request.backward;
    Arrangement arrangement = arrange_axp(workload, cluster, config);
    record_block_size(request, arrangement);
    return arrangement;
  }

 private:
  static OptionTable<WlbOptions> option_table() {
    OptionTable<WlbOptions> table;
    return table
        .choice("sharding", &WlbOptions::sharding, {"adaptive", "per_document", "per_sequence"},
                "how a micro-batch is cut: adaptive (the faster one by estimated attention "
                "time), per_document, per_sequence")
        .choice("algorithm", &WlbOptions::algorithm, {"ring", "direct", "nested"},
                kGatherAlgorithmHelp);
  }
};

const WlbStrategy& wlb() {
  static const WlbStrategy kStrategy;
  return kStrategy;
}

}  // namespace

const Strategy& wlb_strategy() { return wlb(); }

StrategyChoice choice_of(const WlbOptions& options) { return wlb().choice(options); }

}  // namespace contextile
