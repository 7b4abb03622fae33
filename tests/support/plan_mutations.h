// Small changes of a plan, one element at a time, which a referee of plans must notice.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "contextile/plan.h"
#include "support/plan_support.h"

namespace contextile {

struct PlanMutation {
  std::string_view name;
  // False if the plan has nothing to change or the change would change nothing. Throws
  // std::out_of_range on plans that lack a part every valid one has.
  bool (*apply)(Plan& plan, Chance& chance);
};

// Tiles and transfers.
[[nodiscard]] std::span<const PlanMutation> tile_mutations();
// Instructions, reduce and copy, staging slots, retained inputs.
[[nodiscard]] std::span<const PlanMutation> instruction_mutations();
// The surroundings of the programs: blocks, owners, masks, devices, limits, cluster.
[[nodiscard]] std::span<const PlanMutation> round_mutations();

// Whole lists: elements doubled, left out, exchanged.
[[nodiscard]] std::span<const PlanMutation> list_mutations();

[[nodiscard]] inline std::vector<PlanMutation> all_mutations() {
  std::vector<PlanMutation> all;
  for (const auto part :
       {tile_mutations(), instruction_mutations(), round_mutations(), list_mutations()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace contextile
