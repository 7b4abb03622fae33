// How well predicted times order measured ones.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "contextile/advanced/validation.h"

namespace contextile {

// Spearman's rank correlation, ties sharing their mean rank: 1 when both order the items alike, -1
// when one order is the other reversed. None for fewer than two items, or when all are equal.
[[nodiscard]] std::optional<double> rank_correlation(std::span<const double> a,
                                                     std::span<const double> b);

// Counts the pairs whose measured times differ by more than kTimeNoise of the shorter one, and how
// many of them are predicted in the same order.
inline constexpr double kTimeNoise = 0.05;
struct PairOrder {
  std::int64_t differing = 0;
  std::int64_t alike = 0;
};
[[nodiscard]] PairOrder pair_order(std::span<const double> predicted,
                                   std::span<const double> measured);

// Counts the pairs of Kendall's tau. Two measured times are tied, and their pair is dropped, when
// the longer exceeds the shorter by less than the share `tie`. All times must be positive. O(n²).
[[nodiscard]] KendallOrder kendall_order(std::span<const double> predicted,
                                         std::span<const double> measured, double tie);

}  // namespace contextile
