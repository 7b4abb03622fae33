#include "serving/model/linear.h"

#include <algorithm>
#include <vector>

#include "base/half.h"
#include "base/parallel_for.h"
#include "serving/model/blas.h"

namespace contextile {
namespace {

constexpr std::int64_t kOutputsOfRun = 128;
// OpenBLAS's product of so few rows reads weights at a quarter of the memory's rate where their
// rows are a multiple of 4 KiB apart. The weights of a run stay in the cache from row to row.
constexpr std::int64_t kFewRows = 4;

// y = x · Wᵀ for `outputs` rows of weights in fp32; y has rows of `y_stride` elements.
void multiply_run(std::span<const float> x, std::int64_t rows, const float* weights,
                  std::int64_t stride, std::int64_t outputs, std::int64_t inputs, float* y,
                  std::int64_t y_stride) {
  const auto k = static_cast<blasint>(inputs);
  const auto n = static_cast<blasint>(outputs);
  const auto lda = static_cast<blasint>(stride);
  if (rows <= kFewRows) {
    for (std::int64_t row = 0; row < rows; ++row) {
      blas().sgemv(CblasRowMajor, CblasNoTrans, n, k, 1, weights, lda, x.data() + row * inputs, 1,
                   0, y + row * y_stride, 1);
    }
  } else {
    blas().sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, static_cast<blasint>(rows), n, k, 1,
                 x.data(), k, weights, lda, 0, y, static_cast<blasint>(y_stride));
  }
}

// The same for bf16. For few rows of x, so few outputs are widened at a time that they stay in a
// core's cache.
void multiply_bf16_run(std::span<const float> x, std::int64_t rows, const std::uint16_t* weights,
                       std::int64_t stride, std::int64_t outputs, std::int64_t inputs, float* y,
                       std::int64_t y_stride) {
  constexpr std::int64_t kCachedElements = 32'768;
  const std::int64_t most =
      rows <= kFewRows ? std::clamp<std::int64_t>(kCachedElements / inputs, 1, outputs) : outputs;
  thread_local std::vector<float> wide;
  wide.resize(static_cast<std::size_t>(most * inputs));
  for (std::int64_t first = 0; first < outputs; first += most) {
    const std::int64_t count = std::min(most, outputs - first);
    for (std::int64_t o = 0; o < count; ++o) {
      const std::uint16_t* from = weights + (first + o) * stride;
      float* to = wide.data() + o * inputs;
      for (std::int64_t i = 0; i < inputs; ++i) to[i] = bf16_to_float(from[i]);
    }
    multiply_run(x, rows, wide.data(), inputs, count, inputs, y + first, y_stride);
  }
}

}  // namespace

WeightsView weights_view(const WeightElements& elements_OI, std::int64_t inputs) {
  const auto size = static_cast<std::int64_t>(elements_OI.size());
  const bool is_bf16 = elements_OI.is_bf16();
  return {is_bf16 ? nullptr : elements_OI.f32().data(),
          is_bf16 ? elements_OI.bf16().data() : nullptr, size / inputs, inputs, inputs};
}

void multiply_transposed(std::span<const float> x_NO, const WeightsView& weights,
                         std::span<float> y_NI) {
  const std::int64_t rows = std::ssize(x_NO) / weights.outputs;
  if (rows == 0) return;
  thread_local std::vector<float> wide;
  const float* values = weights.f32;
  std::int64_t stride = weights.stride;
  if (weights.bf16 != nullptr) {
    wide.resize(static_cast<std::size_t>(weights.outputs * weights.inputs));
    for (std::int64_t o = 0; o < weights.outputs; ++o) {
      const std::uint16_t* from = weights.bf16 + o * weights.stride;
      float* to = wide.data() + o * weights.inputs;
      for (std::int64_t i = 0; i < weights.inputs; ++i) to[i] = bf16_to_float(from[i]);
    }
    values = wide.data();
    stride = weights.inputs;
  }
  const auto n = static_cast<blasint>(weights.inputs);
  const auto k = static_cast<blasint>(weights.outputs);
  blas().sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<blasint>(rows), n, k, 1,
               x_NO.data(), k, values, static_cast<blasint>(stride), 0, y_NI.data(), n);
}

void multiply(std::span<const float> x_NI, const WeightsView& weights, std::span<float> y_NO) {
  if (weights.inputs == 0) {
    std::fill(y_NO.begin(), y_NO.end(), 0.0F);
    return;
  }
  const std::int64_t rows = static_cast<std::int64_t>(x_NI.size()) / weights.inputs;
  if (rows == 0 || weights.outputs == 0) return;
  const std::int64_t runs = (weights.outputs + kOutputsOfRun - 1) / kOutputsOfRun;
  parallel_for(std::int64_t{0}, runs, [&](std::int64_t run) {
    const std::int64_t first = run * kOutputsOfRun;
    const std::int64_t count = std::min(kOutputsOfRun, weights.outputs - first);
    float* y = y_NO.data() + first;
    if (weights.bf16 != nullptr) {
      multiply_bf16_run(x_NI, rows, weights.bf16 + first * weights.stride, weights.stride, count,
                        weights.inputs, y, weights.outputs);
    } else {
      multiply_run(x_NI, rows, weights.f32 + first * weights.stride, weights.stride, count,
                   weights.inputs, y, weights.outputs);
    }
  });
}

}  // namespace contextile
