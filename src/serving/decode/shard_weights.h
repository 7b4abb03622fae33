// The weight of each shard of a softmax.
#pragma once

#include <span>

#include "contextile/serving/decode.h"

namespace contextile {

// Turns the LSE of every shard into its weight, in the listed order, and returns the LSE of all.
// NaN and +inf count as -inf, which has the weight 0; if all do, the result is -inf.
template <LseBase kBase>
[[nodiscard]] float find_weights(std::span<float> lse);

extern template float find_weights<LseBase::kE>(std::span<float>);
extern template float find_weights<LseBase::kTwo>(std::span<float>);

}  // namespace contextile
