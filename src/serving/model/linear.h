// Products with weights: BLAS on oneTBB's threads.
//
// Legend of suffixes: N rows, I inputs, O outputs.
#pragma once

#include <cstdint>
#include <span>

#include "contextile/base.h"
#include "contextile/serving/decoder_model.h"

namespace contextile {

// Part of a row-major matrix of weights, one row per output, in fp32 or bf16: the other is null.
struct WeightsView {
  const float* f32 = nullptr;
  const std::uint16_t* bf16 = nullptr;
  std::int64_t outputs = 0;
  std::int64_t inputs = 0;
  std::int64_t stride = 0;  // elements between rows

  [[nodiscard]] WeightsView rows(Range some) const {
    return moved(some.begin * stride, some.size(), inputs);
  }
  [[nodiscard]] WeightsView columns(Range some) const {
    return moved(some.begin, outputs, some.size());
  }

 private:
  [[nodiscard]] WeightsView moved(std::int64_t by, std::int64_t rows, std::int64_t columns) const {
    return {f32 == nullptr ? nullptr : f32 + by, bf16 == nullptr ? nullptr : bf16 + by, rows,
            columns, stride};
  }
};

// Returns all of a matrix with so many inputs, of which there is at least one.
[[nodiscard]] WeightsView weights_view(const WeightElements& elements_OI, std::int64_t inputs);

// y = x · W, fp32, where x has as many inputs as W has rows; contiguous, in one thread.
void multiply_transposed(std::span<const float> x_NO, const WeightsView& weights,
                         std::span<float> y_NI);

// y = x · Wᵀ, fp32, row-major and contiguous; y has rows of W's outputs. Outputs are computed in
// runs of equal size whatever the number of threads, so the same call gives the same bits. Without
// inputs y becomes 0.
void multiply(std::span<const float> x_NI, const WeightsView& weights, std::span<float> y_NO);

}  // namespace contextile
