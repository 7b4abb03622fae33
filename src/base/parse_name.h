// Values of an enumeration by the names that their `to_string` gives.
#pragma once

#include <fmt/format.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/quote.h"
#include "base/suggest.h"

namespace contextile {

// Returns the one of `values` that `text` names. `what` is in front of the error, which lists all.
template <typename Value>
Value parse_name(std::string_view what, std::span<const Value> values, std::string_view text) {
  std::vector<std::string> names;
  for (const Value value : values) {
    if (to_string(value) == text) return value;
    names.emplace_back(to_string(value));
  }
  fail_argument("{}: expected one of {}, found {}{}", what, fmt::join(names, ", "), quote(text),
                did_you_mean(text, names));
}

}  // namespace contextile
