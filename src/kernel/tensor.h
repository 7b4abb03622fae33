// Functions that read and write rows of strided tensors, whatever their dtype.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "contextile/extend/kernel.h"

namespace contextile {

// Returns the row of token n and head h. T is float or std::uint16_t (bits of bf16 and f16).
template <typename T>
[[nodiscard]] T* row_at(const TensorView& view, std::int64_t n, std::int32_t h) {
  return static_cast<T*>(view.data) + n * view.token_stride + h * view.head_stride;
}

[[nodiscard]] inline float& stat_at(const RowStats& stats, std::int64_t n, std::int32_t h) {
  return stats.data[n * stats.token_stride + h * stats.head_stride];
}

// Return a stats array as an fp32 tensor of dim 1, and the reverse.
[[nodiscard]] inline TensorView as_tensor(const RowStats& stats, std::int64_t tokens,
                                          std::int32_t heads) {
  return {stats.data, Dtype::kF32, tokens, heads, 1, stats.token_stride, stats.head_stride};
}
[[nodiscard]] inline RowStats as_stats(const TensorView& view) {
  return {static_cast<float*>(view.data), view.token_stride, view.head_stride};
}

// Returns the largest error of rounding fp32 to the nearest number of a dtype, relative to the
// number.
[[nodiscard]] constexpr double rounding_step(Dtype dtype) {
  return dtype == Dtype::kBf16 ? 0x1p-8 : dtype == Dtype::kF16 ? 0x1p-11 : 0;
}

// Returns `tokens` tokens from `first` and `heads` heads from `first_head`, without a copy.
[[nodiscard]] TensorView slice(const TensorView& view, std::int64_t first, std::int64_t tokens,
                               std::int32_t first_head, std::int32_t heads);

// Read a row as fp32 or fp64 (exact), and write it (rounded to nearest even).
void read_row(const TensorView& view, std::int64_t n, std::int32_t h, std::span<float> row);
void read_row(const TensorView& view, std::int64_t n, std::int32_t h, std::span<double> row);
void write_row(const TensorView& view, std::int64_t n, std::int32_t h, std::span<const float> row);

// Sets every element of every row to `value`.
void fill_tensor(const TensorView& view, float value);

// Returns a contiguous tensor in memory that the caller owns.
[[nodiscard]] TensorView contiguous(void* data, Dtype dtype, std::int64_t tokens,
                                    std::int32_t heads, std::int32_t dim);

// Returns `value` rounded to the dtype, as a double.
[[nodiscard]] double round_to(Dtype dtype, double value);

}  // namespace contextile
