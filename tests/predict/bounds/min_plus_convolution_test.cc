#include "predict/bounds/min_plus_convolution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

// The least sum of `copies` values whose indices add up to k, by trying all of them.
double least_sum(const std::vector<double>& values, int copies, std::size_t k) {
  if (copies == 0) return k == 0 ? 0 : kNone;
  double least = kNone;
  for (std::size_t i = 0; i <= k && i < values.size(); ++i) {
    least = std::min(least, values[i] + least_sum(values, copies - 1, k - i));
  }
  return least;
}

TEST(MinPlusPower, IsTheLeastOfAllSums) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::vector<double> values(static_cast<std::size_t>(random_between(rng, 1, 5)));
    for (double& value : values) value = static_cast<double>(random_between(rng, 0, 30));
    const auto copies = static_cast<int>(random_between(rng, 1, 5));
    const std::int64_t num_steps = random_between(rng, 0, 12);
    const std::vector<double> sums = min_plus_power(values, copies, num_steps);
    ASSERT_LE(sums.size(), static_cast<std::size_t>(num_steps) + 1);
    for (std::size_t k = 0; k <= static_cast<std::size_t>(num_steps); ++k) {
      EXPECT_EQ(k < sums.size() ? sums[k] : kNone, least_sum(values, copies, k)) << k;
    }
  }
}

// Linear between the values, as the users of sums take them.
double interpolated(const std::vector<double>& values, double at) {
  const auto i = std::min(static_cast<std::size_t>(at), values.size() - 2);
  const double part = at - static_cast<double>(i);
  return values[i] + part * (values[i + 1] - values[i]);
}

TEST(ConvexPower, IsConvexAndNeverAboveTheLeastOfAllSums) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    std::vector<double> values(static_cast<std::size_t>(random_between(rng, 2, 9)));
    for (double& value : values) value = static_cast<double>(random_between(rng, 0, 30));
    const auto copies = static_cast<std::int32_t>(random_between(rng, 1, 40));
    const std::vector<double> bounds = convex_power(values, copies);
    ASSERT_EQ(bounds.size(), values.size());
    EXPECT_EQ(bounds.front(), copies * values.front());
    EXPECT_EQ(bounds.back(), copies * values.back());
    for (std::size_t i = 1; i + 1 < bounds.size(); ++i) {
      EXPECT_LE(2 * bounds[i], bounds[i - 1] + bounds[i + 1] + 1e-9);
    }
    const auto num_steps = static_cast<std::int64_t>(values.size() - 1) * copies;
    const std::vector<double> sums = min_plus_power(values, copies, num_steps);
    for (std::size_t k = 0; k < sums.size(); ++k) {
      EXPECT_LE(interpolated(bounds, static_cast<double>(k) / copies), sums[k] + 1e-9) << k;
    }
  }
}

}  // namespace
}  // namespace contextile
