// A search for a plan as a table and as JSON: its phases, and the candidate that won.
#pragma once

#include <string>

#include "contextile/extend/strategy.h"
#include "report/table.h"

namespace contextile {

// One row per phase, then the winner. Phases that did not run have no numbers except their share.
// The last column marks those that the request disabled.
[[nodiscard]] std::string search_text(const SearchReport& report);
[[nodiscard]] Json search_json(const SearchReport& report);

}  // namespace contextile
