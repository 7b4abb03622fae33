// --packing: how documents are put together in batches.
#pragma once

#include <string_view>

#include "contextile/data.h"

namespace contextile {

// "sequential" or "wlb[:key=value,…]" with the keys micro_batches, max_tokens, levels
// (T1:T2:… or none), balance and defer (on, off), into `options`. Throws InvalidArgument.
void parse_packing(std::string_view text, BatchOptions& options);

}  // namespace contextile
