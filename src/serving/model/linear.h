// Products with weights: BLAS on oneTBB's threads.
//
// Legend of suffixes: N rows, I inputs, O outputs.
#pragma once

#include <cstdint>
#include <span>

namespace contextile {

// y = x · Wᵀ, fp32, row-major and contiguous; y's rows are as long as W has rows. Outputs are
// computed in runs of equal size whatever the number of threads, so the same call gives the same
// bits.
void multiply(std::span<const float> x_NI, std::span<const float> weights_OI, std::int64_t inputs,
              std::span<float> y_NO);

}  // namespace contextile
