// A workload put together from lengths and rules, for callers that add to it before they check it.
#pragma once

#include <cstdint>
#include <span>

#include "contextile/workload.h"

namespace contextile {

// Does the same as make_workload without its check of the whole: the caller adds what is missing
// and ends with check_workload. Throws InvalidArgument on bad lengths or rules.
[[nodiscard]] Workload assemble_workload(std::span<const std::int64_t> lengths,
                                         const AttentionShape& shape,
                                         std::span<const MaskUse> masks);

}  // namespace contextile
