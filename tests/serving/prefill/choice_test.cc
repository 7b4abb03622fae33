#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "contextile/serving/prefill.h"
#include "serving/cache/error_of.h"
#include "serving/prefill/published_table.h"

namespace contextile {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::int64_t> missed_by_rule(const PrefillRates& rates) {
  return missed_rows([&](const PublishedPrefill& row) {
    return choose_prefill_mode(row.new_tokens, row.cached_tokens, kPublishedRanks, kPublishedShape,
                               rates);
  });
}

// By times of some schedule of the rings.
std::vector<std::int64_t> missed_by(double (*ms)(const PublishedPrefill&, PrefillMode,
                                                 const PrefillRates&),
                                    const PrefillRates& rates) {
  return missed_rows([&](const PublishedPrefill& row) {
    return ms(row, PrefillMode::kPassKv, rates) <= ms(row, PrefillMode::kPassQ, rates)
               ? PrefillMode::kPassKv
               : PrefillMode::kPassQ;
  });
}

TEST(PrefillChoice, OfThePublishedRows) {
  EXPECT_THAT(missed_by_rule(kPublishedRates), ElementsAre(6400));
  EXPECT_THAT(missed_by(simulated_ms, kPublishedRates), ElementsAre(6400));
  EXPECT_THAT(missed_by(scheduled_ms, kPublishedRates), ElementsAre(4160, 6400));
  EXPECT_THAT(missed_by_rule(kNominalRates), ElementsAre(3200, 4160, 6400));
  EXPECT_THAT(missed_by(simulated_ms, kNominalRates), ElementsAre(3200, 4160, 6400));
}

// Rates are those of Table 5: attention, keys and values and queries of a step. The all-to-all is
// not fitted.
TEST(PrefillChoice, RatesAreThoseOfThePublishedSteps) {
  constexpr double kDim = kPublishedShape.head_dim;
  for (const PublishedStep& step : kPublishedSteps) {
    const double cached = 128'000 - static_cast<double>(step.new_tokens);
    const double rows = static_cast<double>(step.new_tokens) / kPublishedRanks;
    const double pairs =
        rows * (cached + static_cast<double>(step.new_tokens) / 2) / kPublishedRanks;
    const double attention_us =
        1e6 * 4 * kDim * kPublishedShape.q_heads * pairs / kPublishedRates.flops_per_s;
    const auto us = [](double bytes) { return 1e6 * bytes / kPublishedRates.bytes_per_s; };
    EXPECT_NEAR(attention_us / step.attention_us, 1, 0.04);
    EXPECT_NEAR(us(2 * 2 * kDim * 32'000) / step.send_kv_us, 1, 0.01);
    EXPECT_NEAR(us(2 * kDim * kPublishedShape.q_heads * rows) / step.send_q_us, 1, 0.25);
    EXPECT_NEAR(us(3 * (2 * kDim + 4) * kPublishedShape.q_heads * rows) / step.all_to_all_us, 1,
                0.5);
  }
}

TEST(PrefillChoice, PredictsThePublishedTimes) {
  std::vector<std::string> missed;  // by more than 8%
  for (const PublishedPrefill& row : kPublishedPrefills) {
    for (const PrefillMode mode : kRingModes) {
      const double error = std::abs(predicted_ms(row, mode, kPublishedRates) / row.ms(mode) - 1);
      EXPECT_LT(error, 0.18);
      if (error > 0.08) missed.push_back(fmt::format("{} {}", row.new_tokens, to_string(mode)));
    }
  }
  EXPECT_THAT(missed, ElementsAre("6400 pass_kv", "6400 pass_q", "38400 pass_q", "51200 pass_q",
                                  "64000 pass_q", "76800 pass_q", "89600 pass_q", "102400 pass_q",
                                  "128000 pass_q"));
}

// N·C·K·e / (2·Q·BW) = 4 · 1e12 · 2 · 2 / (2 · 32 · 1e9) = 250 tokens; 2·K / Q = 1/8.
TEST(PrefillChoice, ChangesWhereTheRuleSays) {
  const AttentionShape shape = {.q_heads = 32, .kv_heads = 2};
  const PrefillRates rates = {1e12, 1e9, 0};
  const auto choose = [&](std::int64_t fresh, std::int64_t cached) {
    return choose_prefill_mode(fresh, cached, 4, shape, rates);
  };
  EXPECT_EQ(choose(249, 100'000), PrefillMode::kPassQ);
  EXPECT_EQ(choose(250, 100'000), PrefillMode::kPassKv);
  EXPECT_EQ(choose(100, 701), PrefillMode::kPassQ);
  EXPECT_EQ(choose(100, 700), PrefillMode::kPassKv);
}

constexpr PrefillMode kModes[] = {PrefillMode::kPassKv, PrefillMode::kPassQ,
                                  PrefillMode::kAllGather, PrefillMode::kUlysses};

PrefillWork work_of(std::int32_t ranks) {
  static const std::vector<PrefillSequence> kSequences = {{4096, 256, {}}, {0, 1024, {}}};
  return prefill_work({.layout = {.num_ranks = ranks}, .sequences = kSequences});
}

TEST(PrefillChoice, OneRankOnlyComputes) {
  const PrefillWork work = work_of(1);
  const AttentionShape shape = {.q_heads = 8, .kv_heads = 4};
  const double attention = forward_flops(work.pairs[0], 8, shape) / 1e12;
  for (const PrefillMode mode : kModes) {
    EXPECT_DOUBLE_EQ(simulate_prefill_s(mode, work, shape, {1e12, 1, 1}), attention);
  }
}

// The work of the slowest rank, or its bytes, take their time in any mode. If the other costs
// nothing, a mode takes about that time (ranks differ by a few rows, and a ring waits for the
// slowest in each step).
TEST(PrefillChoice, TimeIsBoundedByWorkAndBytes) {
  const AttentionShape shape = {.q_heads = 8, .kv_heads = 4};
  for (const std::int32_t ranks : {2, 4}) {
    const PrefillWork work = work_of(ranks);
    std::int64_t pairs = 0;
    for (const std::int64_t of : work.pairs) pairs += of;
    const double attention = forward_flops(pairs, 8, shape) / ranks / 1e12;
    for (const PrefillMode mode : kModes) {
      double bytes = 0;
      for (std::int32_t r = 0; r < ranks; ++r) {
        bytes = std::max(bytes, static_cast<double>(prefill_bytes(mode, work, Rank(r), shape)));
      }
      const double computing = simulate_prefill_s(mode, work, shape, {1e12, 1e30, 0});
      const double sending = simulate_prefill_s(mode, work, shape, {1e30, 1e9, 0});
      const double both = simulate_prefill_s(mode, work, shape, {1e12, 1e9, 0});
      EXPECT_GE(computing, attention * (1 - 1e-9));
      EXPECT_LE(computing, attention * 1.25);
      EXPECT_NEAR(sending / (bytes / 1e9), 1, 0.02) << to_string(mode);
      EXPECT_GE(both, std::max(computing, sending) * (1 - 1e-9));
      EXPECT_LE(both, (computing + sending) * (1 + 1e-9));
    }
  }
}

TEST(PrefillChoice, TakesTheFastestOfTheModes) {
  const AttentionShape shape = {.q_heads = 8, .kv_heads = 4};
  const PrefillWork work = work_of(4);
  const PrefillRates rates = {1e12, 1e9, 1e-6};
  const PrefillMode best = simulated_prefill_mode(kModes, work, shape, rates);
  for (const PrefillMode mode : kModes) {
    EXPECT_LE(simulate_prefill_s(best, work, shape, rates),
              simulate_prefill_s(mode, work, shape, rates));
  }
}

TEST(PrefillChoice, MeasuresTheSameOnAllRanks) {
  std::vector<PrefillRates> rates(3);
  run_inproc(3, [&](Transport& transport) {
    rates[transport.rank().index()] = measure_prefill_rates(
        transport, preferred_kernel(Dtype::kF32),
        {.q_heads = 2, .kv_heads = 1, .head_dim = 16, .value_dim = 16, .dtype = Dtype::kF32});
  });
  for (const PrefillRates& one : rates) {
    EXPECT_GT(one.flops_per_s, 0);
    EXPECT_GT(one.bytes_per_s, 0);
    EXPECT_EQ(one.flops_per_s, rates[0].flops_per_s);
    EXPECT_EQ(one.bytes_per_s, rates[0].bytes_per_s);
    EXPECT_EQ(one.message_s, rates[0].message_s);
  }
}

TEST(PrefillChoice, SaysWhatRatesItNeeds) {
  EXPECT_EQ(error_of([] {
              static_cast<void>(choose_prefill_mode(1, 1, 4, kPublishedShape, {0, 1e9, 0}));
            }),
            "prefill rates: expected positive FLOP/s and bytes/s, found 0 and 1000000000");
  EXPECT_EQ(error_of([] {
              static_cast<void>(choose_prefill_mode(0, 1, 4, kPublishedShape, kNominalRates));
            }),
            "prefill: expected new tokens and none or more cached ones, found 0 and 1");
}

}  // namespace
}  // namespace contextile
