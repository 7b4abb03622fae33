#include "serving/engine/step_times.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace contextile {
namespace {

constexpr double kDecode = 0.02;
constexpr double kToken = 1e-4;
constexpr double kPair = 2e-8;

double time_of(const StepContents& step) {
  return kDecode + kToken * static_cast<double>(step.prompt_tokens) +
         kPair * static_cast<double>(step.prompt_pairs);
}

StepContents step_of(std::int64_t position, std::int64_t tokens) {
  StepContents step;
  if (tokens > 0) step.add({position, position + tokens});
  return step;
}

TEST(StepTimes, PromptsGetTheLeastBeforeAnyStep) {
  EXPECT_EQ(StepTimes().limit(3).tokens(0), StepLimit::kLeast);
  EXPECT_EQ(StepTimes().limit(0).tokens(0), StepLimit::kUnlimited);  // no limit was asked for
  EXPECT_EQ(StepLimit().tokens(1000), StepLimit::kUnlimited);
}

// Whatever is computed, a step under the limit takes as long as was asked.
TEST(StepTimes, AStepUnderTheLimitTakesAsLongAsWasAsked) {
  StepTimes times;
  std::mt19937 random(1);
  std::int64_t position = 0;
  for (std::int32_t i = 0; i < 60; ++i) {
    const std::int64_t tokens = i % 4 == 0 ? 0 : times.limit(3).tokens(position);
    const StepContents step = step_of(position, tokens);
    const double noise = 1 + 0.02 * (static_cast<double>(random() % 101) / 50 - 1);
    times.add(time_of(step) * noise, step);
    position += tokens;
    if (i > 20 && tokens > 0) {
      EXPECT_NEAR(time_of(step), 3 * kDecode, 0.5 * kDecode) << "step " << i;
    }
  }
  EXPECT_GT(position, 5000);
}

TEST(StepTimes, LongContextsGetFewerTokens) {
  StepTimes times;
  times.add(kDecode, {});
  for (const std::int64_t position : {0, 30'000, 1000, 90'000}) {
    const StepContents step = step_of(position, 200);
    times.add(time_of(step), step);
  }
  const StepLimit limit = times.limit(3);
  EXPECT_NEAR(limit.token_s, kToken, 0.02 * kToken);
  EXPECT_NEAR(limit.pair_s, kPair, 0.02 * kPair);
  EXPECT_GT(limit.tokens(0), 2 * limit.tokens(30'000));
  EXPECT_GT(limit.tokens(30'000), 2 * limit.tokens(100'000));
}

// Steps that are all alike do not tell the cost of a token from that of a pair.
TEST(StepTimes, StepsThatAreAlikeStillGiveALimit) {
  StepTimes times;
  times.add(kDecode, {});
  for (std::int32_t i = 0; i < 5; ++i) times.add(time_of(step_of(0, 100)), step_of(0, 100));
  const StepLimit limit = times.limit(2);
  EXPECT_GT(limit.tokens(0), 100);
  EXPECT_LT(limit.tokens(0), 400);
}

}  // namespace
}  // namespace contextile
