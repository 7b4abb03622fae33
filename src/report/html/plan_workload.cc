#include "report/html/plan_workload.h"

#include <algorithm>
#include <iterator>

namespace contextile {

Workload workload_of(const Plan& plan) {
  Workload workload{.sequences = plan.sequences,
                    .shape = plan.shape,
                    .masks = {},
                    .roles = {},
                    .home = plan.home,
                    .positions = plan.positions};
  for (const PlanRound& round : plan.rounds) {
    if (workload.masks.empty()) {
      workload.masks = round.masks;
    } else {
      for (std::size_t m = 0; m < round.masks.size(); ++m) {
        std::ranges::copy(round.masks[m].mask.bands,
                          std::back_inserter(workload.masks[m].mask.bands));
      }
    }
    for (const RangeOfBlock& range : sorted_ranges(round.blocks)) {
      const Role role = round.blocks.role(range.block);
      if (role != Role::kBoth) workload.roles.push_back({range.tokens, role});
    }
  }
  std::ranges::sort(workload.roles, {}, [](const RoleRange& r) { return r.tokens.begin; });
  for (NamedMask& mask : workload.masks) std::ranges::sort(mask.mask.bands);
  return workload;
}

}  // namespace contextile
