// Simulated serving: times in closed form, no lost requests, and no better times under more load.
#include "contextile/serving/serve_simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/message_of.h"

namespace contextile {
namespace {

using testing::HasSubstr;

EngineOptions engine_of(std::int32_t pages, std::int32_t step_tokens) {
  EngineOptions engine;
  engine.cache.layout = {2, 1, 4};
  engine.cache.num_pages = pages;
  engine.max_step_tokens = step_tokens;
  return engine;
}

// 1 ms and 1 µs per token.
double simple_cost(std::span<const ScheduledTokens> step) {
  double us = 1000;
  for (const ScheduledTokens& part : step) us += static_cast<double>(part.tokens.size());
  return us;
}

TraceSpec busy_spec(double requests_per_s) {
  return {.num_requests = 150,
          .requests_per_s = requests_per_s,
          .prompt_tokens = 300,
          .output_tokens = 20,
          .shared = 0.6,
          .num_prefixes = 3,
          .prefix_tokens = 128,
          .seed = 5};
}

TEST(ServingSimulation, ARequestAloneTakesItsChunksAndAStepAToken) {
  const std::vector<TraceRequest> trace = {
      {.arrival_s = 2, .prompt_tokens = 70, .output_tokens = 11}};
  const ServingSimulation found = simulate_serving(trace, engine_of(100, 32), simple_cost);
  ASSERT_EQ(found.requests.size(), 1U);
  EXPECT_NEAR(found.requests[0].ttft_s(), 1e-6 * (1032 + 1032 + 1006), 1e-12);
  EXPECT_NEAR(*found.requests[0].tpot_s(), 1e-6 * 1001, 1e-12);
  EXPECT_NEAR(found.busy_s, 1e-6 * (3070 + 10 * 1001), 1e-12);
  EXPECT_NEAR(found.end_s, 2 + found.busy_s, 1e-12);
  EXPECT_NEAR(found.output_tokens_per_s(), 11 / found.busy_s, 1e-6);
  EXPECT_EQ(found.stats.num_steps, 13);
}

TEST(ServingSimulation, StepsTakeWhatTheModelPredictsOfTheirRows) {
  const HelixModel model = load_helix_model("llama-3-8b");
  const HelixHardware hardware = load_helix_hardware("h200");
  const HelixLayout layout = {2, 2, 4};
  const std::vector<TraceRequest> trace = {{.prompt_tokens = 700, .output_tokens = 3}};
  const ServingSimulation found =
      simulate_serving(trace, engine_of(200, 512), helix_step_cost(model, hardware, layout));
  const auto step_us = [&](const HelixRows& rows) {
    return helix_mixed_step(model, hardware, layout, rows).total_us();
  };
  const double chunks = step_us({512, 0, 512, 512 * 513 / 2.0}) +
                        step_us({188, 1, 700, 700 * 701 / 2.0 - 512 * 513 / 2.0});
  EXPECT_NEAR(found.requests[0].ttft_s(), 1e-6 * chunks, 1e-12);
  EXPECT_NEAR(*found.requests[0].tpot_s(),
              0.5e-6 * (step_us({1, 1, 701, 701}) + step_us({1, 1, 702, 702})), 1e-12);
}

// Parts of prompts are computed by the rows of groups, short ones and next tokens as decoding is.
TEST(ServingSimulation, SharedPromptsTakeWhatTheModelPredictsOfThem) {
  const HelixModel model = load_helix_model("llama-3-8b");
  const HelixHardware hardware = load_helix_hardware("h200");
  HelixLayout layout = {2, 2, 4};
  layout.prompts = HelixPrompts::kOwnRows;
  const std::vector<TraceRequest> trace = {{.prompt_tokens = 530, .output_tokens = 2}};
  PrefillPolicy prefill;
  prefill.mode = PrefillMode::kAllGather;
  const ServingSimulation found = simulate_serving(
      trace, engine_of(200, 512), helix_step_cost(model, hardware, layout, prefill));
  const HelixRows shared = {512, 0, 512, 512 * 513 / 2.0};
  const HelixRows rest = {18, 1, 530, 530 * 531 / 2.0 - 512 * 513 / 2.0};
  const double us =
      helix_prefill(model, hardware, layout, shared, PrefillMode::kAllGather).step.total_us() +
      helix_mixed_step(model, hardware, layout, rest).total_us();
  EXPECT_NEAR(found.requests[0].ttft_s(), 1e-6 * us, 1e-12);
  EXPECT_NEAR(*found.requests[0].tpot_s(),
              1e-6 * helix_mixed_step(model, hardware, layout, {1, 1, 531, 531}).total_us(), 1e-12);
}

TEST(ServingSimulation, PrefixesAreComputedOnce) {
  const TraceRequest first = {
      .prompt_tokens = 64, .output_tokens = 2, .prefix = 1, .prefix_tokens = 40};
  TraceRequest second = first;
  second.arrival_s = 1;
  TraceRequest other = second;
  other.prefix = 2;
  other.arrival_s = 2;
  const std::vector<TraceRequest> trace = {first, second, other};
  const ServingSimulation found = simulate_serving(trace, engine_of(100, 512), simple_cost);
  EXPECT_EQ(found.requests[0].cached_tokens, 0);
  EXPECT_EQ(found.requests[1].cached_tokens, 40);
  EXPECT_EQ(found.requests[2].cached_tokens, 0);
  EXPECT_NEAR(found.requests[1].ttft_s(), 1e-6 * 1024, 1e-12);
  EXPECT_NEAR(found.hit_rate(), 40 / 192.0, 1e-12);
}

TEST(ServingSimulation, EveryRequestEndsAndEveryTokenIsCounted) {
  for (const std::int32_t pages : {120, 2000}) {  // short, and as many as it takes
    const auto trace = make_trace(busy_spec(200));
    EngineOptions engine = engine_of(pages * 4, 128);
    std::int64_t computed = 0;
    const ServingSimulation found =
        simulate_serving(trace, engine, [&](std::span<const ScheduledTokens> step) {
          for (const ScheduledTokens& part : step) computed += part.tokens.size();
          return simple_cost(step);
        });
    EXPECT_EQ(found.stats.num_preemptions > 0, pages == 120);
    EXPECT_EQ(found.num_refused(), 0);
    EXPECT_EQ(computed, found.stats.num_computed_tokens);
    std::int64_t outputs = 0;
    std::int64_t prompts = 0;
    for (std::size_t i = 0; i < trace.size(); ++i) {
      const SimulatedRequest& request = found.requests[i];
      EXPECT_EQ(request.asked, trace[i]);
      EXPECT_GT(request.first_token_s, trace[i].arrival_s);
      EXPECT_GE(request.end_s, request.first_token_s);
      EXPECT_LE(request.end_s, found.end_s);
      outputs += trace[i].output_tokens;
      prompts += trace[i].prompt_tokens;
    }
    EXPECT_EQ(found.stats.num_output_tokens, outputs);
    EXPECT_EQ(found.stats.num_prompt_tokens, prompts);
    // The last token of a request is never computed.
    if (pages == 2000) {
      EXPECT_EQ(computed, prompts - found.stats.num_cached_tokens + outputs - 150);
    }
  }
}

TEST(ServingSimulation, IsTheSameEveryTime) {
  const auto run = [] {
    return simulate_serving(make_trace(busy_spec(100)), engine_of(500, 128), simple_cost);
  };
  const ServingSimulation one = run();
  const ServingSimulation other = run();
  for (std::size_t i = 0; i < one.requests.size(); ++i) {
    EXPECT_EQ(one.requests[i].first_token_s, other.requests[i].first_token_s);
    EXPECT_EQ(one.requests[i].end_s, other.requests[i].end_s);
  }
}

TEST(ServingSimulation, MoreLoadIsNoFaster) {
  double first_token = 0;
  double per_token = 0;
  for (const double rate : {1.0, 20.0, 80.0, 320.0}) {
    const ServingSimulation found =
        simulate_serving(make_trace(busy_spec(rate)), engine_of(4000, 128), simple_cost);
    EXPECT_GE(found.first_token_s().p90, first_token) << rate;
    EXPECT_GE(found.time_per_token_s().p50, per_token) << rate;
    first_token = found.first_token_s().p90;
    per_token = found.time_per_token_s().p50;
  }
}

TEST(ServingSimulation, RefusesWhatFindsNoPlaceToWait) {
  const std::vector<TraceRequest> trace(5, {.prompt_tokens = 30, .output_tokens = 4});
  EngineOptions engine = engine_of(100, 32);
  engine.max_running = 1;
  engine.max_waiting = 1;  // besides the one that can begin at once
  const ServingSimulation found = simulate_serving(trace, engine, simple_cost);
  EXPECT_EQ(found.num_refused(), 3);
  EXPECT_EQ(found.stats.num_output_tokens, 8);
  EXPECT_GT(found.first_token_s().p50, 0);
}

TEST(ServingSimulation, ThrowsOnWhatCannotBeServed) {
  const auto message = [](std::vector<TraceRequest> trace) {
    return message_of([&] { return simulate_serving(trace, engine_of(4, 32), simple_cost); });
  };
  EXPECT_THAT(message({{.prompt_tokens = 30, .output_tokens = 4}}),
              HasSubstr("the cache's 32 tokens"));
  EXPECT_THAT(message({{.arrival_s = 2}, {.arrival_s = 1}}),
              HasSubstr("trace, request 1: arrival_s: expected at least 2, found 1"));
}

TEST(ServingSimulation, PagesAreWhatFitsBesideTheWeights) {
  const HelixModel model = load_helix_model("llama-3-8b");
  const HelixHardware hardware = load_helix_hardware("h100");
  const HelixLayout layout = {4, 2, 8};
  const KvLayout kv_layout = {.num_ranks = 4, .page_size = 16};
  const std::int32_t pages = serving_pages(model, hardware, layout, kv_layout);
  const auto taken = [&](std::int64_t num_pages) {
    return helix_memory(model, layout, {1, num_pages * kv_layout.block_tokens()}).total();
  };
  const double room = static_cast<double>(hardware.memory_bytes - hardware.reserve_bytes);
  EXPECT_LE(taken(pages), room);
  EXPECT_GT(taken(pages + 1), room);
  EXPECT_THAT(message_of([&] { return serving_pages(model, hardware, layout, {.num_ranks = 2}); }),
              HasSubstr("KVP 4 ranks, found 2"));
}

TEST(Percentiles, AreValuesOfTheSample) {
  EXPECT_EQ(percentiles({}).p99, 0);
  EXPECT_EQ(percentiles({3}).p50, 3);
  std::vector<double> values;
  for (int i = 100; i >= 1; --i) values.push_back(i);
  const Percentiles found = percentiles(values);
  EXPECT_EQ(found.p50, 50);
  EXPECT_EQ(found.p90, 90);
  EXPECT_EQ(found.p99, 99);
}

}  // namespace
}  // namespace contextile
