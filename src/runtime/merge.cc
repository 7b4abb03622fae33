#include "runtime/merge.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "runtime/tensor.h"

namespace contextile {

double logaddexp(double a, double b) {
  const double high = std::max(a, b);
  const double low = std::min(a, b);
  if (low == -std::numeric_limits<double>::infinity()) return high;
  return high + std::log1p(std::exp(low - high));
}

namespace {

// Folds one row of every source into `row`; returns its LSE.
double merge_row(std::span<const PartialOutput> srcs, std::int64_t n, std::int32_t h,
                 std::vector<double>& row) {
  constexpr double kEmpty = -std::numeric_limits<double>::infinity();
  double lse = kEmpty;
  std::fill(row.begin(), row.end(), 0.0);
  for (const PartialOutput& src : srcs) {
    const double src_lse = stat_at(src.lse_NH, n, h);
    if (src_lse == kEmpty) continue;
    const double merged = logaddexp(lse, src_lse);
    const double keep = std::exp(lse - merged);  // 0 for the first non-empty source
    const double weight = std::exp(src_lse - merged);
    const float* src_row = row_at<float>(src.o_NHD, n, h);
    for (std::size_t d = 0; d < row.size(); ++d) row[d] = keep * row[d] + weight * src_row[d];
    lse = merged;
  }
  return lse;
}

}  // namespace

void merge_outputs(const PartialOutput& dst, std::span<const PartialOutput> srcs) {
  const TensorView& o_NHD = dst.o_NHD;
  std::vector<double> row(static_cast<std::size_t>(o_NHD.dim));
  for (std::int64_t n = 0; n < o_NHD.tokens; ++n) {
    for (std::int32_t h = 0; h < o_NHD.heads; ++h) {
      stat_at(dst.lse_NH, n, h) = static_cast<float>(merge_row(srcs, n, h, row));
      float* out = row_at<float>(o_NHD, n, h);
      for (std::size_t d = 0; d < row.size(); ++d) out[d] = static_cast<float>(row[d]);
    }
  }
}

void sum_tensors(const TensorView& dst, std::span<const TensorView> srcs) {
  std::vector<double> row(static_cast<std::size_t>(dst.dim));
  for (std::int64_t n = 0; n < dst.tokens; ++n) {
    for (std::int32_t h = 0; h < dst.heads; ++h) {
      std::fill(row.begin(), row.end(), 0.0);
      for (const TensorView& src : srcs) {
        const float* src_row = row_at<float>(src, n, h);
        for (std::size_t d = 0; d < row.size(); ++d) row[d] += src_row[d];
      }
      float* out = row_at<float>(dst, n, h);
      for (std::size_t d = 0; d < row.size(); ++d) out[d] = static_cast<float>(row[d]);
    }
  }
}

}  // namespace contextile
