// The configuration linear program, compared with what parts can do.
#include "predict/bounds/configuration_lp.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "support/mask_support.h"

namespace contextile {
namespace {

TEST(ConfigurationLp, IsExactByHand) {
  // A free configuration of 2 pairs with 5 tokens, and one of 6 pairs for 10 bytes more.
  const std::vector<Configuration> configurations = {{.work = 2, .owned = 5, .bytes = 0},
                                                     {.work = 6, .owned = 5, .bytes = 10}};
  EXPECT_NEAR(configuration_lp_bound(configurations, 2, 4, 10).bytes, 0, 1e-6);
  EXPECT_NEAR(configuration_lp_bound(configurations, 2, 8, 10).bytes, 10, 1e-6);
  EXPECT_NEAR(configuration_lp_bound(configurations, 2, 6, 10).bytes, 5,
              1e-6);  // half a configuration
  EXPECT_NEAR(configuration_lp_bound(configurations, 2, 12, 10).bytes, 20, 1e-6);
}

TEST(ConfigurationLp, CountsTokensOnce) {
  // Only one part can own enough for the free configuration; another one has to move for its pairs.
  const std::vector<Configuration> configurations = {{.work = 4, .owned = 8, .bytes = 0},
                                                     {.work = 4, .owned = 2, .bytes = 7}};
  EXPECT_NEAR(configuration_lp_bound(configurations, 2, 8, 16).bytes, 0, 1e-6);
  EXPECT_NEAR(configuration_lp_bound(configurations, 2, 8, 10).bytes, 7, 1e-6);
}

TEST(ConfigurationLp, IsVeryLargeWhenThePartsCannotDoTheWork) {
  const std::vector<Configuration> configurations = {{.work = 1, .owned = 1, .bytes = 3}};
  EXPECT_GT(configuration_lp_bound(configurations, 2, 100, 10).bytes, 1e4);
  EXPECT_EQ(configuration_lp_bound({}, 2, 100, 10).bytes, std::numeric_limits<double>::infinity());
}

// The cheapest whole choice of a configuration, or none, for each of `parts` parts.
double cheapest(const std::vector<Configuration>& configurations, int parts, double work,
                double tokens) {
  if (work <= 0 && tokens >= 0) return 0;
  if (parts == 0 || tokens < 0) return std::numeric_limits<double>::infinity();
  double best = std::numeric_limits<double>::infinity();
  for (const Configuration& one : configurations) {
    best = std::min(
        best, one.bytes + cheapest(configurations, parts - 1, work - one.work, tokens - one.owned));
  }
  return best;
}

TEST(ConfigurationLp, IsNeverAboveAnyChoiceOfConfigurations) {
  int bounded = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    std::vector<Configuration> configurations(static_cast<std::size_t>(random_between(rng, 1, 7)));
    for (Configuration& one : configurations) {
      one.work = static_cast<double>(random_between(rng, 0, 20));
      one.owned = static_cast<double>(random_between(rng, 0, 10));
      one.bytes = static_cast<double>(random_between(rng, 0, 50));
    }
    const auto parts = static_cast<int>(random_between(rng, 1, 4));
    const auto work = static_cast<double>(random_between(rng, 1, 50));
    const auto tokens = static_cast<double>(random_between(rng, 1, 30));
    const double least = configuration_lp_bound(configurations, parts, work, tokens).bytes;
    const double whole = cheapest(configurations, parts, work, tokens);
    EXPECT_LE(least, whole + 1e-6 * std::max(1.0, whole));
    bounded += whole > 0 && whole < 1e9 && least > 0.5 * whole ? 1 : 0;
  }
  EXPECT_GT(bounded, 20);  // else anything would pass
}

}  // namespace
}  // namespace contextile
