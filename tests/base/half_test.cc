#include "base/half.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>

#include "base/rng.h"

namespace contextile {
namespace {

// A 16-bit float as its two functions and the bits of infinity.
struct Format {
  const char* name;
  float (*to_float)(std::uint16_t);
  std::uint16_t (*from_float)(float);
  std::uint16_t infinity;
};

class HalfFormat : public ::testing::TestWithParam<Format> {};

TEST_P(HalfFormat, EveryBitPatternSurvivesTheWayThroughFloat) {
  const Format& format = GetParam();
  for (std::uint32_t pattern = 0; pattern <= 0xffffU; ++pattern) {
    const auto bits = static_cast<std::uint16_t>(pattern);
    const float value = format.to_float(bits);
    const std::uint16_t magnitude = bits & 0x7fffU;
    ASSERT_EQ(std::isnan(value), magnitude > format.infinity) << fmt::format("{:#06x}", bits);
    if (std::isnan(value)) {
      ASSERT_GT(format.from_float(value) & 0x7fffU, format.infinity)
          << fmt::format("{:#06x}", bits);
      continue;
    }
    ASSERT_EQ(std::isinf(value), magnitude == format.infinity);
    ASSERT_EQ(std::signbit(value), bits >> 15 == 1);
    ASSERT_EQ(format.from_float(value), bits) << fmt::format("{:#06x}", bits);
  }
}

TEST_P(HalfFormat, LargerBitsAreLargerNumbers) {
  const Format& format = GetParam();
  for (std::uint16_t bits = 0; bits < format.infinity; ++bits) {
    ASSERT_LT(format.to_float(bits), format.to_float(static_cast<std::uint16_t>(bits + 1)));
  }
}

// Checks between any two neighbours: the middle goes to the even one, a float next to it to the
// nearer one.
TEST_P(HalfFormat, RoundsToNearestEven) {
  const Format& format = GetParam();
  for (std::uint16_t low = 0; low < format.infinity; ++low) {
    SCOPED_TRACE(fmt::format("{:#06x}", low));
    const auto high = static_cast<std::uint16_t>(low + 1);
    const double below = format.to_float(low);
    // Infinity takes the place of the number that would follow the largest one.
    const double step = high == format.infinity
                            ? below - format.to_float(static_cast<std::uint16_t>(low - 1))
                            : format.to_float(high) - below;
    // Below float's normal range its own steps are as wide as the last bit, so the middle is one of
    // them.
    const auto middle = static_cast<float>(below + step / 2);
    ASSERT_EQ(static_cast<double>(middle), below + step / 2);
    const std::uint16_t even = (low & 1U) == 0 ? low : high;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float less = std::nextafter(middle, 0.0F);
    const float more = std::nextafter(middle, kInfinity);
    ASSERT_EQ(format.from_float(middle), even);
    ASSERT_EQ(format.from_float(less), low);
    ASSERT_EQ(format.from_float(more), high);
    ASSERT_EQ(format.from_float(-middle), even | 0x8000U);
    ASSERT_EQ(format.from_float(-less), low | 0x8000U);
    ASSERT_EQ(format.from_float(-more), high | 0x8000U);
  }
}

TEST_P(HalfFormat, LargeAndOddFloatsBecomeInfinityAndNaN) {
  const Format& format = GetParam();
  using Limits = std::numeric_limits<float>;
  EXPECT_EQ(format.from_float(Limits::infinity()), format.infinity);
  EXPECT_EQ(format.from_float(-Limits::infinity()), format.infinity | 0x8000U);
  EXPECT_EQ(format.from_float(Limits::max()), format.infinity);
  EXPECT_EQ(format.from_float(0.0F), 0);
  EXPECT_EQ(format.from_float(-0.0F), 0x8000U);
  for (const std::uint32_t bits :
       {0x7f800001U, 0x7fc00000U, 0x7fffffffU, 0xff800001U, 0xffffffffU}) {
    const float nan = std::bit_cast<float>(bits);
    EXPECT_TRUE(std::isnan(format.to_float(format.from_float(nan)))) << fmt::format("{:#x}", bits);
  }
}

TEST_P(HalfFormat, NeverTakesTheFartherNeighbour) {
  const Format& format = GetParam();
  Rng rng(1);
  for (int trial = 0; trial < 200'000; ++trial) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(rng.next() >> 32));
    const std::uint16_t bits = format.from_float(value);
    if (std::isnan(value) || (bits & 0x7fffU) >= format.infinity) continue;
    const double error = std::fabs(static_cast<double>(format.to_float(bits)) - value);
    for (const int step : {-1, 1}) {
      const auto other = static_cast<std::uint16_t>(bits + step);
      const double distance = std::fabs(static_cast<double>(format.to_float(other)) - value);
      if (std::isfinite(distance)) {
        ASSERT_LE(error, distance) << value;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, HalfFormat,
                         ::testing::Values(Format{"bf16", bf16_to_float, float_to_bf16, 0x7f80},
                                           Format{"f16", f16_to_float, float_to_f16, 0x7c00}),
                         [](const auto& info) { return info.param.name; });

TEST(Half, KnowsSomeNumbers) {
  EXPECT_EQ(f16_to_float(0x3c00), 1.0F);
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0F);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24F);
  EXPECT_EQ(float_to_f16(65519.0F), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0F), 0x7c00);
  EXPECT_EQ(float_to_f16(0x1p-25F), 0);
  EXPECT_EQ(bf16_to_float(0x3f80), 1.0F);
  EXPECT_EQ(float_to_bf16(1.00390625F), 0x3f80);  // half a step above 1: to even
  EXPECT_EQ(float_to_bf16(1.01171875F), 0x3f82);  // one and a half: to even
}

TEST(Fp8, RoundsToTheNearestAndComesBack) {
  for (int bits = 0; bits < 256; ++bits) {
    const float value = fp8_to_float(static_cast<std::uint8_t>(bits));
    if ((bits & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(float_to_fp8(value), bits) << value;
    }
  }
  EXPECT_EQ(fp8_to_float(0x7e), 448.0F);
  EXPECT_EQ(fp8_to_float(0x01), 0x1p-9F);
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    const float value = std::uniform_real_distribution<float>(-500, 500)(random) *
                        std::exp2(static_cast<float>(-static_cast<int>(random() % 20)));
    float nearest = 1e9F;
    for (int bits = 0; bits < 256; ++bits) {
      const float one = fp8_to_float(static_cast<std::uint8_t>(bits));
      if (std::abs(one - value) < std::abs(nearest - value)) nearest = one;
    }
    const float found = fp8_to_float(float_to_fp8(value));
    EXPECT_EQ(std::abs(found - value), std::abs(nearest - value)) << value;
  }
  EXPECT_TRUE(std::isnan(fp8_to_float(float_to_fp8(std::nanf("")))));
}

}  // namespace
}  // namespace contextile
