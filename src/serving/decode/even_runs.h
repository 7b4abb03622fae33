// Neighbours cut in runs that take turns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// At most `num_runs` runs of `sizes`, by index, of about as much of `total` each; none of no sizes.
[[nodiscard]] std::vector<Range> even_runs(std::span<const std::int64_t> sizes, std::int64_t total,
                                           std::int32_t num_runs);

}  // namespace contextile
