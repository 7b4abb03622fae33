// Sums in pairs of fp32 against sums in fp64 that are rounded once.
#include "kernel/cuda/paired_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/rng.h"

namespace contextile::cuda {
namespace {

// A sum both ways. Each term is weight · a · b in fp64, as row operations compute it.
template <typename Sum>
struct BothSums {
  Sum paired;
  double fp64 = 0;
  int num_terms = 0;

  void add(float x) {
    paired.add(x);
    fp64 += static_cast<double>(x);
    ++num_terms;
  }
  void add_product(float a, float b) {
    paired.add_product(a, b);
    fp64 += static_cast<double>(a) * static_cast<double>(b);
    ++num_terms;
  }
  void add_weighted(double weight, float x) {
    paired.add_product(pair_of(weight), x);
    fp64 += weight * static_cast<double>(x);
    ++num_terms;
  }
  // Returns true if the rounding is decided, which then must be that of fp64.
  [[nodiscard]] bool decides() const {
    float rounded = 0;
    if (!paired.decides(num_terms, rounded)) return false;
    EXPECT_EQ(rounded, static_cast<float>(fp64)) << num_terms << " terms";
    return true;
  }
};

// A number of a random exponent.
float wild(Rng& rng, int exponents) {
  const int exponent = static_cast<int>(rng.next() % static_cast<std::uint64_t>(exponents));
  return static_cast<float>(std::ldexp(rng.normal(), exponent - exponents / 2));
}

TEST(PairedSums, DecideOnlyWhatFp64RoundsTo) {
  Rng rng(1);
  for (const int exponents : {1, 12, 60, 250}) {
    for (int turn = 0; turn < 4000; ++turn) {
      BothSums<PlainSum> plain;
      BothSums<PairedSum> products;
      BothSums<PairedSum> weighted;
      const int count = 1 + static_cast<int>(rng.next() % 40);
      for (int i = 0; i < count; ++i) {
        const float x = wild(rng, exponents);
        plain.add(i % 7 == 6 ? -plain.paired.pair.high : x);  // little is left of some sums
        products.add_product(x, wild(rng, exponents));
        const double weight = std::exp(-std::fabs(rng.normal()) * exponents / 4);
        if (weight >= kLeastPair) weighted.add_weighted(weight, x);
      }
      static_cast<void>(plain.decides());
      static_cast<void>(products.decides());
      static_cast<void>(weighted.decides());
    }
  }
}

// Ties are exact in fp64, and in pairs that are known to be.
TEST(PlainSums, RoundTiesAsFp64Does) {
  for (const float x : {1.0F, -1.0F, 0x1p-60F, 0x1p40F}) {
    for (const float odd : {0x1.000002p0F, 0x1.000006p0F}) {  // rounded down, and up
      BothSums<PlainSum> sums;
      sums.add(x);
      sums.add(x * odd);
      EXPECT_TRUE(sums.decides()) << x;
      sums.add(0);
      EXPECT_TRUE(sums.decides()) << x;
      sums.add(x * 0x1p-70F);  // fp64 loses it
      EXPECT_FALSE(sums.decides()) << x;
    }
  }
  BothSums<PlainSum> nothing_left;
  nothing_left.add(1);
  nothing_left.add(-1);
  EXPECT_TRUE(nothing_left.decides());
}

// The rest of the sum is about half the distance to the next fp32 number.
TEST(PairedSums, LeaveRoundingsNearATieUndecided) {
  for (const float x : {1.0F, 1.5F, -1.0F, 3.1415927F, 0x1p-60F, 0x1.fffffep40F}) {
    for (const float toward : {-HUGE_VALF, HUGE_VALF}) {
      const float half = (std::nextafter(x, toward) - x) / 2;
      for (int distance = 1; distance < 60; ++distance) {
        for (const float sign : {-1.0F, 0.0F, 1.0F}) {
          BothSums<PairedSum> sums;
          sums.add(x);
          sums.add(half);
          sums.add(sign * std::ldexp(half, -distance));
          const bool decided = sums.decides();
          if (sign == 0.0F || distance < 10) {
            EXPECT_EQ(decided, sign != 0.0F) << x << ' ' << distance;
          }
        }
      }
    }
  }
}

TEST(PairedSums, LeaveWhatTheyCannotBoundUndecided) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kMost = std::numeric_limits<float>::max();
  const std::vector<std::vector<float>> lists = {{},
                                                 {0.0F},
                                                 {-0.0F, -0.0F},
                                                 {1.0F, kNan},
                                                 {kInfinity},
                                                 {kInfinity, -kInfinity},
                                                 {kMost},
                                                 {kMost, kMost},
                                                 {0x1p-149F},
                                                 {0x1p-100F, 0x1p-120F}};
  for (const std::vector<float>& list : lists) {
    PlainSum sum;
    for (const float x : list) sum.add(x);
    float rounded = 0;
    EXPECT_FALSE(sum.decides(static_cast<int>(list.size()), rounded))
        << testing::PrintToString(list);
  }
  PlainSum many;
  many.add(1);
  float rounded = 0;
  EXPECT_TRUE(many.decides(1, rounded));
  EXPECT_FALSE(many.decides(1000, rounded));
}

// Rows need fp64 as a rule where they have one undecided element among hundreds.
TEST(PairedSums, DecideAlmostAllSumsOfNormalNumbers) {
  Rng rng(2);
  int num_undecided[3] = {};
  constexpr int kTurns = 20'000;
  for (int turn = 0; turn < kTurns; ++turn) {
    BothSums<PlainSum> plain;
    BothSums<PairedSum> products;
    BothSums<PairedSum> weighted;
    for (int i = 0; i < 8; ++i) {
      const auto x = static_cast<float>(rng.normal());
      plain.add(x);
      products.add_product(x, static_cast<float>(rng.normal()));
      weighted.add_weighted(0.1 + 0.2 * rng.uniform(), x);
    }
    num_undecided[0] += plain.decides() ? 0 : 1;
    num_undecided[1] += products.decides() ? 0 : 1;
    num_undecided[2] += weighted.decides() ? 0 : 1;
  }
  for (const int undecided : num_undecided) EXPECT_LT(undecided, kTurns / 1000);
}

// Sums of 32 lanes that are halved until one is left, as rows_delta adds them.
TEST(PairedSums, MayBeAddedToEachOther) {
  Rng rng(3);
  int num_decided = 0;
  for (int turn = 0; turn < 2000; ++turn) {
    PairedSum lanes[32];
    double fp64[32] = {};
    for (int i = 0; i < 128; ++i) {
      const float a = wild(rng, 1 + turn % 20);
      const auto b = static_cast<float>(rng.normal());
      lanes[i / 4].add_product(a, b);
      fp64[i % 32] += static_cast<double>(a) * static_cast<double>(b);
    }
    for (int half = 16; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) {
        lanes[i].add(lanes[i + half]);
        fp64[i] += fp64[i + half];
      }
    }
    float rounded = 0;
    if (!lanes[0].decides(4 + 2 * 5, rounded)) continue;
    EXPECT_EQ(rounded, static_cast<float>(fp64[0]));
    ++num_decided;
  }
  EXPECT_GT(num_decided, 1950);
}

}  // namespace
}  // namespace contextile::cuda
