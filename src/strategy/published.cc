#include "strategy/published.h"

#include <array>

#include "strategy/axp/axp_presets.h"
#include "strategy/dcp.h"
#include "strategy/distca/distca.h"
#include "strategy/fcp/fcp.h"
#include "strategy/groups/bytescale.h"
#include "strategy/groups/megatron.h"
#include "strategy/magi/magi.h"
#include "strategy/wlb.h"

namespace contextile {

std::span<const Strategy* const> published_strategies() {
  // They are in the order in which tables list them. A new strategy is one line here and the steps
  // in docs/extending.md; every test over all strategies then includes it.
  static const std::array kStrategies = {
      &ring_strategy(),              // KV round the ring, contiguous slices
      &zigzag_strategy(),            // the same, balanced for causal masks
      &ulysses_strategy(),           // heads split by all-to-all
      &hybrid_strategy(),            // heads inside, a ring across
      &all_gather_strategy(),        // all KV first
      &double_ring_strategy(),       // rings inside a ring
      &wlb_strategy(),               // shards by estimated time, all KV gathered
      &bytescale_strategy(),         // ranks by document length, in waves
      &megatron_dynamic_strategy(),  // groups by document length
      &megatron_packed_strategy(),   // the same, documents packed
      &magi_strategy(),              // equal areas, only needed KV
      &dcp_strategy(),               // tiles as a hypergraph, divisions
      &fcp_strategy(),               // fixed-size blocks, matched rounds
      &distca_strategy(),            // attention on servers
  };
  return kStrategies;
}

}  // namespace contextile
