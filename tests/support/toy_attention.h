// Dense attention on doubles, row by row, with which toy plans are compared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/plan.h"

namespace contextile {

// [tokens, heads, dim] each, lse [tokens, q_heads]: natural log, -inf on an empty row.
struct ToyInputs {
  std::vector<double> q, k, v, dout;
};
struct ToyResults {
  std::vector<double> out, lse, dq, dk, dv;
};

// Standard normal.
[[nodiscard]] ToyInputs random_toy_inputs(const AttentionShape& shape, std::int64_t tokens,
                                          std::uint64_t seed);

// attended[q * tokens + k] under one of the plan's masks, all rounds together.
[[nodiscard]] std::vector<bool> dense_mask(const Plan& plan, std::size_t mask);

[[nodiscard]] ToyResults dense_attention(const ToyInputs& in, const std::vector<bool>& attended,
                                         const AttentionShape& shape, std::int64_t tokens);

inline double dot(const double* a, const double* b, std::int32_t n) {
  double sum = 0;
  for (std::int32_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}
inline void add_scaled(double* a, double factor, const double* b, std::int32_t n) {
  for (std::int32_t i = 0; i < n; ++i) a[i] += factor * b[i];
}

// Row r of head h of a [rows, heads, dim] array.
template <typename Array>
auto* row(Array& array, std::int64_t r, std::int32_t heads, std::int32_t h, std::int32_t dim) {
  return array.data() + (r * heads + h) * dim;
}

}  // namespace contextile
