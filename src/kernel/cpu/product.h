// Matrix products of register tiles.
//
// A is read one element at a time, B and C by vectors. An element is a float, or a pair of bf16
// numbers that are neighbours along the depth; then the depth counts pairs. Leading dimensions
// count elements.
#pragma once

#include <cstdint>

#include "kernel/cpu/inline.h"

namespace contextile {

// The form of A: a[m·lda + k] or a[k·lda + m].
enum class AForm : std::uint8_t { kRowMajor, kColumnMajor };
// The factor of C before the product is added. With kLanes, `factor` gives one number to every lane
// of C.
enum class Before : std::uint8_t { kZero, kOne, kLanes };

// Computes c[kRows x kVectors vectors] = before·c + a·b over `depth`, and folds the largest element
// of every lane into `largest` if kMax. The product is summed before it is added to C, so that long
// sums stay accurate. It is a function of its own so that its loop has all registers.
template <class V, int kRows, int kVectors, AForm kForm, Before kBefore, bool kMax>
[[gnu::noinline]] void product(std::int64_t depth, const typename V::Element* __restrict a,
                               std::int64_t lda, const typename V::Element* __restrict b,
                               std::int64_t ldb, float* __restrict c, std::int64_t ldc,
                               const typename V::Float* factor, typename V::Float* largest) {
  using Factor = typename V::Factor;
  using Float = typename V::Float;
  Float sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) sum[m][n] = V::zero();
  }
#pragma GCC unroll 2
  for (std::int64_t k = 0; k < depth; ++k) {
    Factor row[kVectors];
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) row[n] = V::load_factors(b + k * ldb + n * V::kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const Factor element =
          V::set_factor(kForm == AForm::kRowMajor ? a[m * lda + k] : a[k * lda + m]);
#pragma GCC unroll 4
      for (int n = 0; n < kVectors; ++n) {
        sum[m][n] = V::multiply_add(element, row[n], sum[m][n]);
      }
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      float* const to = c + m * ldc + n * V::kLanes;
      if constexpr (kBefore == Before::kOne) sum[m][n] = V::add(sum[m][n], V::load(to));
      if constexpr (kBefore == Before::kLanes) {
        sum[m][n] = V::fma(factor[n], V::load(to), sum[m][n]);
      }
      V::store(to, sum[m][n]);
      if constexpr (kMax) largest[n] = V::max(largest[n], sum[m][n]);
    }
  }
}

// Adds a·b to c[rows x kVectors vectors].
template <class V, int kVectors, AForm kForm>
inline void add_product_strip(std::int64_t rows, std::int64_t depth, const typename V::Element* a,
                              std::int64_t lda, const typename V::Element* b, std::int64_t ldb,
                              float* c, std::int64_t ldc) {
  const std::int64_t a_step = kForm == AForm::kRowMajor ? lda : 1;
  std::int64_t m = 0;
  for (; m + V::kGradientRows <= rows; m += V::kGradientRows) {
    product<V, V::kGradientRows, kVectors, kForm, Before::kOne, false>(
        depth, a + m * a_step, lda, b, ldb, c + m * ldc, ldc, nullptr, nullptr);
  }
  for (; m + 2 <= rows; m += 2) {
    product<V, 2, kVectors, kForm, Before::kOne, false>(depth, a + m * a_step, lda, b, ldb,
                                                        c + m * ldc, ldc, nullptr, nullptr);
  }
  if (m < rows) {
    product<V, 1, kVectors, kForm, Before::kOne, false>(depth, a + m * a_step, lda, b, ldb,
                                                        c + m * ldc, ldc, nullptr, nullptr);
  }
}

// Adds a·b to c[rows x columns]; `columns` is a multiple of kLanes.
template <class V, AForm kForm>
inline void add_product(std::int64_t rows, std::int64_t columns, std::int64_t depth,
                        const typename V::Element* a, std::int64_t lda,
                        const typename V::Element* b, std::int64_t ldb, float* c,
                        std::int64_t ldc) {
  std::int64_t n = 0;
  constexpr std::int64_t kStrip = std::int64_t{V::kGradientVectors} * V::kLanes;
  for (; n + kStrip <= columns; n += kStrip) {
    add_product_strip<V, V::kGradientVectors, kForm>(rows, depth, a, lda, b + n, ldb, c + n, ldc);
  }
  for (; n + 2 * V::kLanes <= columns; n += 2 * V::kLanes) {
    add_product_strip<V, 2, kForm>(rows, depth, a, lda, b + n, ldb, c + n, ldc);
  }
  if (n < columns) add_product_strip<V, 1, kForm>(rows, depth, a, lda, b + n, ldb, c + n, ldc);
}

}  // namespace contextile
