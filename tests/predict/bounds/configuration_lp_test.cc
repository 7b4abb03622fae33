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
  EXPECT_NEAR(configuration_lp_bound(configurations, {2, 4, 10}).bytes, 0, 1e-6);
  EXPECT_NEAR(configuration_lp_bound(configurations, {2, 8, 10}).bytes, 10, 1e-6);
  EXPECT_NEAR(configuration_lp_bound(configurations, {2, 6, 10}).bytes, 5,
              1e-6);  // half a configuration
  EXPECT_NEAR(configuration_lp_bound(configurations, {2, 12, 10}).bytes, 20, 1e-6);
}

TEST(ConfigurationLp, CountsTokensOnce) {
  // Only one part can own enough for the free configuration; another one has to move for its pairs.
  const std::vector<Configuration> configurations = {{.work = 4, .owned = 8, .bytes = 0},
                                                     {.work = 4, .owned = 2, .bytes = 7}};
  EXPECT_NEAR(configuration_lp_bound(configurations, {2, 8, 16}).bytes, 0, 1e-6);
  EXPECT_NEAR(configuration_lp_bound(configurations, {2, 8, 10}).bytes, 7, 1e-6);
}

TEST(ConfigurationLp, IsVeryLargeWhenThePartsCannotDoTheWork) {
  const std::vector<Configuration> configurations = {{.work = 1, .owned = 1, .bytes = 3}};
  EXPECT_GT(configuration_lp_bound(configurations, {2, 100, 10}).bytes, 1e4);
  EXPECT_EQ(configuration_lp_bound({}, {2, 100, 10}).bytes,
            std::numeric_limits<double>::infinity());
}

TEST(ConfigurationLp, CountsLargePartsAndEarlyTokensOnce) {
  // Two parts may not both be in the free large configuration.
  std::vector<Configuration> configurations = {{.work = 4, .owned = 6, .is_large = true},
                                               {.work = 4, .owned = 4, .bytes = 7}};
  EXPECT_NEAR(configuration_lp_bound(configurations, {2, 8, 12, 2}).bytes, 0, 1e-6);
  EXPECT_NEAR(configuration_lp_bound(configurations, {2, 8, 12, 1}).bytes, 7, 1e-6);
  // Nor may both own all early tokens.
  configurations = {{.work = 4, .owned = 6, .early = 5}, {.work = 4, .owned = 4, .bytes = 7}};
  EXPECT_NEAR(configuration_lp_bound(configurations, {2, 8, 12, 2, 10}).bytes, 0, 1e-6);
  EXPECT_NEAR(configuration_lp_bound(configurations, {2, 8, 12, 2, 5}).bytes, 7, 1e-6);
}

// The cheapest whole choice of a configuration, or none, for each of the parts.
double cheapest(const std::vector<Configuration>& configurations, const ConfigurationSums& left) {
  const bool keeps = left.tokens >= 0 && left.most_large >= 0 && left.early >= 0;
  if (left.work <= 0 && keeps) return 0;
  if (left.parts == 0 || !keeps) return std::numeric_limits<double>::infinity();
  double best = std::numeric_limits<double>::infinity();
  for (const Configuration& one : configurations) {
    const double others = cheapest(configurations, {.parts = left.parts - 1,
                                                    .work = left.work - one.work,
                                                    .tokens = left.tokens - one.owned,
                                                    .most_large = left.most_large - one.is_large,
                                                    .early = left.early - one.early});
    best = std::min(best, one.bytes + others);
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
      one.is_large = random_chance(rng, 0.3);
      one.early = random_chance(rng, 0.5) ? static_cast<double>(random_between(rng, 0, 9)) : 0;
    }
    const ConfigurationSums sums = {.parts = static_cast<double>(random_between(rng, 1, 4)),
                                    .work = static_cast<double>(random_between(rng, 1, 50)),
                                    .tokens = static_cast<double>(random_between(rng, 1, 30)),
                                    .most_large = static_cast<double>(random_between(rng, 1, 3)),
                                    .early = static_cast<double>(random_between(rng, 1, 15))};
    const double least = configuration_lp_bound(configurations, sums).bytes;
    const double whole = cheapest(configurations, sums);
    EXPECT_LE(least, whole + 1e-6 * std::max(1.0, whole));
    bounded += whole > 0 && whole < 1e9 && least > 0.5 * whole ? 1 : 0;
  }
  EXPECT_GT(bounded, 20);  // else anything would pass
}

}  // namespace
}  // namespace contextile
