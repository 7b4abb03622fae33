#include "contextile/serving/engine.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "base/rng.h"
#include "serving/engine/small_decoder.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;

// Requests of a trace; each comes before a step.
struct Arrival {
  std::int64_t step = 0;
  GenerationRequest request;
};

GenerationRequest request_of(std::int32_t id, std::vector<std::int32_t> prompt,
                             std::int32_t max_tokens) {
  GenerationRequest request;
  request.id = RequestId(id);
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  return request;
}

std::vector<std::int32_t> tokens_of(std::mt19937& random, std::int64_t count) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(std::uniform_int_distribution<std::int32_t>(0, 60)(random));
  }
  return tokens;
}

// Prompts, many of which begin alike, greedy and sampled.
std::vector<Arrival> trace(std::int32_t num_requests, std::uint32_t seed) {
  std::mt19937 random(seed);
  const std::vector<std::int32_t> shared = tokens_of(random, 50);
  std::vector<Arrival> arrivals;
  std::int64_t step = 0;
  for (std::int32_t i = 0; i < num_requests; ++i) {
    std::vector<std::int32_t> prompt;
    if (random() % 2 == 0) {
      prompt.assign(shared.begin(), shared.begin() + 20 + random() % 31);
    }
    for (const std::int32_t token : tokens_of(random, 1 + random() % 40)) prompt.push_back(token);
    GenerationRequest request = request_of(i, prompt, 1 + static_cast<std::int32_t>(random() % 12));
    if (i % 3 == 1) request.sampling = {0.8, 0.95, 20, static_cast<std::uint64_t>(i)};
    if (i % 5 == 0) request.stop_tokens = {7, 9};
    arrivals.push_back({step, request});
    step += random() % 3;
  }
  return arrivals;
}

struct Served {
  std::map<std::int32_t, std::vector<std::int32_t>> outputs;  // by request
  std::map<std::int32_t, std::int64_t> cached_tokens;
  EngineStats stats;
};

// The ranks of a group, as in DecoderPart; 0 ranks: those of the cache.
struct Ranks {
  std::int32_t all = 0;
  std::int32_t context_parallel = 1;
};

Served serve(const std::vector<Arrival>& arrivals, const EngineOptions& options,
             DecoderOptions decoder = {}, Ranks ranks = {}) {
  const DecoderConfig config = small_decoder();
  const std::int32_t token_ranks = options.cache.layout.num_ranks;
  if (ranks.all == 0) ranks.all = token_ranks;
  decoder.layout = options.cache.layout;
  decoder.num_pages = options.cache.num_pages;
  std::vector<Served> served(static_cast<std::size_t>(ranks.all));
  run_inproc(ranks.all, [&](Transport& transport) {
    const DecoderPart part = {transport.rank(), transport.size(),
                              decoder.mode == DecodeMode::kQReplicated, ranks.context_parallel,
                              token_ranks};
    DecoderRank model(transport, config, random_weights(config, part, 7), decoder);
    Engine engine(model, config, options);
    EngineRank rank(transport, engine);
    Served& its = served[transport.rank().index()];
    std::size_t next = 0;
    for (std::int64_t step = 0; next < arrivals.size() || !engine.idle(); ++step) {
      EngineInput input;
      while (next < arrivals.size() && arrivals[next].step <= step) {
        input.arrivals.push_back(arrivals[next++].request);
      }
      // Only the first rank's input counts: the others receive it.
      const EngineOutput output = rank.advance(transport.rank().value == 0 ? input : EngineInput{});
      EXPECT_TRUE(output.rejections.empty());
      for (const EngineEvent& event : output.events) {
        its.outputs[event.request.value].push_back(event.token);
        its.cached_tokens[event.request.value] = event.cached_tokens;
      }
      engine.scheduler().cache().check_consistency();
    }
    its.stats = engine.scheduler().stats();
  });
  for (const Served& its : served) EXPECT_EQ(its.outputs, served.front().outputs);
  return served.front();
}

EngineOptions options_of(std::int32_t ranks, std::int32_t pages, std::int32_t step_tokens = 64) {
  EngineOptions options;
  options.cache.layout = {ranks, 1, 4};
  options.cache.num_pages = pages;
  options.max_step_tokens = step_tokens;
  options.pace = 0;  // steps do not depend on time
  return options;
}

// Serves one request after another on one rank with room for everything: the result that each
// request would get alone.
Served alone(const std::vector<Arrival>& arrivals) {
  Served all;
  for (const Arrival& arrival : arrivals) {
    EngineOptions options = options_of(1, 120, 400);
    options.cache.share_prefixes = false;
    const Served one = serve({{0, arrival.request}}, options);
    all.outputs.insert(one.outputs.begin(), one.outputs.end());
  }
  return all;
}

TEST(Engine, TokensAreThoseOfEveryRequestAloneOnOneRank) {
  const std::vector<Arrival> arrivals = trace(24, 1);
  const Served expected = alone(arrivals);
  for (const std::int32_t ranks : {1, 2, 3, 4, 8}) {
    for (const std::int32_t interleave : {1, 2, 4}) {
      SCOPED_TRACE(fmt::format("{} ranks, interleave {}", ranks, interleave));
      EngineOptions options = options_of(ranks, 200);
      options.cache.layout.interleave = interleave;
      const Served found = serve(arrivals, options);
      EXPECT_EQ(found.outputs, expected.outputs);
      EXPECT_GT(found.stats.num_cached_tokens, 0);
      EXPECT_EQ(found.stats.num_preemptions, 0);
    }
  }
}

TEST(Engine, EveryModeGivesTheSameTokens) {
  const std::vector<Arrival> arrivals = trace(12, 2);
  const Served expected = alone(arrivals);
  for (const DecodeMode mode : {DecodeMode::kAgRs, DecodeMode::kA2a}) {
    DecoderOptions decoder;
    decoder.mode = mode;
    EXPECT_EQ(serve(arrivals, options_of(4, 200), decoder).outputs, expected.outputs);
  }
}

// Tensor by context parallelism, and groups of heads that share a cache: with room, and with so few
// pages that requests begin again.
TEST(Engine, EveryLayoutOfRanksGivesTheSameTokens) {
  const std::vector<Arrival> arrivals = trace(24, 5);
  const Served expected = alone(arrivals);
  for (const auto& [ranks, context, shared] :
       {std::tuple{4, 4, 4}, {4, 2, 2}, {4, 1, 1}, {4, 1, 2}, {8, 4, 4}, {8, 2, 2}}) {
    for (const bool is_short : {false, true}) {
      SCOPED_TRACE(
          fmt::format("{} ranks, {} context-parallel, {} share tokens", ranks, context, shared));
      DecoderOptions decoder;
      decoder.prefill.min_tokens = 8;
      const EngineOptions options =
          is_short ? options_of(shared, 30 / shared + 2, 32) : options_of(shared, 200);
      const Served found = serve(arrivals, options, decoder, {ranks, context});
      EXPECT_EQ(found.outputs, expected.outputs);
      EXPECT_GT(found.stats.num_cached_tokens, 0);
      EXPECT_EQ(found.stats.num_preemptions > 0, is_short);
    }
  }
}

TEST(Engine, HopBGivesTheSameTokens) {
  const std::vector<Arrival> arrivals = trace(24, 2);
  const Served expected = alone(arrivals);
  for (const HopBReading reading : {HopBReading::kAttention, HopBReading::kFeedForward}) {
    for (const std::int32_t ranks : {1, 2, 3, 4}) {
      DecoderOptions decoder;
      decoder.hop_b = reading;
      decoder.hop_b_groups = 3;
      SCOPED_TRACE(fmt::format("{}, {} ranks", to_string(reading), ranks));
      const Served found = serve(arrivals, options_of(ranks, 200), decoder);
      EXPECT_EQ(found.outputs, expected.outputs);
      EXPECT_GT(found.stats.num_cached_tokens, 0);
    }
  }
}

// With a quarter of the pages that all requests together would take, requests are put back and
// begin again.
TEST(Engine, NothingIsLostWhenPagesAreShort) {
  const std::vector<Arrival> arrivals = trace(24, 3);
  const Served expected = alone(arrivals);
  for (const std::int32_t ranks : {1, 4}) {
    const Served found = serve(arrivals, options_of(ranks, ranks == 1 ? 30 : 8, 32));
    EXPECT_EQ(found.outputs, expected.outputs);
    EXPECT_GT(found.stats.num_preemptions, 0);
    EXPECT_GT(found.stats.num_computed_tokens, 0);
  }
}

TEST(Engine, PromptsAreComputedInChunksBesideOthersTokens) {
  std::mt19937 random(4);
  std::vector<Arrival> arrivals = {{0, request_of(0, tokens_of(random, 5), 30)},
                                   {3, request_of(1, tokens_of(random, 200), 4)}};
  const Served expected = alone(arrivals);
  const Served found = serve(arrivals, options_of(2, 100, 16));
  EXPECT_EQ(found.outputs, expected.outputs);
  // 200 tokens at 15 per step, together with one of the other request.
  EXPECT_GE(found.stats.num_steps, 30);
  EXPECT_EQ(found.stats.num_computed_tokens, 5 + 200 + 29 + 3);
}

TEST(Engine, ALongPromptHoldsUpNoShortOne) {
  std::mt19937 random(8);
  std::vector<Arrival> arrivals = {{0, request_of(0, tokens_of(random, 300), 1)},
                                   {2, request_of(1, tokens_of(random, 3), 4)}};
  const DecoderConfig config = small_decoder();
  EngineOptions options = options_of(1, 100, 16);
  Scheduler scheduler(options, config.max_length);
  ASSERT_TRUE(scheduler.submit(arrivals[0].request));
  static_cast<void>(scheduler.next());
  ASSERT_TRUE(scheduler.submit(arrivals[1].request));
  const std::vector<ScheduledTokens> step = scheduler.next();
  ASSERT_EQ(step.size(), 2U);
  EXPECT_EQ(step[0].tokens.size(), 13);
  EXPECT_EQ(step[1].tokens, (Range{0, 3}));
  EXPECT_TRUE(step[1].needs_logits);
  EXPECT_EQ(serve(arrivals, options).outputs, alone(arrivals).outputs);
}

// Logits that are not numbers end their request and no other.
TEST(Engine, WhatCannotBeSampledFailsAlone) {
  const DecoderConfig config = small_decoder();
  run_inproc(1, [&](Transport& transport) {
    DecoderWeights weights = random_weights(config, {}, 7);
    weights.embeddings.set(5 * 32, std::nanf(""));
    DecoderOptions decoder;
    decoder.layout = {1, 1, 4};
    decoder.num_pages = 20;
    DecoderRank model(transport, config, std::move(weights), decoder);
    Engine engine(model, config, options_of(1, 20));
    ASSERT_TRUE(engine.submit(request_of(1, {5}, 4)));
    ASSERT_TRUE(engine.submit(request_of(2, {6}, 4)));
    const std::vector<EngineEvent> events = engine.step();
    ASSERT_EQ(events.size(), 2U);
    EXPECT_THAT(events[0].failure, HasSubstr("none NaN or +inf"));
    EXPECT_EQ(events[1].failure, "");
    EXPECT_EQ(engine.scheduler().num_running(), 1);
  });
}

TEST(Engine, PromptsThatWereThereAreNotComputedAgain) {
  std::mt19937 random(5);
  const std::vector<std::int32_t> prompt = tokens_of(random, 65);
  const std::vector<Arrival> arrivals = {{0, request_of(0, prompt, 2)},
                                         {10, request_of(1, prompt, 2)}};
  const Served found = serve(arrivals, options_of(2, 100, 128));
  EXPECT_EQ(found.cached_tokens.at(0), 0);
  EXPECT_EQ(found.cached_tokens.at(1), 64);
  EXPECT_EQ(found.outputs.at(0), found.outputs.at(1));
  EXPECT_EQ(found.stats.num_computed_tokens, 65 + 1 + 1 + 1);
}

// Both come before one step: what the first computes in it, the second reads in it.
TEST(Engine, TwinsOfOneStepShareWhatItComputes) {
  std::mt19937 random(6);
  const std::vector<std::int32_t> prompt = tokens_of(random, 41);
  const std::vector<Arrival> arrivals = {{0, request_of(0, prompt, 3)},
                                         {0, request_of(1, prompt, 3)}};
  const Served found = serve(arrivals, options_of(2, 100, 128));
  EXPECT_EQ(found.cached_tokens.at(1), 40);
  EXPECT_EQ(found.outputs.at(0), found.outputs.at(1));
  EXPECT_EQ(found.outputs, alone(arrivals).outputs);
}

TEST(Engine, CancelledRequestsGiveTheirPagesBack) {
  const DecoderConfig config = small_decoder();
  run_inproc(1, [&](Transport& transport) {
    DecoderOptions decoder;
    decoder.layout = {1, 1, 4};
    decoder.num_pages = 20;
    DecoderRank model(transport, config, random_weights(config, {}, 7), decoder);
    Engine engine(model, config, options_of(1, 20));
    std::mt19937 random(7);
    ASSERT_TRUE(engine.submit(request_of(3, tokens_of(random, 30), 40)));
    ASSERT_TRUE(engine.submit(request_of(4, tokens_of(random, 9), 40)));
    static_cast<void>(engine.step());
    EXPECT_TRUE(engine.cancel(RequestId(3)));
    EXPECT_FALSE(engine.cancel(RequestId(3)));
    EXPECT_EQ(engine.scheduler().num_running(), 1);
    EXPECT_TRUE(engine.cancel(RequestId(4)));
    EXPECT_TRUE(engine.idle());
    EXPECT_EQ(engine.scheduler().cache().free_pages(), 20);
    EXPECT_TRUE(engine.step().empty());
  });
}

std::string error_of(Scheduler& scheduler, const GenerationRequest& request) {
  try {
    EXPECT_TRUE(scheduler.submit(request));
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(Scheduler, RefusesWhatCanNeverBeServed) {
  Scheduler scheduler(options_of(2, 10), 70);  // 80 tokens
  EXPECT_THAT(error_of(scheduler, request_of(-1, {1}, 1)), HasSubstr("found -1"));
  EXPECT_THAT(error_of(scheduler, request_of(1, {}, 1)), HasSubstr("a prompt of at least 1 token"));
  EXPECT_THAT(error_of(scheduler, request_of(1, {1}, -1)),
              HasSubstr("max_tokens: expected at least 0"));
  EXPECT_THAT(error_of(scheduler, request_of(1, {1, 2}, 69)),
              HasSubstr("at most 70 tokens of prompt and output, found 2 + 69"));
  GenerationRequest request = request_of(1, {1}, 1);
  request.sampling.top_p = 0;
  EXPECT_THAT(error_of(scheduler, request), HasSubstr("top_p: expected more than 0"));
  request.sampling = {-1, 1, 0, 0};
  EXPECT_THAT(error_of(scheduler, request), HasSubstr("temperature: expected 0 to 100"));
  request.sampling = {};
  EXPECT_EQ(error_of(scheduler, request), "");
  EXPECT_THAT(error_of(scheduler, request), HasSubstr("1, which is under way"));
  Scheduler short_of_pages(options_of(2, 5), 70);
  EXPECT_THAT(error_of(short_of_pages, request_of(1, {1, 2}, 50)),
              HasSubstr("the cache's 40 tokens"));
}

// Equal beginnings that arrive together are computed once.
TEST(Scheduler, LetsOneRequestComputeABeginningForAll) {
  EngineOptions options = options_of(1, 200);
  options.max_running = 16;
  options.max_step_tokens = 16;
  Scheduler scheduler(options, 1000);
  std::vector<std::int32_t> beginning(100);
  std::iota(beginning.begin(), beginning.end(), 0);
  for (std::int32_t id = 0; id < 8; ++id) {
    std::vector<std::int32_t> prompt = beginning;
    prompt.push_back(200 + id);
    ASSERT_TRUE(scheduler.submit(request_of(id, prompt, 2)));
  }
  ASSERT_TRUE(scheduler.submit(request_of(8, {77, 78, 79}, 2)));  // passes those that wait
  std::map<std::int32_t, std::int64_t> first_step;
  for (std::int64_t step = 0; !scheduler.idle(); ++step) {
    for (const ScheduledTokens& part : scheduler.next()) {
      first_step.emplace(part.request.value, step);
      if (part.needs_logits) static_cast<void>(scheduler.take(part.request, 5, 0));
    }
  }
  EXPECT_EQ(first_step.at(8), 0);
  const std::int64_t block = scheduler.cache().layout().block_tokens();
  EXPECT_LE(scheduler.stats().num_computed_tokens, 101 + 7 * (block + 1) + 3 + 9);
  EXPECT_GE(scheduler.stats().num_cached_tokens, 7 * (100 - block));
}

TEST(Scheduler, BeginsByItselfWhenTheRequestItFollowsIsCancelled) {
  EngineOptions options = options_of(1, 200);
  options.max_step_tokens = 8;
  Scheduler scheduler(options, 1000);
  const std::vector<std::int32_t> prompt(60, 9);
  ASSERT_TRUE(scheduler.submit(request_of(1, prompt, 1)));
  ASSERT_TRUE(scheduler.submit(request_of(2, prompt, 1)));
  EXPECT_EQ(scheduler.next().size(), 1U);
  EXPECT_TRUE(scheduler.cancel(RequestId(1)));
  std::int32_t steps = 0;
  while (!scheduler.idle() && steps++ < 100) {
    for (const ScheduledTokens& part : scheduler.next()) {
      EXPECT_EQ(part.request, RequestId(2));
      if (part.needs_logits) static_cast<void>(scheduler.take(part.request, 5, 0));
    }
  }
  EXPECT_TRUE(scheduler.idle());
}

TEST(Scheduler, RefusesMoreThanMayWait) {
  EngineOptions options = options_of(1, 4);
  options.max_running = 1;
  options.max_waiting = 2;
  Scheduler scheduler(options, 100);
  // One can begin at once; two more may wait.
  EXPECT_TRUE(scheduler.submit(request_of(1, {1}, 1)));
  EXPECT_TRUE(scheduler.submit(request_of(2, {1}, 1)));
  EXPECT_TRUE(scheduler.submit(request_of(3, {1}, 1)));
  EXPECT_FALSE(scheduler.submit(request_of(4, {1}, 1)));
  EXPECT_FALSE(scheduler.cancel(RequestId(4)));
  EXPECT_EQ(scheduler.next().size(), 1U);
  EXPECT_FALSE(scheduler.submit(request_of(4, {1}, 1)));
  EXPECT_TRUE(scheduler.cancel(RequestId(3)));
  EXPECT_TRUE(scheduler.submit(request_of(4, {1}, 1)));
}

TEST(Scheduler, AnIdleOneRefusesNothingThatCanRun) {
  EngineOptions options = options_of(1, 64);
  options.max_running = 8;
  options.max_waiting = 1;
  Scheduler scheduler(options, 100);
  for (std::int32_t id = 0; id < 9; ++id) {
    EXPECT_TRUE(scheduler.submit(request_of(id, {1}, 1))) << id;
  }
  EXPECT_FALSE(scheduler.submit(request_of(9, {1}, 1)));
}

TEST(EngineRank, InputsComeBackFromTheirBytes) {
  EngineInput input;
  input.arrivals = {request_of(5, {1, 2, 3}, 9), request_of(6, {4}, 1)};
  input.arrivals[0].sampling = {0.5, 0.25, 3, 99};
  input.arrivals[0].sampling.logit_bias = {{7, -1.5}};
  input.arrivals[0].sampling.min_p = 0.125;
  input.arrivals[0].num_logprobs = 4;
  input.arrivals[1].scores_prompt = true;
  input.arrivals[1].is_guided = true;
  input.allowed = {{RequestId(6), {1, 2, 3}}, {RequestId(3), {}}};
  input.arrivals[1].stop_tokens = {8, 9};
  input.cancelled = {RequestId(1), RequestId(2)};
  const std::vector<std::byte> bytes = encode(input);
  const EngineInput back = decode_engine_input(bytes);
  EXPECT_EQ(encode(back), bytes);
  EXPECT_EQ(back.arrivals[1].stop_tokens, input.arrivals[1].stop_tokens);
  EXPECT_EQ(back.arrivals[0].sampling.seed, 99U);
  EXPECT_EQ(back.arrivals[0].sampling.logit_bias, input.arrivals[0].sampling.logit_bias);
  EXPECT_EQ(back.arrivals[0].sampling.min_p, 0.125);
  EXPECT_EQ(back.arrivals[0].num_logprobs, 4);
  EXPECT_FALSE(back.arrivals[0].scores_prompt);
  EXPECT_TRUE(back.arrivals[1].scores_prompt);
  EXPECT_TRUE(back.arrivals[1].is_guided);
  EXPECT_EQ(back.allowed, input.allowed);
  EXPECT_EQ(back.cancelled, input.cancelled);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(static_cast<void>(decode_engine_input(std::span(bytes).first(size))),
                 InvalidArgument);
  }
}

TEST(EngineRank, RejectsOnAllRanksAlikeAndFindsTablesThatDiffer) {
  const DecoderConfig config = small_decoder();
  EXPECT_THROW(
      run_inproc(2,
                 [&](Transport& transport) {
                   DecoderOptions decoder;
                   decoder.layout = {2, 1, 4};
                   decoder.num_pages = 20;
                   DecoderRank model(transport, config,
                                     random_weights(config, {transport.rank(), 2}, 7), decoder);
                   Engine engine(model, config, options_of(2, 20));
                   EngineRank rank(transport, engine);
                   EngineInput input;
                   input.arrivals = {request_of(1, {1, 2, 3}, 5), request_of(2, {1}, 1000)};
                   const EngineOutput output = rank.advance(input);
                   ASSERT_EQ(output.rejections.size(), 1U);
                   EXPECT_EQ(output.rejections[0].request, RequestId(2));
                   EXPECT_FALSE(output.rejections[0].is_full);
                   ASSERT_EQ(output.events.size(), 1U);
                   // A rank that forgot a request by itself.
                   if (transport.rank().value == 1) engine.cancel(RequestId(1));
                   try {
                     static_cast<void>(rank.advance());
                   } catch (const InvalidArgument& error) {
                     EXPECT_THAT(error.what(),
                                 HasSubstr("expected the same block tables on all ranks"));
                     EXPECT_THAT(error.what(), HasSubstr("on rank 1"));
                     throw;
                   }
                 }),
      InvalidArgument);
}

}  // namespace
}  // namespace contextile
