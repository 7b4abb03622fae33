// Products with weights: BLAS on oneTBB's threads.
//
// Legend of suffixes: N rows, I inputs, O outputs.
#pragma once

#include <cstdint>
#include <span>

#include "contextile/base.h"

namespace contextile {

// Part of a row-major matrix of weights, one row per output.
struct WeightsView {
  const float* data = nullptr;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  std::int64_t stride = 0;  // elements between rows

  [[nodiscard]] WeightsView rows(Range some) const {
    return {data + some.begin * stride, some.size(), inputs, stride};
  }
  [[nodiscard]] WeightsView columns(Range some) const {
    return {data + some.begin, outputs, some.size(), stride};
  }
};

// Returns all of a matrix with so many inputs, of which there is at least one.
[[nodiscard]] WeightsView weights_view(std::span<const float> values_OI, std::int64_t inputs);

// y = x · Wᵀ, fp32, row-major and contiguous; y has rows of W's outputs. Outputs are computed in
// runs of equal size whatever the number of threads, so the same call gives the same bits. Without
// inputs y becomes 0.
void multiply(std::span<const float> x_NI, const WeightsView& weights, std::span<float> y_NO);

}  // namespace contextile
