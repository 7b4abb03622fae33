#include "bounds/min_plus_convolution.h"

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

}  // namespace
}  // namespace contextile
