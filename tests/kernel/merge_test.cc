// Merging and summing of hand-written rows, with the row operations of every kernel.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/kernel.h"
#include "kernel/cpu/logaddexp.h"
#include "kernel/row_ops.h"

namespace contextile {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Partial {
  Partial(std::int64_t rows, std::int32_t heads, std::int32_t dim)
      : o(static_cast<std::size_t>(rows * heads * dim), std::nanf("")),
        lse(static_cast<std::size_t>(rows * heads), std::nanf("")),
        view{{o.data(), Dtype::kF32, rows, heads, dim, heads * dim, dim}, {lse.data(), heads, 1}} {}
  Partial(const Partial&) = delete;
  Partial& operator=(const Partial&) = delete;
  std::vector<float> o, lse;
  PartialOutput view;
};

TEST(LogAddExp, IsExactAtTheEdges) {
  EXPECT_EQ(logaddexp(-kInfinity, -kInfinity), -kInfinity);
  EXPECT_EQ(logaddexp(-kInfinity, 3), 3);
  EXPECT_EQ(logaddexp(3, -kInfinity), 3);
  EXPECT_DOUBLE_EQ(logaddexp(0, 0), std::log(2));
  EXPECT_DOUBLE_EQ(logaddexp(1000, 1000), 1000 + std::log(2));
  EXPECT_EQ(logaddexp(0, -1000), 0);
  EXPECT_TRUE(std::isnan(logaddexp(std::nan(""), 1)));
}

class EveryKernel : public ::testing::TestWithParam<const AttentionKernel*> {};

TEST_P(EveryKernel, MergingEqualsSoftmaxOverTheUnion) {
  constexpr std::int32_t kDim = 5;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    double sum = 0;
    std::vector<double> expected(kDim);
    std::vector<std::unique_ptr<Partial>> parts;
    std::vector<PartialOutput> views;
    for (int p = 0; p < 4; ++p) {
      Partial& part = *parts.emplace_back(std::make_unique<Partial>(1, 1, kDim));
      views.push_back(part.view);
      part.lse[0] = static_cast<float>(4 * rng.normal());
      sum += std::exp(static_cast<double>(part.lse[0]));
      for (std::size_t d = 0; d < kDim; ++d) {
        part.o[d] = static_cast<float>(rng.normal());
        expected[d] += std::exp(static_cast<double>(part.lse[0])) * part.o[d];
      }
    }
    GetParam()->row_ops().merge(views[2], views);  // into one of its own sources
    EXPECT_NEAR(parts[2]->lse[0], std::log(sum), 1e-6);
    for (std::size_t d = 0; d < kDim; ++d) EXPECT_NEAR(parts[2]->o[d], expected[d] / sum, 1e-6);
  }
}

TEST_P(EveryKernel, MergingNeverReadsTheOutputOfAnEmptyRow) {
  Partial empty(1, 2, 3);  // O is NaN
  Partial other(1, 2, 3);
  Partial dst(1, 2, 3);
  empty.lse = {-INFINITY, -INFINITY};
  other.lse = {1, -INFINITY};  // head 1: both empty
  other.o = {1, 2, 3, NAN, NAN, NAN};
  for (const auto& srcs : {std::vector<PartialOutput>{empty.view, other.view},
                           std::vector<PartialOutput>{other.view, empty.view}}) {
    GetParam()->row_ops().merge(dst.view, srcs);
    EXPECT_EQ(dst.o, (std::vector<float>{1, 2, 3, 0, 0, 0}));
    EXPECT_EQ(dst.lse, (std::vector<float>{1, -INFINITY}));
  }
}

TEST_P(EveryKernel, SumsInListedOrderAndRoundsOnce) {
  std::vector<float> a = {1, 1e8F};
  std::vector<float> b = {2, 1};
  std::vector<float> c = {4, -1e8F};
  const auto view = [](std::vector<float>& v) {
    return TensorView{v.data(), Dtype::kF32, 1, 1, 2, 2, 2};
  };
  GetParam()->row_ops().sum(view(b), std::vector<TensorView>{view(a), view(b), view(c)});
  EXPECT_EQ(b, (std::vector<float>{7, 1}));  // in fp32 the 1 would be lost
}

// The number of sources decides how they are summed, but must not change the sign.
TEST_P(EveryKernel, ASumOfNegativeZerosIsNegative) {
  for (std::size_t count = 1; count < 8; ++count) {
    std::vector<float> zero = {-0.0F};
    const TensorView view{zero.data(), Dtype::kF32, 1, 1, 1, 1, 1};
    GetParam()->row_ops().sum(view, std::vector<TensorView>(count, view));
    EXPECT_TRUE(std::signbit(zero[0])) << count;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryKernel, ::testing::ValuesIn(kernels().begin(), kernels().end()),
                         [](const auto& tested) {
                           std::string name(tested.param->name());
                           std::ranges::replace(name, ':', '_');
                           return name;
                         });

}  // namespace
}  // namespace contextile
