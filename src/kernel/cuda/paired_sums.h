// Sums of fp32 numbers that are rounded as if they were computed in fp64, without fp64.
//
// Devices that are not for data centers, and B300, do one fp64 operation in the time of 32 or 64 of
// fp32. A sum is therefore the pair of an fp32 number and its error. A bound on the error of both
// ways says whether they round to the same fp32 number. The caller computes the few sums that it
// leaves undecided again in fp64, so the bits are those of fp64 in all cases.
#pragma once

#include <cmath>

#include "kernel/cuda/layout.h"

namespace contextile::cuda {

// An fp64 number as two of fp32. The error is below 2^-48 of the number unless it is tiny.
struct FloatPair {
  float high = 0;
  float low = 0;
};
CONTEXTILE_HD FloatPair pair_of(double x) {
  const auto high = static_cast<float>(x);
  return {high, static_cast<float>(x - static_cast<double>(high))};
}
// The least number, other than zero, whose pair has that error.
inline constexpr double kLeastPair = 0x1p-100;

// The sum of terms so far: `high + low`.
struct PairedSum {
  float high = 0;
  float low = 0;
  float size = 0;  // the sum of the absolute values of all terms

  CONTEXTILE_HD void add(float x) { add(x, 0, std::fabs(x)); }
  CONTEXTILE_HD void add_product(float a, float b) {
    const float product = a * b;
    add(product, std::fma(a, b, -product), std::fabs(product));
  }
  CONTEXTILE_HD void add_product(const FloatPair& a, float b) {
    const float product = a.high * b;
    add(product, std::fma(a.low, b, std::fma(a.high, b, -product)), std::fabs(product));
  }
  CONTEXTILE_HD void add(const PairedSum& other) { add(other.high, other.low, other.size); }

  // Sets `rounded` to the sum in fp32, and returns true if the sum in fp64, in any order, is
  // certain to round to that. Terms are at most products of a pair and an fp32 number;
  // `num_terms` of them, and two for each level at which sums were added to each other.
  //
  // With u = 2^-24, n terms and A = size, products have errors of at most 3.1·u²A together, sums of
  // errors are below u(n + 2.01)A and rounded n times, and fp64 is off by (n + 1)·2^-53·A. The
  // rest of (n + 4)² covers the roundings below, and of `size` itself.
  [[nodiscard]] CONTEXTILE_HD bool decides(int num_terms, float& rounded) const {
    const auto n = static_cast<float>(num_terms + 4);
    const float bound = n * n * 0x1p-48F * size;
    float rest = 0;
    rounded = sum_of(high, low, rest);
    return is_bounded() && num_terms < 1000 && rounded + (rest + bound) == rounded &&
           rounded + (rest - bound) == rounded;
  }
  // True if nothing overflowed, and no error is lost below the least number.
  [[nodiscard]] CONTEXTILE_HD bool is_bounded() const {
    return size >= 0x1p-90F && size <= 0x1p120F;
  }

 private:
  // Returns a + b rounded; `error` is what it lacks, exactly.
  CONTEXTILE_HD static float sum_of(float a, float b, float& error) {
    const float sum = a + b;
    const float share = sum - a;
    error = (a - (sum - share)) + (b - share);
    return sum;
  }
  CONTEXTILE_HD void add(float x, float x_error, float x_size) {
    float error = 0;
    high = sum_of(high, x, error);
    low += error + x_error;
    size += x_size;
  }
};

// A sum of fp32 numbers as they are. Exact ties are usual among such sums, but few have more bits
// than a pair has.
struct PlainSum {
  PairedSum pair;
  float least = INFINITY;  // absolute value of a term, other than zero

  CONTEXTILE_HD void add(float x) {
    pair.add(x);
    const float size = std::fabs(x);
    if (size > 0 && size < least) least = size;
  }
  // Returns the same as PairedSum::decides. All sums are multiples of some q > u·least. So fp64 is
  // exact up to 2^53·q, and so is `low`, which is at most n·u·A, up to 2^24·q.
  [[nodiscard]] CONTEXTILE_HD bool decides(int num_terms, float& rounded) const {
    if (pair.decides(num_terms, rounded)) return true;
    const bool is_exact =
        static_cast<float>(num_terms) * pair.size <= 0x1p23F * least && num_terms < 1000;
    return pair.is_bounded() && is_exact;
  }
};

}  // namespace contextile::cuda
