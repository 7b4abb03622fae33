// The checks of a call's terms.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "contextile/extend/kernel.h"
#include "contextile/plan.h"

namespace contextile {

// Throws InvalidArgument unless the terms fit the plan's heads and tokens.
void check_terms(std::string_view where, const Plan& plan, const ScoreTerms& terms);
// Return a digest by which ranks compare their terms, or sinks; 0 if there are none.
[[nodiscard]] std::uint64_t digest_of(const ScoreTerms& terms);
[[nodiscard]] std::uint64_t digest_of(std::span<const float> sink_H);
// Throws InvalidArgument if there are terms and the kernel has none.
void check_has_terms(std::string_view where, const AttentionKernel& kernel,
                     const ScoreTerms& terms);

}  // namespace contextile
