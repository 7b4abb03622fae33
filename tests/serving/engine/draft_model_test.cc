// Speculative decoding by a draft model: a model that agrees saves steps, and no model changes a
// token.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "contextile/serving/engine.h"
#include "serving/engine/random_requests.h"
#include "serving/engine/small_decoder.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kSeed = 7;  // of the model's weights

// Greedy, sampled and with penalties.
Requests requests_of(std::int32_t count, std::uint32_t seed) {
  Requests requests = random_requests(count, seed, 60, 1);
  for (std::int32_t i = 0; i < count; ++i) {
    GenerationRequest& request = requests[static_cast<std::size_t>(i)];
    if (i % 3 == 1) request.sampling = {0.8, 0.95, 8, static_cast<std::uint64_t>(i)};
    if (i % 4 == 3) request.sampling.repetition_penalty = 1.3;
    if (i % 4 == 0) request.stop_tokens = {7};
  }
  return requests;
}

// The same, which end by their lengths alone.
Requests unstopped_requests(std::int32_t count, std::uint32_t seed) {
  Requests requests = requests_of(count, seed);
  for (GenerationRequest& request : requests) request.stop_tokens = {};
  return requests;
}

struct Draft {
  DecoderConfig config = small_decoder(kRandomVocabulary);
  std::uint64_t seed = kSeed;
};

// One layer that sees every token, of other weights: it agrees by chance.
Draft unlike() {
  Draft draft;
  draft.config.num_layers = 1;
  draft.config.windows = {};
  draft.config.hidden_size = 16;
  draft.config.q_heads = 4;
  draft.config.head_dim = 4;
  draft.seed = 3;
  return draft;
}

struct Setting {
  std::int32_t ranks = 1;
  std::int32_t context_parallel = 1;
  std::int32_t token_ranks = 1;
  std::int32_t pages = 400;
  DecoderConfig config = small_decoder(kRandomVocabulary);
  std::vector<std::int32_t> leaves = {};  // requests that are cancelled in their course
};

struct Served {
  std::map<std::int32_t, std::vector<std::int32_t>> outputs;  // by request
  std::map<std::int32_t, FinishReason> ends;
  EngineStats stats;
  DecoderWork draft_work;
};

DecoderOptions decoder_options(const KvCacheOptions& cache) {
  DecoderOptions decoder;
  decoder.layout = cache.layout;
  decoder.num_pages = cache.num_pages;
  decoder.prefill.min_tokens = 4;
  decoder.prefill.mode = PrefillMode::kPassKv;
  return decoder;
}

EngineOptions engine_options(const Setting& setting, std::int32_t num_drafts) {
  EngineOptions options;
  options.cache.layout = {setting.token_ranks, 1, 4};
  options.cache.num_pages = setting.pages;
  options.max_step_tokens = 64;
  options.pace = 0;  // steps do not depend on time
  options.speculation.num_tokens = num_drafts;
  return options;
}

// Steps until nothing waits. A request comes every second step.
void serve_rank(EngineRank& rank, Engine& engine, const Setting& setting, const Requests& requests,
                Served& served) {
  std::size_t next = 0;
  for (std::size_t step = 0; next < requests.size() || !engine.idle(); ++step) {
    EngineInput input;
    if (next < requests.size() && step >= 2 * next) input.arrivals = {requests[next++]};
    for (const std::int32_t id : setting.leaves) {
      const auto found = served.outputs.find(id);
      if (found != served.outputs.end() && found->second.size() >= 6) {
        input.cancelled.emplace_back(id);
      }
    }
    for (const EngineEvent& event : rank.advance(input).events) {
      EXPECT_EQ(event.failure, "");
      served.outputs[event.request.value].push_back(event.token);
      if (event.finish) served.ends[event.request.value] = *event.finish;
    }
    engine.scheduler().cache().check_consistency();
  }
  served.stats = engine.scheduler().stats();
  EXPECT_EQ(engine.scheduler().cache().free_pages(), setting.pages);
}

// Serves all of the requests, with `num_drafts` of the draft model if there are some.
Served serve(const Requests& requests, const Setting& setting, std::int32_t num_drafts = 0,
             const Draft& draft = {}) {
  const EngineOptions options = engine_options(setting, num_drafts);
  std::vector<Served> served(static_cast<std::size_t>(setting.ranks));
  run_inproc(setting.ranks, [&](Transport& transport) {
    const DecoderPart part = {transport.rank(), transport.size(), true, setting.context_parallel,
                              setting.token_ranks};
    const DecoderOptions decoder = decoder_options(options.cache);
    DecoderRank model(transport, setting.config, random_weights(setting.config, part, kSeed),
                      decoder);
    std::optional<DecoderRank> second;
    DraftModel drafts;
    if (num_drafts > 0) {
      second.emplace(transport, draft.config, random_weights(draft.config, part, draft.seed),
                     decoder);
      drafts = {&*second, draft.config};
    }
    Engine engine(model, setting.config, options, drafts);
    EngineRank rank(transport, engine);
    Served& its = served[transport.rank().index()];
    serve_rank(rank, engine, setting, requests, its);
    if (second) its.draft_work = second->work();
  });
  for (const Served& its : served) EXPECT_EQ(its.outputs, served.front().outputs);
  return served.front();
}

void expect_equal(const Served& found, const Served& expected) {
  EXPECT_EQ(found.outputs, expected.outputs);
  EXPECT_EQ(found.ends, expected.ends);
}

GenerationRequest alone(double temperature, std::int32_t max_tokens = 61) {
  GenerationRequest request;
  request.id = RequestId(0);
  request.prompt = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  request.max_tokens = max_tokens;
  request.sampling = {temperature, 1, 0, 5};
  return request;
}

TEST(DraftModel, ThatEqualsTheModelSavesAllStepsButOneOfKPlusOne) {
  for (const double temperature : {0.0, 1.0}) {
    for (const std::int32_t num_drafts : {1, 3, 4}) {
      const Served expected = serve({alone(temperature)}, {});
      const Served found = serve({alone(temperature)}, {}, num_drafts);
      expect_equal(found, expected);
      EXPECT_EQ(found.stats.num_accepted_tokens, found.stats.num_draft_tokens);
      // The prompt gives the first of 61 tokens.
      EXPECT_EQ(expected.stats.num_steps, 61);
      EXPECT_EQ(found.stats.num_steps, 1 + 60 / (1 + num_drafts));
      EXPECT_EQ(found.stats.num_output_tokens, 61);
    }
  }
}

TEST(DraftModel, ChangesNoTokenOfAnyRequest) {
  const Requests requests = requests_of(10, 1);
  const Served expected = serve(requests, {});
  const Served same = serve(requests, {}, 4);
  expect_equal(same, expected);
  EXPECT_LT(same.stats.num_steps, expected.stats.num_steps);
  const Served other = serve(requests, {}, 4, unlike());
  expect_equal(other, expected);
  EXPECT_GT(other.stats.num_draft_tokens, 2 * other.stats.num_accepted_tokens);
  EXPECT_GT(other.stats.num_accepted_tokens, 0);
}

// Without a stop, every draft of an equal model is given out: a prefix that was found in the cache,
// or pages that were used before, would show as a draft that is rejected.
TEST(DraftModel, FindsItsOwnKeysInSharedPrefixes) {
  const Requests requests = unstopped_requests(12, 2);
  const Served found = serve(requests, {}, 3);
  EXPECT_GT(found.stats.num_cached_tokens, 100);
  EXPECT_EQ(found.stats.num_accepted_tokens, found.stats.num_draft_tokens);
}

TEST(DraftModel, GivesTheSameTokensOnEveryLayoutOfRanks) {
  const Requests requests = unstopped_requests(8, 3);
  const Served expected = serve(requests, {});
  for (const Setting& setting : {Setting{2, 1, 2}, {2, 2, 2}, {4, 1, 4}, {4, 2, 2}, {4, 1, 2}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {} context-parallel, {} share tokens", setting.ranks,
                             setting.context_parallel, setting.token_ranks));
    const Served same = serve(requests, setting, 4);
    expect_equal(same, expected);
    EXPECT_GT(same.stats.num_cached_tokens, 0);
    EXPECT_LT(same.stats.num_steps, expected.stats.num_steps);
    expect_equal(serve(requests, setting, 4, unlike()), expected);
  }
}

TEST(DraftModel, LosesNothingWhenPagesAreShort) {
  const Requests requests = unstopped_requests(12, 4);
  const Served expected = serve(requests, {});
  for (const Setting& setting : {Setting{1, 1, 1, 45}, {4, 2, 2, 23}}) {
    const Served same = serve(requests, setting, 4);
    expect_equal(same, expected);
    EXPECT_GT(same.stats.num_preemptions, 0);
    EXPECT_GT(same.stats.num_accepted_tokens, 0);
    if (setting.ranks == 1) {
      EXPECT_EQ(same.stats.num_accepted_tokens, same.stats.num_draft_tokens);
    }
    expect_equal(serve(requests, setting, 4, unlike()), expected);
  }
}

TEST(DraftModel, ForgetsRequestsThatLeave) {
  const Requests requests = unstopped_requests(10, 5);
  const Served expected = serve(requests, {});
  Setting setting;
  setting.leaves = {1, 4, 6};
  const Served found = serve(requests, setting, 4);
  for (const auto& [id, tokens] : expected.outputs) {
    const std::vector<std::int32_t>& its = found.outputs.at(id);
    const bool leaves = std::ranges::find(setting.leaves, id) != setting.leaves.end();
    ASSERT_EQ(its.size() < tokens.size(), leaves) << id;
    EXPECT_TRUE(std::equal(its.begin(), its.end(), tokens.begin())) << id;
    EXPECT_EQ(found.ends.contains(id), !leaves);
  }
}

// Pages behind the window are freed and used again. A draft model that sees more keeps them.
TEST(DraftModel, KeepsWithinWindows) {
  Setting setting;
  setting.config.windows = {20, 24};
  setting.pages = 48;
  Requests requests = requests_of(6, 6);
  for (GenerationRequest& request : requests) {
    request.max_tokens = 120;
    request.stop_tokens = {};
  }
  const Served expected = serve(requests, setting);
  Draft same;
  same.config = setting.config;
  const Served found = serve(requests, setting, 5, same);
  expect_equal(found, expected);
  EXPECT_EQ(found.stats.num_accepted_tokens, found.stats.num_draft_tokens);
  EXPECT_GT(found.stats.num_accepted_tokens, 300);
  Draft narrow = unlike();
  narrow.config.windows = {9};
  expect_equal(serve(requests, setting, 5, narrow), expected);
  EXPECT_EQ(cache_window(setting.config, narrow.config), 24);
  EXPECT_EQ(cache_window(setting.config, unlike().config), 0);
  setting.pages = 400;
  expect_equal(serve(requests, setting, 5, unlike()), serve(requests, setting));
}

TEST(DraftModel, DraftsNothingBeyondItsOwnLength) {
  Draft brief;
  brief.config.max_length = 30;
  const Served found = serve({alone(0)}, {}, 4, brief);
  expect_equal(found, serve({alone(0)}, {}));
  // Tokens 9 to 29 of the request: as many steps as without drafts follow them.
  EXPECT_EQ(found.stats.num_accepted_tokens, found.stats.num_draft_tokens);
  EXPECT_EQ(found.stats.num_draft_tokens + found.stats.num_steps, 61);
  EXPECT_GT(found.stats.num_steps, 40);
  EXPECT_GT(found.stats.num_draft_tokens, 12);
}

TEST(DraftModel, ComputesEveryTokenOnce) {
  const Served found = serve({alone(0)}, {}, 4);
  // 9 tokens of the prompt, and all of the output but the last token.
  const DecoderConfig config = small_decoder(kRandomVocabulary);
  const std::int64_t flops = 2 * std::int64_t{config.hidden_size} * kRandomVocabulary;
  EXPECT_EQ(found.draft_work.logits_flops, found.stats.num_draft_tokens * flops);
  const std::int64_t ffn = 6 * std::int64_t{config.hidden_size} * config.ffn_size;
  EXPECT_EQ(found.draft_work.feed_forward_flops, config.num_layers * ffn * (9 + 60));
}

TEST(DraftModel, WithoutNumbersDraftsNothing) {
  const EngineOptions options = engine_options({}, 4);
  run_inproc(1, [&](Transport& transport) {
    const DecoderConfig config = small_decoder(kRandomVocabulary);
    const DecoderPart part = {transport.rank(), 1, true};
    const DecoderOptions decoder = decoder_options(options.cache);
    DecoderRank model(transport, config, random_weights(config, part, kSeed), decoder);
    DecoderWeights broken = random_weights(config, part, kSeed);
    broken.norm.assign(broken.norm.size(), std::numeric_limits<float>::quiet_NaN());
    DecoderRank second(transport, config, std::move(broken), decoder);
    Engine engine(model, config, options, {&second, config});
    ASSERT_TRUE(engine.submit(alone(0)));
    std::vector<std::int32_t> tokens;
    while (!engine.idle()) {
      for (const EngineEvent& event : engine.step()) tokens.push_back(event.token);
    }
    EXPECT_EQ(tokens, serve({alone(0)}, {}).outputs.at(0));
    EXPECT_EQ(engine.scheduler().stats().num_draft_tokens, 0);
  });
}

// A request of 9 tokens and one of 11 have all 6 pages of 4 tokens.
TEST(DraftModel, MayAddNoMoreThanAllowedOrFits) {
  EngineOptions options = engine_options({.pages = 6}, 4);
  options.speculation.from_model = true;
  Scheduler scheduler(options, 100);
  GenerationRequest brief = alone(0, 4);
  brief.id = RequestId(1);
  brief.prompt.assign(11, 2);
  ASSERT_TRUE(scheduler.submit(alone(0, 15)));
  ASSERT_TRUE(scheduler.submit(brief));
  for (const ScheduledTokens& part : scheduler.next()) {
    EXPECT_EQ(part.may_draft, 0);
    static_cast<void>(scheduler.take(part.request, 3, 0));
  }
  std::vector<ScheduledTokens> step = scheduler.next();
  ASSERT_EQ(step.size(), 2U);
  EXPECT_EQ(step[0].may_draft, 4);
  EXPECT_EQ(step[1].may_draft, 2);  // of 4 tokens one is there, and the step gives one itself
  EXPECT_TRUE(scheduler.draft(step[0], 5));
  EXPECT_TRUE(scheduler.draft(step[0], 6));
  EXPECT_FALSE(scheduler.draft(step[0], 7));
  EXPECT_FALSE(scheduler.draft(step[1], 7));
  EXPECT_EQ(step[0].num_logits, 3);
  EXPECT_EQ(step[1].num_logits, 1);
  EXPECT_EQ(scheduler.cache().length(RequestId(0)), 12);
  static_cast<void>(scheduler.take(RequestId(0), 5, 0));
  static_cast<void>(scheduler.take(RequestId(0), 8, 0));
  EXPECT_EQ(scheduler.cache().length(RequestId(0)), 11);
  EXPECT_EQ(scheduler.stats().num_accepted_tokens, 1);
  EXPECT_EQ(scheduler.stats().num_draft_tokens, 2);
  EXPECT_EQ(scheduler.stats().num_preemptions, 0);
  ASSERT_TRUE(scheduler.cancel(RequestId(0)));
  static_cast<void>(scheduler.take(RequestId(1), 9, 0));
  step = scheduler.next();
  ASSERT_EQ(step[0].may_draft, 1);
  EXPECT_TRUE(scheduler.draft(step[0], 5));
  EXPECT_THAT(message_of([&] { static_cast<void>(scheduler.draft(step[0], 7)); }),
              HasSubstr("expected at most 1 drafts of request 1"));
}

TEST(DraftModel, IsRefusedByName) {
  run_inproc(1, [](Transport& transport) {
    const auto error = [&](std::int32_t vocab_size, std::int32_t num_drafts, bool has_model) {
      EngineOptions options = engine_options({}, num_drafts);
      options.speculation.from_model = !has_model;
      const DecoderConfig config = small_decoder(kRandomVocabulary);
      const DecoderConfig draft = small_decoder(vocab_size);
      const DecoderPart part = {transport.rank(), 1, true};
      const DecoderOptions decoder = decoder_options(options.cache);
      DecoderRank model(transport, config, random_weights(config, part, 1), decoder);
      DecoderRank second(transport, draft, random_weights(draft, part, 1), decoder);
      return message_of([&] {
        Engine(model, config, options, {has_model ? &second : nullptr, draft});
      });
    };
    EXPECT_THAT(error(24, 4, true),
                HasSubstr("draft model: expected the model's vocabulary of 23 tokens, found 24"));
    EXPECT_THAT(error(23, 0, true), HasSubstr("at least 1 draft of a request and step, found 0"));
    EXPECT_THAT(error(23, 4, false), HasSubstr("expected a draft model"));
  });
}

}  // namespace
}  // namespace contextile
