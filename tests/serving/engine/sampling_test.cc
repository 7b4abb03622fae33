#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/rng.h"
#include "contextile/serving/engine.h"

namespace contextile {
namespace {

TEST(Sampling, IsGreedyWithoutTemperature) {
  const std::vector<float> logits = {0, 3, -1, 3};
  EXPECT_EQ(sample(logits, {}, 0).token, 1);
  const double sum = 1 + 2 * std::exp(3.0) + std::exp(-1.0);
  EXPECT_NEAR(sample(logits, {}, 0).logprob, 3 - std::log(sum), 1e-6);
}

// Compares with the order of all tokens, which `sample` never makes.
TEST(Sampling, EqualsAWalkOverTheSortedTokens) {
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> logits;
    for (int i = 0; i < 1 + static_cast<int>(random() % 40); ++i) {
      logits.push_back(static_cast<float>(random() % 12) / 4);  // equal ones, too
    }
    SamplingParams params = {.temperature = 0.5 + static_cast<double>(random() % 4) / 2,
                             .top_p = 0.1 * static_cast<double>(1 + random() % 10),
                             .top_k = static_cast<std::int32_t>(random() % 8),
                             .seed = random()};
    std::vector<std::int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    if (params.top_k > 0 && static_cast<std::size_t>(params.top_k) < order.size()) {
      order.resize(static_cast<std::size_t>(params.top_k));
    }
    std::vector<double> weights;
    double total = 0;
    for (const std::int32_t token : order) {
      weights.push_back(std::exp(logits[static_cast<std::size_t>(token)] / params.temperature));
      total += weights.back();
    }
    double kept = 0;
    std::size_t count = 0;
    while (count < order.size() && kept < (params.top_p - 1e-12) * total) kept += weights[count++];
    Rng drawn(params.seed * 0x9e3779b97f4a7c15ULL + 5);
    double rest = drawn.uniform() * kept;
    std::size_t place = 0;
    while (place + 1 < count && rest >= weights[place]) rest -= weights[place++];
    EXPECT_EQ(sample(logits, params, 5).token, order[place]) << round;
  }
}

TEST(Sampling, DrawsTokensAsOftenAsTheyAreLikely) {
  const std::vector<float> logits = {0, 1, 2, -std::numeric_limits<float>::infinity(), 3};
  const double temperature = 1.5;
  std::vector<double> share(5, 0);
  constexpr int kDraws = 40'000;
  for (int i = 0; i < kDraws; ++i) {
    share[static_cast<std::size_t>(sample(logits, {temperature, 1, 0, 11}, i).token)] +=
        1.0 / kDraws;
  }
  double total = 0;
  for (const float logit : logits) total += std::exp(logit / temperature);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_NEAR(share[i], std::exp(logits[i] / temperature) / total, 0.012);
  }
}

TEST(Sampling, LeavesOutWhatIsUnlikely) {
  const std::vector<float> logits = {0, 1, 2, 3};
  for (int i = 0; i < 500; ++i) {
    EXPECT_GE(sample(logits, {1, 1, 2, 3}, i).token, 2);
    EXPECT_GE(sample(logits, {1, 0.85, 0, 3}, i).token, 2);  // 3 and 2 have 0.88 of it
    EXPECT_EQ(sample(logits, {1, 0.6, 0, 3}, i).token, 3);
  }
  EXPECT_EQ(sample(logits, {1, 1, 0, 3}, 5).token, sample(logits, {1, 1, 0, 3}, 5).token);
}

TEST(Sampling, RefusesLogitsThatAreNone) {
  const std::vector<float> logits = {0, std::nanf("")};
  EXPECT_THROW(static_cast<void>(sample(logits, {}, 0)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(sample({}, {}, 0)), InvalidArgument);
}

}  // namespace
}  // namespace contextile
