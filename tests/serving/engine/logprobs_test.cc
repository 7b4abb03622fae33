// Log-probabilities of prompts and outputs, and sampling that depends on earlier tokens.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "contextile/serving/engine.h"
#include "serving/engine/small_decoder.h"

namespace contextile {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::int32_t> tokens_of(std::uint32_t seed, std::int64_t count) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(std::uniform_int_distribution<std::int32_t>(0, 60)(random));
  }
  return tokens;
}

GenerationRequest scored(std::int32_t id, std::vector<std::int32_t> prompt,
                         std::int32_t max_tokens = 0) {
  GenerationRequest request;
  request.id = RequestId(id);
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.num_logprobs = 3;
  request.scores_prompt = true;
  return request;
}

// The events of each request, on a group of ranks.
using Events = std::map<std::int32_t, std::vector<EngineEvent>>;

struct Layout {
  std::int32_t ranks = 1;
  std::int32_t context_parallel = 1;
  std::int32_t token_ranks = 1;
  std::int32_t page_size = 4;
};

Events serve(const std::vector<GenerationRequest>& requests, EngineOptions options,
             const Layout& layout = {}) {
  const DecoderConfig config = small_decoder();
  options.cache.layout = {layout.token_ranks, 1, layout.page_size};
  options.pace = 0;
  std::vector<Events> all(static_cast<std::size_t>(layout.ranks));
  run_inproc(layout.ranks, [&](Transport& transport) {
    const DecoderPart part = {transport.rank(), transport.size(), true, layout.context_parallel,
                              layout.token_ranks};
    DecoderOptions decoder;
    decoder.layout = options.cache.layout;
    decoder.num_pages = options.cache.num_pages;
    decoder.prefill.min_tokens = 8;
    DecoderRank model(transport, config, random_weights(config, part, 7), decoder);
    Engine engine(model, config, options);
    EngineRank rank(transport, engine);
    EngineInput input;
    if (transport.rank().value == 0) input.arrivals = requests;
    do {
      const EngineOutput output = rank.advance(input);
      EXPECT_TRUE(output.rejections.empty());
      for (const EngineEvent& event : output.events) {
        all[transport.rank().index()][event.request.value].push_back(event);
      }
      input = {};
    } while (!engine.idle());
    engine.scheduler().cache().check_consistency();
  });
  return all.front();
}

// The rows of logits behind all tokens but the last, computed token by token.
std::vector<std::vector<float>> rows_of(const std::vector<std::int32_t>& tokens) {
  std::vector<std::vector<float>> rows;
  run_inproc(1, [&](Transport& transport) {
    const DecoderConfig config = small_decoder();
    DecoderOptions decoder;
    decoder.layout = {1, 1, 4};
    decoder.num_pages = 100;
    DecoderRank model(transport, config, random_weights(config, {}, 7), decoder);
    std::vector<PageId> table;
    for (std::int32_t i = 0; i < 100; ++i) table.emplace_back(i);
    for (std::size_t i = 0; i + 1 < tokens.size(); ++i) {
      const StepRequest step = {std::span(tokens).subspan(i, 1), static_cast<std::int64_t>(i),
                                table, 1};
      const HostTensor logits = model.forward({&step, 1});
      const auto values = logits.values<float>();
      rows.emplace_back(values.begin(), values.end());
    }
  });
  return rows;
}

void expect_scores(const EngineEvent& event, const std::vector<std::int32_t>& prompt) {
  const std::vector<std::vector<float>> rows = rows_of(prompt);
  ASSERT_EQ(event.prompt.tokens.size(), rows.size());
  ASSERT_EQ(event.prompt.top.size(), 3 * rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const TokenLogprobs expected(rows[i]);
    EXPECT_NEAR(event.prompt.tokens[i], expected.of(prompt[i + 1]), 1e-4) << i;
    const std::vector<TokenLogprob> top = expected.likeliest(3);
    for (std::size_t k = 0; k < 3; ++k) {
      EXPECT_NEAR(event.prompt.top[3 * i + k].logprob, top[k].logprob, 1e-4) << i;
    }
  }
}

TEST(PromptLogprobs, AreThoseOfTheModelInEveryLayoutOfRanks) {
  const std::vector<std::vector<std::int32_t>> prompts = {tokens_of(1, 1), tokens_of(2, 2),
                                                          tokens_of(3, 65), tokens_of(3, 40)};
  std::vector<GenerationRequest> requests;
  for (const auto& prompt : prompts)
    requests.push_back(scored(static_cast<std::int32_t>(requests.size()), prompt));
  for (const auto& [ranks, context, shared] :
       {std::tuple{1, 1, 1}, {3, 1, 3}, {4, 4, 4}, {4, 2, 2}, {4, 1, 2}}) {
    for (const std::int32_t step_tokens : {11, 512}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} context-parallel, {} share tokens, steps of {}", ranks,
                               context, shared, step_tokens));
      EngineOptions options;
      options.cache.num_pages = 200;
      options.max_step_tokens = step_tokens;
      const Events events = serve(requests, options, {ranks, context, shared});
      for (std::size_t i = 0; i < prompts.size(); ++i) {
        const auto& its = events.at(static_cast<std::int32_t>(i));
        ASSERT_EQ(its.size(), 1U);
        EXPECT_EQ(its[0].token, EngineEvent::kNoToken);
        EXPECT_EQ(its[0].finish, FinishReason::kLength);
        expect_scores(its[0], prompts[i]);
      }
    }
  }
}

// The cache has the first prompt's keys, and gives them to the prompt that is not scored.
TEST(PromptLogprobs, NeedNoTokenThatTheCacheHas) {
  const std::vector<std::int32_t> prompt = tokens_of(4, 50);
  GenerationRequest plain = scored(2, prompt, 2);
  plain.scores_prompt = false;
  EngineOptions options;
  options.cache.num_pages = 60;
  options.max_running = 1;
  const Events events =
      serve({scored(0, prompt, 3), scored(1, prompt, 2), plain}, options, {2, 1, 2});
  expect_scores(events.at(0)[0], prompt);
  expect_scores(events.at(1)[0], prompt);
  EXPECT_EQ(events.at(1)[0].cached_tokens, 0);
  EXPECT_EQ(events.at(2)[0].cached_tokens, 48);
  EXPECT_TRUE(events.at(2)[0].prompt.tokens.empty());
  EXPECT_TRUE(events.at(0)[1].prompt.tokens.empty());
  EXPECT_EQ(events.at(0)[0].token, events.at(2)[0].token);
}

TEST(PromptLogprobs, SurviveWantOfPages) {
  std::vector<GenerationRequest> requests;
  for (std::int32_t i = 0; i < 6; ++i) {
    requests.push_back(scored(i, tokens_of(static_cast<std::uint32_t>(10 + i), 30 + i), 20));
  }
  // The last one finds what the cache has of the first.
  requests.push_back(scored(6, requests.front().prompt, 20));
  requests.back().scores_prompt = false;
  EngineOptions options;
  options.max_step_tokens = 32;
  options.max_scored_tokens = 7;
  options.cache.num_pages = 200;
  const Events expected = serve(requests, options);
  for (const std::int32_t page_size : {1, 4}) {
    options.cache.num_pages = 120 / page_size;
    const Events events = serve(requests, options, {.page_size = page_size});
    for (const GenerationRequest& request : requests) {
      const auto& its = events.at(request.id.value);
      ASSERT_EQ(its.size(), 20U);
      if (request.scores_prompt) expect_scores(its[0], request.prompt);
      for (std::size_t i = 0; i < its.size(); ++i) {
        EXPECT_EQ(its[i].token, expected.at(request.id.value)[i].token);
        ASSERT_EQ(its[i].top.size(), 3U);
        EXPECT_EQ(its[i].top[0].token, its[i].token);
        EXPECT_EQ(its[i].top[0].logprob, its[i].logprob);
      }
    }
  }
}

TEST(Engine, PenaltiesAndBiasChangeTokensAndNotLogprobs) {
  GenerationRequest request = scored(0, tokens_of(5, 9), 12);
  EngineOptions options;
  options.cache.num_pages = 60;
  const std::int32_t first = serve({request}, options).at(0)[0].token;
  request.sampling.logit_bias = {{first, 100}};
  const Events biased = serve({request}, options, {2, 1, 2});
  for (const EngineEvent& event : biased.at(0)) {
    EXPECT_EQ(event.token, first);
    EXPECT_LT(event.logprob, -0.01F);
  }
  request.sampling.logit_bias = {{first, -100}};
  const Events averse = serve({request}, options);
  for (const EngineEvent& event : averse.at(0)) EXPECT_NE(event.token, first);
  // No token comes twice.
  request.sampling = {};
  request.sampling.logit_bias = {{60, 50}};
  request.sampling.repetition_penalty = 100;
  std::vector<std::int32_t> tokens = request.prompt;
  const Events penalized = serve({request}, options);
  for (const EngineEvent& event : penalized.at(0)) tokens.push_back(event.token);
  EXPECT_EQ(tokens[9], 60);
  for (std::size_t i = 9; i < tokens.size(); ++i) {
    EXPECT_EQ(
        std::count(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(i), tokens[i]), 0);
  }
  request.sampling.logit_bias = {{61, 1}};
  const Events failed = serve({request}, options);
  ASSERT_EQ(failed.at(0).size(), 1U);
  EXPECT_THAT(failed.at(0)[0].failure,
              HasSubstr("logit_bias: expected tokens of 0 to 60, found 61"));
}

TEST(Sampling, AppliesPenaltiesByOccurrence) {
  const std::vector<float> logits = {4, -4, 4, -4, 4, 0};
  const std::vector<std::int32_t> tokens = {0, 1, 2, 2, 3, 2};
  SamplingParams params;
  params.repetition_penalty = 2;
  params.presence_penalty = 0.5;
  params.frequency_penalty = 0.25;
  params.logit_bias = {{4, -1}};
  EXPECT_THAT(penalized(logits, params, tokens, 3), ElementsAre(2, -8, 1, -8.75, 3, 0));
  EXPECT_TRUE(has_penalties(params));
  EXPECT_THAT(penalized(logits, {}, tokens, 3), ElementsAre(4, -4, 4, -4, 4, 0));
  EXPECT_FALSE(has_penalties({}));
}

TEST(Sampling, LeavesOutWhatIsLessLikelyThanAShareOfTheLikeliest) {
  const std::vector<float> logits = {0, 1, 2, 3};
  SamplingParams params = {.temperature = 1, .seed = 3};
  params.min_p = 0.3;  // exp(-1) is 0.37, exp(-2) 0.14
  std::map<std::int32_t, int> counts;
  for (int i = 0; i < 500; ++i) ++counts[sample(logits, params, i).token];
  EXPECT_EQ(counts.size(), 2U);
  EXPECT_EQ(counts.count(2), 1U);
  params.min_p = 1;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(sample(logits, params, i).token, 3);
}

TEST(Sampling, FindsTheLikeliestTokensInOrder) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits;
    for (std::size_t i = 0; i < 1 + random() % 30; ++i) {
      logits.push_back(static_cast<float>(random() % 9));
    }
    const TokenLogprobs logprobs(logits);
    std::vector<std::int32_t> order(logits.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int32_t>(i);
    std::ranges::stable_sort(order, [&](std::int32_t a, std::int32_t b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    const auto top = logprobs.likeliest(7);
    ASSERT_EQ(top.size(), std::min<std::size_t>(7, logits.size()));
    for (std::size_t i = 0; i < top.size(); ++i) {
      EXPECT_EQ(top[i].token, order[i]);
      EXPECT_EQ(top[i].logprob, logprobs.of(order[i]));
    }
    EXPECT_TRUE(logprobs.likeliest(0).empty());
  }
}

TEST(Sampling, RefusesParametersOutOfRange) {
  const auto error_of = [](SamplingParams params) -> std::string {
    try {
      check_sampling(params);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(error_of({}), "");
  EXPECT_THAT(error_of({.min_p = 1.5}), HasSubstr("min_p: expected 0 to 1, found 1.5"));
  EXPECT_THAT(error_of({.repetition_penalty = 0}), HasSubstr("repetition_penalty"));
  EXPECT_THAT(error_of({.presence_penalty = 3}), HasSubstr("presence_penalty"));
  EXPECT_THAT(error_of({.frequency_penalty = -3}), HasSubstr("frequency_penalty"));
  EXPECT_THAT(error_of({.logit_bias = {{1, 101}}}), HasSubstr("logit_bias"));
}

}  // namespace
}  // namespace contextile
