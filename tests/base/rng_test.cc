#include "base/rng.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/portable_math.h"

namespace contextile {
namespace {

TEST(Rng, GivesXoshirosPublishedSequence) {
  Rng rng(0);
  EXPECT_EQ(rng.next(), 0x99ec5f36cb75f2b4U);
  EXPECT_EQ(rng.next(), 0xbf6e1f784956452aU);
  EXPECT_EQ(rng.next(), 0x1a5f849d4933e6e0U);
  EXPECT_EQ(rng.next(), 0x6aa594f1262d2d2cU);
}

TEST(Rng, UniformStaysInsideAndFillsTheUnitInterval) {
  Rng rng(7);
  int below_half = 0;
  for (int i = 0; i < 100'000; ++i) {
    const double value = rng.uniform();
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    below_half += value < 0.5 ? 1 : 0;
  }
  EXPECT_NEAR(below_half, 50'000, 800);  // five standard deviations
}

TEST(Rng, NormalHasTheMomentsOfAStandardNormal) {
  Rng rng(11);
  constexpr int kCount = 200'000;
  double sum = 0;
  double squares = 0;
  double fourths = 0;
  for (int i = 0; i < kCount; ++i) {
    const double value = rng.normal();
    sum += value;
    squares += value * value;
    fourths += value * value * value * value;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.012);
  EXPECT_NEAR(squares / kCount, 1, 0.016);
  EXPECT_NEAR(fourths / kCount, 3, 0.12);
}

TEST(PortableMath, AgreesWithTheCLibraryToAFewUlps) {
  Rng rng(3);
  for (int i = 0; i < 100'000; ++i) {
    const double x = 1400 * rng.uniform() - 700;
    SCOPED_TRACE(x);
    const double power = portable_exp(x);
    ASSERT_NEAR(power / std::exp(x), 1, 1e-15);
    ASSERT_NEAR(portable_log(power), std::log(power), 4e-16 * std::abs(x));
    const double near_one = 1 + 0.01 * (rng.uniform() - 0.5);
    ASSERT_NEAR(portable_log(near_one), std::log(near_one), 2e-18);
  }
  EXPECT_EQ(portable_log(1), 0);
  EXPECT_EQ(portable_exp(0), 1);
}

}  // namespace
}  // namespace contextile
