// The strategies there are, and how a caller names one with its options.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/strategy.h"

namespace contextile {

// All strategies, in the order tables list them.
[[nodiscard]] std::span<const Strategy* const> strategies();
// Throws InvalidArgument with the list of names and a "did you mean".
[[nodiscard]] const Strategy& find_strategy(std::string_view name);

// "name:key=value,key=value,other,…": an item without '=' starts the next strategy; values may hold
// colons; "all" stands for every strategy. Names and keys are checked when used.
[[nodiscard]] std::vector<StrategyChoice> parse_strategies(std::string_view text);
// "name" or "name:key=value,…", as given.
[[nodiscard]] std::string choice_text(const StrategyChoice& choice);

}  // namespace contextile
