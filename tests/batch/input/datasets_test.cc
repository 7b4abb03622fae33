#include "batch/input/datasets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "contextile/data.h"

namespace contextile {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::int64_t> samples(std::string_view dataset, std::uint64_t seed, std::size_t count) {
  LengthSampler sampler(dataset, seed);
  std::vector<std::int64_t> result(count);
  std::ranges::generate(result, [&] { return sampler.next(); });
  return result;
}

constexpr std::size_t kMany = 400'000;

// Sorted samples, so that quantiles can be looked up.
class Sorted {
 public:
  explicit Sorted(std::string_view dataset) : values_(samples(dataset, 42, kMany)) {
    std::ranges::sort(values_);
  }
  [[nodiscard]] double quantile(double p) const {
    return static_cast<double>(values_[static_cast<std::size_t>(p * (kMany - 1))]);
  }
  [[nodiscard]] double mean() const {
    return std::accumulate(values_.begin(), values_.end(), 0.0) / kMany;
  }
  // Share of all tokens that lies in documents shorter than `length`.
  [[nodiscard]] double token_share_below(std::int64_t length) const {
    const auto end = std::ranges::lower_bound(values_, length);
    return std::accumulate(values_.begin(), end, 0.0) / (mean() * kMany);
  }
  [[nodiscard]] std::int64_t min() const { return values_.front(); }
  [[nodiscard]] std::int64_t max() const { return values_.back(); }

 private:
  std::vector<std::int64_t> values_;
};

struct Quantile {
  double p;
  double tokens;
};
void expect_quantiles(const Sorted& sorted, const std::vector<Quantile>& expected,
                      double tolerance) {
  for (const auto& [p, tokens] : expected) {
    EXPECT_NEAR(sorted.quantile(p) / tokens, 1, tolerance) << "at " << p;
  }
}

TEST(Datasets, SamplesArePinned) {
  EXPECT_THAT(samples("longalign", 1, 8),
              ElementsAre(26880, 17392, 20006, 12741, 26529, 8763, 7908, 12486));
  EXPECT_THAT(samples("longdatacollections", 1, 8),
              ElementsAre(34968, 15475, 4618, 996, 11386, 5066, 3450, 774));
  EXPECT_THAT(samples("prolong", 1, 8), ElementsAre(3043, 1994, 2231, 1571, 2996, 1011, 849, 1544));
  EXPECT_THAT(samples("pretrain", 1, 8), ElementsAre(4532, 3353, 3693, 2522, 4495, 913, 433, 2455));
  EXPECT_THAT(samples("lognormal512k", 1, 8),
              ElementsAre(6464, 2546, 639, 111, 1793, 711, 458, 83));
}

TEST(Datasets, TheMixtureHasHalfItsTokensUnder4kAndOthersUpTo512k) {
  const Sorted sorted("mixture512k");
  EXPECT_NEAR(sorted.token_share_below(4096), 0.5, 0.03);
  // Long documents: as many tokens below the middle of their range as above it.
  EXPECT_NEAR(sorted.token_share_below((4096 + 524'288) / 2), 0.75, 0.03);
  EXPECT_NEAR(sorted.quantile(0.5), 700 / 1.02, 40);
  EXPECT_GT(sorted.max(), 495'000);
  EXPECT_LE(sorted.max(), 524'288);
}

TEST(Datasets, SeedsGiveDifferentSamples) {
  for (const Dataset& dataset : datasets()) {
    EXPECT_EQ(samples(dataset.name, 9, 100), samples(dataset.name, 9, 100));
    EXPECT_NE(samples(dataset.name, 9, 100), samples(dataset.name, 10, 100));
  }
}

TEST(Datasets, AreNamedAndCalledLikeTheirModel) {
  std::vector<std::string_view> names;
  for (const Dataset& dataset : datasets()) {
    names.push_back(dataset.name);
    EXPECT_THAT(std::string(dataset.description), HasSubstr("-like"));
  }
  EXPECT_THAT(names, ElementsAre("longalign", "longdatacollections", "prolong", "pretrain",
                                 "lognormal512k", "mixture512k"));
}

TEST(Datasets, UnknownNamesListTheKnownOnes) {
  try {
    const LengthSampler sampler("prolongg", 0);
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(
        error.what(),
        AllOf(HasSubstr(
                  "longalign, longdatacollections, prolong, pretrain, lognormal512k, mixture512k"),
              HasSubstr("did you mean 'prolong'?")));
  }
}

TEST(Datasets, LongalignHasThePublishedQuantilesInTokensOfGpt2) {
  // The published ones, of tokens of Qwen3: 11490, 16384, 32768, 37719 and 53176.
  const auto share_below = [](double tokens) {
    constexpr std::array<double, 6> kShares = {0, 0.5, 0.704, 0.879, 0.9, 1};
    constexpr std::array<double, 6> kTokens = {6811, 11490, 16384, 32768, 37719, 53176};
    for (std::size_t i = 1; i < kTokens.size(); ++i) {
      if (tokens > kTokens[i]) continue;
      const double part = std::log(std::max(tokens, kTokens[0]) / kTokens[i - 1]) /
                          std::log(kTokens[i] / kTokens[i - 1]);
      return kShares[i - 1] + part * (kShares[i] - kShares[i - 1]);
    }
    return 1.0;
  };
  const Sorted sorted("longalign");
  for (const double p : {0.1, 0.25, 0.5, 0.75, 0.9, 0.99}) {
    const double tokens = sorted.quantile(p);
    EXPECT_NEAR(0.739 * share_below(tokens / 1.05) + 0.261 * share_below(tokens / 2.65), p, 0.01);
  }
  EXPECT_GT(sorted.max(), 140'000);
}

TEST(Datasets, LongdatacollectionsIsSkewed) {
  const Sorted sorted("longdatacollections");
  expect_quantiles(sorted, {{0.05, 250}, {0.25, 972}, {0.5, 2500}, {0.75, 6427}, {0.95, 25000}},
                   0.02);
  EXPECT_GT(sorted.max(), 131'072);
}

TEST(Datasets, ProlongHasTheMeasuredQuantiles) {
  const Sorted sorted("prolong");
  expect_quantiles(sorted,
                   {{0.05, 801},
                    {0.25, 1237},
                    {0.5, 1914},
                    {0.75, 3467},
                    {0.9, 6051},
                    {0.95, 8379},
                    {0.99, 16273}},
                   0.02);
  EXPECT_NEAR(sorted.mean(), 3052, 60);
  EXPECT_GE(sorted.min(), 575);
  EXPECT_LE(sorted.max(), 340149);
}

TEST(Datasets, PretrainHasTheMeasuredQuantiles) {
  const Sorted sorted("pretrain");
  expect_quantiles(
      sorted, {{0.05, 324}, {0.25, 1606}, {0.5, 3227}, {0.75, 4832}, {0.9, 5784}, {0.95, 6110}},
      0.02);
  EXPECT_NEAR(sorted.quantile(0.99) / 26070, 1, 0.06);
  EXPECT_NEAR(sorted.mean(), 3962, 60);
  EXPECT_GE(sorted.min(), 1);
  EXPECT_LE(sorted.max(), 124913);
}

TEST(Datasets, Lognormal512kHasHalfItsTokensUnder4k) {
  const Sorted sorted("lognormal512k");
  EXPECT_NEAR(sorted.quantile(0.5), 317, 5);
  EXPECT_NEAR(sorted.token_share_below(4096), 0.5, 0.02);
  EXPECT_GT(sorted.max(), 262'144);
  EXPECT_LE(sorted.max(), 524'288);
}

}  // namespace
}  // namespace contextile
