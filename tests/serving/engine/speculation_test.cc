// Speculative decoding: the drafts that are looked up, and that they change the number of steps and
// nothing else.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "contextile/serving/engine.h"
#include "serving/engine/random_requests.h"
#include "serving/engine/small_decoder.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::int32_t> drafts_of(const std::vector<std::int32_t>& tokens, std::int64_t most = 3,
                                    const Speculation& speculation = {.num_tokens = 3}) {
  return lookup_drafts(tokens, speculation, most);
}

TEST(LookupDrafts, AreTheTokensBehindTheLatestEqualRun) {
  EXPECT_THAT(drafts_of({}), IsEmpty());
  EXPECT_THAT(drafts_of({5}), IsEmpty());
  EXPECT_THAT(drafts_of({1, 2, 3, 4, 5}), IsEmpty());
  EXPECT_THAT(drafts_of({1, 2, 3, 4, 9, 1, 2}), ElementsAre(3, 4, 9));
  EXPECT_THAT(drafts_of({1, 2, 3, 0, 1, 2, 4, 0, 1, 2}), ElementsAre(4, 0, 1));
  EXPECT_THAT(drafts_of({1, 2, 3, 4, 9, 1, 2}, 2), ElementsAre(3, 4));
  EXPECT_THAT(drafts_of({1, 2, 3, 4, 9, 1, 2}, 0), IsEmpty());
  EXPECT_THAT(drafts_of({1, 2, 3, 4, 9, 1, 2}, -1), IsEmpty());
}

TEST(LookupDrafts, PreferALongerRunToALaterOne) {
  EXPECT_THAT(drafts_of({8, 1, 2, 5, 9, 1, 2, 6, 8, 1, 2}), ElementsAre(5, 9, 1));
  // With at most two tokens the later one is as long.
  const Speculation two = {.num_tokens = 3, .prompt_lookup_max = 2};
  EXPECT_THAT(drafts_of({8, 1, 2, 5, 9, 1, 2, 6, 8, 1, 2}, 3, two), ElementsAre(6, 8, 1));
}

TEST(LookupDrafts, NeedTheLeastNumberOfTokens) {
  EXPECT_THAT(drafts_of({1, 2, 3, 9, 2}), IsEmpty());
  const Speculation one = {.num_tokens = 3, .prompt_lookup_min = 1};
  EXPECT_THAT(drafts_of({1, 2, 3, 9, 2}, 3, one), ElementsAre(3, 9, 2));
}

TEST(LookupDrafts, GoOnWithARepetition) {
  EXPECT_THAT(drafts_of({7, 7, 7}), ElementsAre(7, 7, 7));
  EXPECT_THAT(drafts_of({1, 2, 1, 2, 1}), ElementsAre(2, 1, 2));
}

// Prompts that repeat themselves, greedy and sampled.
Requests requests_of(std::int32_t count, std::uint32_t seed) {
  Requests requests = random_requests(count, seed, 6, 3);
  for (std::int32_t i = 0; i < count; ++i) {
    GenerationRequest& request = requests[static_cast<std::size_t>(i)];
    if (i % 3 == 1) request.sampling = {0.3, 0.95, 8, static_cast<std::uint64_t>(i)};
    if (i % 4 == 0) request.stop_tokens = {7};
  }
  return requests;
}

struct Served {
  std::map<std::int32_t, std::vector<std::int32_t>> outputs;  // by request
  std::map<std::int32_t, std::vector<float>> logprobs;
  std::map<std::int32_t, FinishReason> ends;
  EngineStats stats;
};

struct Ranks {
  std::int32_t all = 1;
  std::int32_t context_parallel = 1;
  std::int32_t token_ranks = 1;
};

// Serves all of the requests, which come one after the other, a few steps apart.
Served serve(const Requests& requests, std::int32_t num_drafts, const Ranks& ranks = {},
             std::int32_t pages = 400) {
  const DecoderConfig config = small_decoder(kRandomVocabulary);
  EngineOptions options;
  options.cache.layout = {ranks.token_ranks, 1, 4};
  options.cache.num_pages = pages;
  options.max_step_tokens = 64;
  options.pace = 0;  // steps do not depend on time
  options.speculation.num_tokens = num_drafts;
  DecoderOptions decoder;
  decoder.layout = options.cache.layout;
  decoder.num_pages = pages;
  decoder.prefill.min_tokens = 4;  // fewer than tokens with drafts
  std::vector<Served> served(static_cast<std::size_t>(ranks.all));
  run_inproc(ranks.all, [&](Transport& transport) {
    const DecoderPart part = {transport.rank(), transport.size(), true, ranks.context_parallel,
                              ranks.token_ranks};
    DecoderRank model(transport, config, random_weights(config, part, 7), decoder);
    Engine engine(model, config, options);
    EngineRank rank(transport, engine);
    Served& its = served[transport.rank().index()];
    std::size_t next = 0;
    for (std::size_t step = 0; next < requests.size() || !engine.idle(); ++step) {
      EngineInput input;
      if (next < requests.size() && step >= 2 * next) input.arrivals = {requests[next++]};
      const EngineOutput output = rank.advance(input);
      for (const EngineEvent& event : output.events) {
        EXPECT_FALSE(its.ends.contains(event.request.value));
        its.outputs[event.request.value].push_back(event.token);
        its.logprobs[event.request.value].push_back(event.logprob);
        if (event.finish) its.ends[event.request.value] = *event.finish;
      }
      engine.scheduler().cache().check_consistency();
    }
    its.stats = engine.scheduler().stats();
    EXPECT_EQ(engine.scheduler().cache().free_pages(), pages);
  });
  for (const Served& its : served) EXPECT_EQ(its.outputs, served.front().outputs);
  return served.front();
}

void expect_equal(const Served& found, const Served& expected) {
  EXPECT_EQ(found.outputs, expected.outputs);
  EXPECT_EQ(found.ends, expected.ends);
  for (const auto& [id, logprobs] : expected.logprobs) {
    EXPECT_THAT(found.logprobs.at(id), testing::Pointwise(testing::FloatNear(1e-4F), logprobs));
  }
}

TEST(Speculation, GivesTheSameTokensInFewerSteps) {
  const Requests requests = requests_of(10, 1);
  const Served expected = serve(requests, 0);
  EXPECT_EQ(expected.stats.num_draft_tokens, 0);
  for (const std::int32_t num_drafts : {1, 3, 8}) {
    const Served found = serve(requests, num_drafts);
    expect_equal(found, expected);
    EXPECT_GT(found.stats.num_accepted_tokens, 0);
    EXPECT_GE(found.stats.num_draft_tokens, found.stats.num_accepted_tokens);
    EXPECT_LT(found.stats.num_steps, expected.stats.num_steps);
    EXPECT_EQ(found.stats.num_output_tokens, expected.stats.num_output_tokens);
    // Accepted drafts need not be computed again, the others are in addition.
    EXPECT_LE(found.stats.num_computed_tokens,
              expected.stats.num_computed_tokens + found.stats.num_draft_tokens);
  }
}

TEST(Speculation, GivesTheSameTokensOnEveryLayoutOfRanks) {
  const Requests requests = requests_of(10, 2);
  const Served expected = serve(requests, 0);
  for (const Ranks& ranks :
       {Ranks{2, 1, 2}, {4, 1, 4}, {4, 4, 4}, {4, 2, 2}, {4, 1, 1}, {4, 1, 2}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {} context-parallel, {} share tokens", ranks.all,
                             ranks.context_parallel, ranks.token_ranks));
    const Served found = serve(requests, 4, ranks);
    expect_equal(found, expected);
    EXPECT_GT(found.stats.num_accepted_tokens, 0);
    EXPECT_GT(found.stats.num_cached_tokens, 0);
  }
}

TEST(Speculation, LosesNothingWhenPagesAreShort) {
  const Requests requests = requests_of(12, 3);
  const Served expected = serve(requests, 0);
  for (const Ranks& ranks : {Ranks{1, 1, 1}, {4, 2, 2}}) {
    const Served found = serve(requests, 4, ranks, 60 / ranks.token_ranks);
    expect_equal(found, expected);
    EXPECT_GT(found.stats.num_preemptions, 0);
    EXPECT_GT(found.stats.num_accepted_tokens, 0);
  }
}

GenerationRequest repeating(std::int32_t id, std::int32_t max_tokens) {
  GenerationRequest request;
  request.id = RequestId(id);
  request.prompt = {1, 2, 3, 1, 2, 3, 1, 2};
  request.max_tokens = max_tokens;
  return request;
}

EngineOptions scheduler_options(std::int32_t pages, std::int32_t num_drafts) {
  EngineOptions options;
  options.cache.layout = {1, 1, 4};
  options.cache.num_pages = pages;
  options.max_step_tokens = 16;
  options.pace = 0;
  options.speculation.num_tokens = num_drafts;
  return options;
}

TEST(Speculation, ADraftThatIsNotTheTokenEndsTheStepOfItsRequest) {
  Scheduler scheduler(scheduler_options(20, 4), 100);
  ASSERT_TRUE(scheduler.submit(repeating(1, 20)));
  ASSERT_EQ(scheduler.next().size(), 1U);
  static_cast<void>(scheduler.take(RequestId(1), 3, 0));
  const std::vector<ScheduledTokens> step = scheduler.next();
  ASSERT_EQ(step.size(), 1U);
  EXPECT_EQ(step[0].tokens, (Range{8, 9}));
  EXPECT_THAT(step[0].drafts, ElementsAre(1, 2, 3, 1));
  EXPECT_EQ(scheduler.cache().length(RequestId(1)), 13);
  static_cast<void>(scheduler.take(RequestId(1), 1, 0));
  static_cast<void>(scheduler.take(RequestId(1), 9, 0));
  EXPECT_EQ(scheduler.cache().length(RequestId(1)), 10);
  EXPECT_EQ(scheduler.stats().num_draft_tokens, 4);
  EXPECT_EQ(scheduler.stats().num_accepted_tokens, 1);
  const std::vector<ScheduledTokens> next = scheduler.next();
  EXPECT_EQ(next[0].tokens, (Range{10, 11}));
  EXPECT_THAT(next[0].drafts, IsEmpty());  // 9 is new
}

TEST(Speculation, DraftsKeepWithinTheTokensAndHalfOfAStep) {
  Scheduler scheduler(scheduler_options(40, 12), 100);
  ASSERT_TRUE(scheduler.submit(repeating(1, 4)));
  ASSERT_TRUE(scheduler.submit(repeating(2, 40)));
  for (const ScheduledTokens& part : scheduler.next()) {
    static_cast<void>(scheduler.take(part.request, 3, 0));
  }
  while (scheduler.tokens(RequestId(2)).size() == 8) {
    for (const ScheduledTokens& part : scheduler.next()) {
      if (part.needs_logits) static_cast<void>(scheduler.take(part.request, 3, 0));
    }
  }
  const std::vector<ScheduledTokens> step = scheduler.next();
  std::size_t drafts = 0;
  for (const ScheduledTokens& part : step) {
    EXPECT_LE(part.drafts.size(), part.request == RequestId(1) ? 2U : 12U);
    drafts += part.drafts.size();
  }
  EXPECT_GT(drafts, 0U);
  EXPECT_LE(drafts, 8U);
}

TEST(Speculation, NoRequestGivesWayForDrafts) {
  Scheduler scheduler(scheduler_options(6, 4), 100);
  ASSERT_TRUE(scheduler.submit(repeating(1, 12)));
  ASSERT_TRUE(scheduler.submit(repeating(2, 12)));
  std::int64_t without = 0;
  for (int i = 0; i < 4; ++i) {
    for (const ScheduledTokens& part : scheduler.next()) {
      if (part.tokens.begin >= 8 && part.drafts.empty()) ++without;
      const std::int32_t cycle[] = {1, 2, 3};
      const auto length = scheduler.tokens(part.request).size();
      if (part.needs_logits) static_cast<void>(scheduler.take(part.request, cycle[length % 3], 0));
    }
    EXPECT_EQ(scheduler.stats().num_preemptions, 0);
  }
  EXPECT_GT(without, 0);
}

TEST(Speculation, RefusesImpossibleNumbers) {
  const auto error = [](const Speculation& speculation) {
    return message_of([&] { check_speculation(speculation); });
  };
  EXPECT_THAT(error({.num_tokens = -1}), HasSubstr("at least 0 drafts of a request, found -1"));
  EXPECT_THAT(error({.prompt_lookup_max = 2, .prompt_lookup_min = 3}), HasSubstr("found 3 and 2"));
  EXPECT_THAT(error({.prompt_lookup_min = 0}), HasSubstr("found 0 and 4"));
  EngineOptions options = scheduler_options(6, 4);
  options.speculation.num_tokens = -1;
  EXPECT_THAT(message_of([&] { Scheduler(options, 100); }), HasSubstr("speculation"));
}

}  // namespace
}  // namespace contextile
