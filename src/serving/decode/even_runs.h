// Cuts a list of sizes into runs of about the same sum.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// At most `num_runs` runs of `sizes`, by index, each with about the same part of `total`; none if
// there are no sizes.
[[nodiscard]] std::vector<Range> even_runs(std::span<const std::int64_t> sizes, std::int64_t total,
                                           std::int32_t num_runs);

}  // namespace contextile
