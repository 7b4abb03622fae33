#include "strategy/published.h"

#include <array>

#include "strategy/axp/presets.h"
#include "strategy/groups/bytescale.h"
#include "strategy/dcp.h"
#include "strategy/distca/distca.h"
#include "strategy/fcp/fcp.h"
#include "strategy/magi.h"
#include "strategy/groups/megatron.h"
#include "strategy/wlb.h"

namespace contextile {

std::span<const Strategy* const> published_strategies() {
  static const std::array kStrategies = {&ring_strategy(),
                                         &zigzag_strategy(),
                                         &ulysses_strategy(),
                                         &hybrid_strategy(),
                                         &all_gather_strategy(),
                                         &double_ring_strategy(),
                                         &wlb_strategy(),
                                         &bytescale_strategy(),
                                         &megatron_dynamic_strategy(),
                                         &megatron_packed_strategy(),
                                         &magi_strategy(),
                                         &dcp_strategy(),
                                         &fcp_strategy(),
                                         &distca_strategy()};
  return kStrategies;
}

}  // namespace contextile
