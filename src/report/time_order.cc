#include "report/time_order.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <vector>

namespace contextile {
namespace {

// 1 for the smallest; equal values share the mean of their ranks.
std::vector<double> ranks_of(std::span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t i, std::size_t j) { return values[i] < values[j]; });
  std::vector<double> ranks(values.size());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (std::size_t i = begin; i < end; ++i) {
      ranks[order[i]] = 0.5 * static_cast<double>(begin + 1 + end);
    }
    begin = end;
  }
  return ranks;
}

}  // namespace

std::optional<double> rank_correlation(std::span<const double> a, std::span<const double> b) {
  const std::vector<double> a_ranks = ranks_of(a);
  const std::vector<double> b_ranks = ranks_of(b);
  const double mean = 0.5 * static_cast<double>(a.size() + 1);
  double covariance = 0;
  double a_variance = 0;
  double b_variance = 0;
  for (std::size_t i = 0; i < a_ranks.size(); ++i) {
    covariance += (a_ranks[i] - mean) * (b_ranks[i] - mean);
    a_variance += (a_ranks[i] - mean) * (a_ranks[i] - mean);
    b_variance += (b_ranks[i] - mean) * (b_ranks[i] - mean);
  }
  if (a_variance == 0 || b_variance == 0) return std::nullopt;
  return covariance / std::sqrt(a_variance * b_variance);
}

PairOrder pair_order(std::span<const double> predicted, std::span<const double> measured) {
  PairOrder order;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    for (std::size_t j = 0; j < measured.size(); ++j) {
      if (measured[j] <= measured[i] * (1 + kTimeNoise)) continue;
      ++order.differing;
      if (predicted[j] > predicted[i]) ++order.alike;
    }
  }
  return order;
}

std::optional<double> KendallOrder::tau() const {
  if (pairs == 0) return std::nullopt;
  return static_cast<double>(in_order - turned) / static_cast<double>(pairs);
}

KendallOrder kendall_order(std::span<const double> predicted, std::span<const double> measured,
                           double tie) {
  KendallOrder order;
  for (std::size_t i = 0; i < measured.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto [shorter, longer] = std::minmax(measured[i], measured[j]);
      if (longer < shorter * (1 + tie)) continue;
      ++order.pairs;
      if (predicted[i] == predicted[j]) continue;
      const bool in_order = (predicted[i] < predicted[j]) == (measured[i] < measured[j]);
      ++(in_order ? order.in_order : order.turned);
    }
  }
  return order;
}

}  // namespace contextile
