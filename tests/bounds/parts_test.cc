// The linear program of parts against what parts can do.
#include "bounds/parts.h"

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

TEST(LeastBytesOfParts, IsExactByHand) {
  // A free share of 2 pairs with 5 tokens, and one of 6 pairs for 10 bytes more.
  const std::vector<Share> shares = {{.work = 2, .owned = 5, .bytes = 0},
                                     {.work = 6, .owned = 5, .bytes = 10}};
  EXPECT_NEAR(least_bytes_of_parts(shares, 2, 4, 10), 0, 1e-6);
  EXPECT_NEAR(least_bytes_of_parts(shares, 2, 8, 10), 10, 1e-6);
  EXPECT_NEAR(least_bytes_of_parts(shares, 2, 6, 10), 5, 1e-6);  // half a share
  EXPECT_NEAR(least_bytes_of_parts(shares, 2, 12, 10), 20, 1e-6);
}

TEST(LeastBytesOfParts, CountsTokensOnce) {
  // Only one part can own enough for the free share; another one has to move for its pairs.
  const std::vector<Share> shares = {{.work = 4, .owned = 8, .bytes = 0},
                                     {.work = 4, .owned = 2, .bytes = 7}};
  EXPECT_NEAR(least_bytes_of_parts(shares, 2, 8, 16), 0, 1e-6);
  EXPECT_NEAR(least_bytes_of_parts(shares, 2, 8, 10), 7, 1e-6);
}

TEST(LeastBytesOfParts, IsVeryLargeWhenThePartsCannotDoTheWork) {
  const std::vector<Share> shares = {{.work = 1, .owned = 1, .bytes = 3}};
  EXPECT_GT(least_bytes_of_parts(shares, 2, 100, 10), 1e4);
  EXPECT_EQ(least_bytes_of_parts({}, 2, 100, 10), std::numeric_limits<double>::infinity());
}

// The cheapest whole choice of a share, or none, for each of `parts` parts.
double cheapest(const std::vector<Share>& shares, int parts, double work, double tokens) {
  if (work <= 0 && tokens >= 0) return 0;
  if (parts == 0 || tokens < 0) return std::numeric_limits<double>::infinity();
  double best = std::numeric_limits<double>::infinity();
  for (const Share& share : shares) {
    best = std::min(
        best, share.bytes + cheapest(shares, parts - 1, work - share.work, tokens - share.owned));
  }
  return best;
}

TEST(LeastBytesOfParts, IsNeverAboveAnyChoiceOfShares) {
  int bounded = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Rng rng(seed);
    std::vector<Share> shares(static_cast<std::size_t>(random_between(rng, 1, 7)));
    for (Share& share : shares) {
      share.work = static_cast<double>(random_between(rng, 0, 20));
      share.owned = static_cast<double>(random_between(rng, 0, 10));
      share.bytes = static_cast<double>(random_between(rng, 0, 50));
    }
    const auto parts = static_cast<int>(random_between(rng, 1, 4));
    const auto work = static_cast<double>(random_between(rng, 1, 50));
    const auto tokens = static_cast<double>(random_between(rng, 1, 30));
    const double least = least_bytes_of_parts(shares, parts, work, tokens);
    const double whole = cheapest(shares, parts, work, tokens);
    EXPECT_LE(least, whole + 1e-6 * std::max(1.0, whole));
    bounded += whole > 0 && whole < 1e9 && least > 0.5 * whole ? 1 : 0;
  }
  EXPECT_GT(bounded, 20);  // else anything would pass
}

}  // namespace
}  // namespace contextile
