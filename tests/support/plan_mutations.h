// Small changes of a plan, one element at a time: what a referee of plans must notice.
#pragma once

#include <span>
#include <string_view>

#include "contextile/plan.h"
#include "support/plan_support.h"

namespace contextile {

struct PlanMutation {
  std::string_view name;
  // False if the plan has nothing to change or the change would change nothing.
  bool (*apply)(Plan& plan, Chance& chance);
};

// All of them: tiles, transfers, instructions, slots (plan_mutations.cc), and everything around the
// programs (plan_mutations_round.cc).
[[nodiscard]] std::span<const PlanMutation> program_mutations();
[[nodiscard]] std::span<const PlanMutation> round_mutations();

}  // namespace contextile
