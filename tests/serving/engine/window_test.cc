// Requests longer than their cache, of models whose layers all have windows.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <vector>

#include "contextile/serving/engine.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;

DecoderConfig windowed() {
  DecoderConfig config;
  config.vocab_size = 61;
  config.hidden_size = 32;
  config.num_layers = 3;
  config.q_heads = 8;
  config.kv_heads = 2;
  config.head_dim = 8;
  config.ffn_size = 40;
  config.windows = {18, 7, 18};
  config.max_length = 400;
  return config;
}

std::vector<std::int32_t> prompt_of(std::int32_t seed, std::int32_t length) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t i = 0; i < length; ++i) tokens.push_back((i * i * 7 + seed * i + seed) % 61);
  return tokens;
}

struct Served {
  std::map<std::int32_t, std::vector<std::int32_t>> outputs;
  std::int32_t most_pages = 0;  // of a request
  std::int64_t num_preemptions = 0;
};

struct Ranks {
  std::int32_t all = 1;
  std::int32_t context_parallel = 1;
  std::int32_t sharing = 1;  // the tokens of the cache
};

// Serves prompts of 150, 90 and 20 tokens, of which the first two begin alike.
Served serve(const Ranks& ranks, std::int32_t num_pages) {
  const DecoderConfig config = windowed();
  EngineOptions options;
  options.cache.layout = {ranks.sharing, 1, 4};
  options.cache.num_pages = num_pages;
  options.max_step_tokens = 16;
  options.pace = 0;
  DecoderOptions decoder;
  decoder.layout = options.cache.layout;
  decoder.num_pages = num_pages;
  decoder.prefill.min_tokens = 4;
  std::vector<Served> served(static_cast<std::size_t>(ranks.all));
  run_inproc(ranks.all, [&](Transport& transport) {
    const DecoderPart part = {transport.rank(), transport.size(), true, ranks.context_parallel,
                              ranks.sharing};
    DecoderRank model(transport, config, random_weights(config, part, 7), decoder);
    Engine engine(model, config, options);
    Served& its = served[transport.rank().index()];
    const std::int32_t lengths[] = {150, 90, 20};
    for (std::int32_t i = 0; i < 3; ++i) {
      GenerationRequest request;
      request.id = RequestId(i);
      request.prompt = prompt_of(i == 2 ? 9 : 4, lengths[i]);
      request.max_tokens = 60;
      EXPECT_TRUE(engine.submit(request));
    }
    while (!engine.idle()) {
      for (const EngineEvent& event : engine.step()) {
        its.outputs[event.request.value].push_back(event.token);
      }
      const KvCache& cache = engine.scheduler().cache();
      cache.check_consistency();
      for (std::int32_t i = 0; i < 3; ++i) {
        if (!cache.contains(RequestId(i))) continue;
        its.most_pages = std::max(its.most_pages, cache.num_pages(RequestId(i)));
      }
    }
    its.num_preemptions = engine.scheduler().stats().num_preemptions;
  });
  for (const Served& its : served) EXPECT_EQ(its.outputs, served.front().outputs);
  return served.front();
}

TEST(Window, BoundsThePagesOfARequestAndChangesNoToken) {
  const Served expected = serve({}, 300);
  ASSERT_EQ(expected.outputs.at(0).size(), 60);
  for (const Ranks& ranks : {Ranks{1, 1, 1}, Ranks{2, 1, 2}, Ranks{2, 2, 2}, Ranks{4, 2, 2},
                             Ranks{4, 4, 4}, Ranks{4, 1, 1}}) {
    EngineOptions options;
    options.cache.layout = {ranks.sharing, 1, 4};
    options.cache.window = cache_window(windowed());
    const std::int64_t bound = most_pages(options.cache, 210, 16);
    // Room for one request at a time, and for two; 210 tokens alone would take 53 pages of a rank.
    for (const std::int64_t pages : {bound, 2 * bound}) {
      SCOPED_TRACE(
          fmt::format("{} ranks, cp {}, {} pages", ranks.all, ranks.context_parallel, pages));
      const Served found = serve(ranks, static_cast<std::int32_t>(pages));
      EXPECT_EQ(found.outputs, expected.outputs);
      EXPECT_LE(found.most_pages, bound);
    }
  }
}

TEST(Window, LongestRequestIsThatOfTheModelIfAStepFits) {
  EngineOptions options;
  options.cache.layout = {1, 1, 4};
  options.cache.window = 18;
  options.max_step_tokens = 16;
  options.cache.num_pages = 9;  // of 33 tokens that begin anywhere
  EXPECT_EQ(most_pages(options.cache, 400, 16), 9);
  EXPECT_EQ(longest_request(options, 400), 400);
  options.cache.num_pages = 8;
  EXPECT_EQ(longest_request(options, 400), 32);
  options.cache.window = 0;
  EXPECT_EQ(longest_request(options, 400), 32);
  EXPECT_EQ(longest_request(options, 20), 20);
}

TEST(Window, AModelWithALayerThatSeesAllKeepsAllPages) {
  DecoderConfig config = windowed();
  EXPECT_EQ(cache_window(config), 18);
  config.windows = {18, 0, 18};
  EXPECT_EQ(cache_window(config), 0);
  config.windows = {18, 18};
  EXPECT_EQ(cache_window(config), 0);
}

}  // namespace
}  // namespace contextile
