// Shares of the peak between the points of a profile, against numbers computed by hand.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "contextile/cluster.h"

namespace contextile {
namespace {

AttentionProfile two_by_two() {
  return {.q_rows = {16, 256},
          .kv_rows = {64, 1024},
          .forward = {0.1, 0.4, 0.2, 0.8},
          .backward = {0.05, 0.2, 0.1, 1.6},
          .call_us = 3,
          .kernel_tile_rows = 32};
}

TEST(AttentionProfile, IsExactOnTheGrid) {
  const AttentionProfile profile = two_by_two();
  EXPECT_NEAR(profile.forward_share(16, 64), 0.1, 1e-15);
  EXPECT_NEAR(profile.forward_share(16, 1024), 0.4, 1e-15);
  EXPECT_NEAR(profile.forward_share(256, 64), 0.2, 1e-15);
  EXPECT_NEAR(profile.forward_share(256, 1024), 0.8, 1e-15);
  EXPECT_NEAR(profile.backward_share(256, 1024), 1.6, 1e-15);
}

TEST(AttentionProfile, InterpolatesLogarithms) {
  const AttentionProfile profile = two_by_two();
  // Half way in logarithms: 64 of 16 … 256 rows, 256 of 64 … 1024 keys; geometric means.
  EXPECT_NEAR(profile.forward_share(64, 64), std::sqrt(0.1 * 0.2), 1e-12);
  EXPECT_NEAR(profile.forward_share(16, 256), std::sqrt(0.1 * 0.4), 1e-12);
  EXPECT_NEAR(profile.forward_share(64, 256), std::pow(0.1 * 0.4 * 0.2 * 0.8, 0.25), 1e-12);
  // A quarter of the way in keys.
  EXPECT_NEAR(profile.forward_share(256, 128), 0.2 * std::pow(4, 0.25), 1e-12);
  EXPECT_NEAR(profile.backward_share(256, 256), std::sqrt(0.1 * 1.6), 1e-12);
}

TEST(AttentionProfile, StaysBeyondTheGrid) {
  const AttentionProfile profile = two_by_two();
  EXPECT_NEAR(profile.forward_share(1e6, 1e6), 0.8, 1e-15);
  EXPECT_NEAR(profile.forward_share(1e6, 64), 0.2, 1e-15);
  EXPECT_NEAR(profile.forward_share(16, 1e9), 0.4, 1e-15);
}

TEST(AttentionProfile, BelowTheGridARectangleTakesAsLongAsTheSmallest) {
  const AttentionProfile profile = two_by_two();
  // The share shrinks with the area, so that area over share is constant.
  EXPECT_NEAR(profile.forward_share(8, 64), 0.05, 1e-15);
  EXPECT_NEAR(profile.forward_share(16, 16), 0.025, 1e-15);
  EXPECT_NEAR(profile.forward_share(1, 1), 0.1 / 16 / 64, 1e-15);
  EXPECT_NEAR(1 * 1 / profile.forward_share(1, 1), 16 * 64 / profile.forward_share(16, 64), 1e-9);
}

TEST(AttentionProfile, OfOnePointIsThatPointEverywhereAbove) {
  const AttentionProfile profile = {
      .q_rows = {8}, .kv_rows = {8}, .forward = {0.5}, .backward = {0.25}};
  for (const double size : {8.0, 9.0, 1000.0}) {
    EXPECT_NEAR(profile.forward_share(size, size), 0.5, 1e-15);
    EXPECT_NEAR(profile.backward_share(size, 8), 0.25, 1e-15);
  }
}

TEST(AttentionProfile, PreparedSharesAreTheSameBits) {
  Rng rng(3);
  for (const AttentionProfile& profile :
       {two_by_two(), AttentionProfile::from_overheads(115, 9600, 0.86)}) {
    const AttentionShares shares(profile);
    for (int i = 0; i < 2000; ++i) {
      const double rows = std::exp(static_cast<double>(rng.next() % 15000) * 1e-3);
      const double keys = std::exp(static_cast<double>(rng.next() % 15000) * 1e-3);
      ASSERT_EQ(shares.forward(rows, keys), profile.forward_share(rows, keys));
      ASSERT_EQ(shares.backward(rows, keys), profile.backward_share(rows, keys));
    }
  }
}

TEST(AttentionProfile, FromOverheadsGrowsTowardsThePeakAndTimeGrowsWithSize) {
  const AttentionProfile profile = AttentionProfile::from_overheads(115, 9600, 0.86);
  EXPECT_NEAR(profile.forward_share(1024, 1024),
              1024.0 * 1024 / (1024.0 * 1024 + 115 * 1024 + 9600), 1e-12);
  for (double rows = 3; rows < 2e5; rows *= 1.37) {
    double last_share = 0;
    double last_time = 0;
    for (double keys = 3; keys < 2e5; keys *= 1.21) {
      const double share = profile.forward_share(rows, keys);
      EXPECT_LT(share, 1);
      EXPECT_GE(share, last_share * (1 - 1e-12)) << rows << " x " << keys;
      const double time = rows * keys / share;
      EXPECT_GE(time, last_time * (1 - 1e-12)) << rows << " x " << keys;
      EXPECT_NEAR(profile.backward_share(rows, keys), 0.86 * share, 1e-12);
      last_share = share;
      last_time = time;
    }
  }
}

TEST(AttentionProfile, FromOverheadsPricesThinRectanglesAsWholeKernelTiles) {
  const AttentionProfile profile = AttentionProfile::from_overheads(50, 9600, 1, 128);
  // 16 rows against 8192 keys: the kernel computes 128 rows.
  EXPECT_NEAR(profile.forward_share(16, 8192), 16.0 / 128, 1e-12);
  EXPECT_NEAR(profile.forward_share(64, 8192), 64.0 / 128, 1e-12);
  EXPECT_NEAR(profile.forward_share(32768, 32), 32.0 / 128, 1e-12);
  // The overheads of small squares cover their tiles.
  EXPECT_NEAR(profile.forward_share(128, 128), 128.0 * 128 / (128.0 * 128 + 50 * 128 + 9600),
              1e-12);
  EXPECT_NEAR(profile.forward_share(16, 16), 256.0 / (128.0 * 128), 1e-12);
}

TEST(AttentionProfile, PartialTilesWasteHalfAKernelTileAlongTheShorterSide) {
  const AttentionProfile profile = two_by_two();                  // kernel tiles of 32
  EXPECT_EQ(profile.computed_pairs(100, 200, 100 * 200), 20000);  // full: nothing wasted
  EXPECT_EQ(profile.computed_pairs(1000, 1000, 500'500), 500'500 + 16 * 1000);
  EXPECT_EQ(profile.computed_pairs(1000, 200, 50'000), 50'000 + 16 * 200);
  EXPECT_EQ(profile.computed_pairs(10, 10, 55), 100);  // never more than the rectangle
  AttentionProfile exact = profile;
  exact.kernel_tile_rows = 0;
  EXPECT_EQ(exact.computed_pairs(1000, 1000, 500'500), 500'500);
}

TEST(CheckProfile, SaysWhatIsWrong) {
  const auto broken = [](auto change) {
    AttentionProfile profile = two_by_two();
    change(profile);
    try {
      check_profile(profile);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  using Profile = AttentionProfile;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(broken([](Profile&) {}), "");
  const auto says = [](const std::string& message, const std::string& words) {
    EXPECT_NE(message.find(words), std::string::npos) << "found: " << message;
  };
  says(broken([](Profile& p) { p.q_rows = {}; }),
       "q_rows: expected ascending numbers of 1 to 2147483648");
  says(broken([](Profile& p) { p.q_rows = {16, 16}; }), "found 16, 16");
  says(broken([](Profile& p) { p.kv_rows = {0, 64}; }), "kv_rows: expected ascending");
  says(broken([](Profile& p) { p.forward.pop_back(); }), "forward: expected 4 numbers");
  says(broken([](Profile& p) { p.backward.push_back(1); }), "backward: expected 4 numbers");
  says(broken([](Profile& p) { p.forward[2] = 0; }), "of 1e-06 to 2, found 0");
  says(broken([](Profile& p) { p.backward[0] = 2.5; }), "of 1e-06 to 2, found 2.5");
  says(broken([&](Profile& p) { p.backward[0] = nan; }), "found nan");
  says(broken([](Profile& p) { p.call_us = -1; }), "call_us: expected 0 to 1000000000, found -1");
  says(broken([&](Profile& p) { p.call_us = nan; }),
       "call_us: expected 0 to 1000000000, found nan");
  says(broken([](Profile& p) { p.kernel_tile_rows = -1; }), "kernel_tile_rows: expected 0 to");
}

}  // namespace
}  // namespace contextile
