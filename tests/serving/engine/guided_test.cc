// Requests whose every token is one of those that the caller allows.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <vector>

#include "contextile/serving/engine.h"
#include "serving/engine/small_decoder.h"
#include "support/message_of.h"

namespace contextile {
namespace {

constexpr std::int32_t kVocab = 61;
constexpr std::int32_t kTokens = 12;

// The tokens t with t % 5 == step % 5, so that each step's set shares no token with the next one's.
TokenSet every_fifth(std::size_t step) {
  TokenSet tokens(2);
  for (std::size_t t = step % 5; t < kVocab; t += 5) tokens[t / 32] |= 1U << (t % 32);
  return tokens;
}

struct Served {
  std::map<std::int32_t, std::vector<std::int32_t>> outputs;
  std::map<std::int32_t, std::string> failures;
  std::int64_t drafts = 0;
};

// Serves two requests that repeat themselves, the first of them guided. Without `allows`, nothing
// is allowed after the first token.
Served serve(std::int32_t ranks, const SamplingParams& sampling, bool allows = true,
             std::int32_t num_drafts = 0) {
  const DecoderConfig config = small_decoder(kVocab);
  EngineOptions options;
  options.cache = {.layout = {ranks, 1, 4}, .num_pages = 100};
  options.speculation.num_tokens = num_drafts;
  DecoderOptions decoder;
  decoder.layout = options.cache.layout;
  decoder.num_pages = 100;
  std::vector<Served> served(static_cast<std::size_t>(ranks));
  run_inproc(ranks, [&](Transport& transport) {
    DecoderRank model(transport, config,
                      random_weights(config, {transport.rank(), ranks, true, 1, ranks}, 7),
                      decoder);
    Engine engine(model, config, options);
    EngineRank rank(transport, engine);
    Served& its = served[transport.rank().index()];
    EngineInput input;
    for (const std::int32_t id : {0, 1}) {
      GenerationRequest request;
      request.id = RequestId(id);
      request.prompt = {3, 4, 5, 3, 4, 5, 3, 4, 5, 3 + id};
      request.max_tokens = kTokens;
      request.sampling = sampling;
      request.num_logprobs = 3;
      request.is_guided = id == 0;
      input.arrivals.push_back(request);
    }
    input.allowed = {{RequestId(0), every_fifth(0)}};
    while (!input.arrivals.empty() || !engine.idle()) {
      const EngineOutput output = rank.advance(input);
      input = {};
      for (const EngineEvent& event : output.events) {
        std::vector<std::int32_t>& tokens = its.outputs[event.request.value];
        if (!event.failure.empty()) {
          its.failures[event.request.value] = event.failure;
          continue;
        }
        tokens.push_back(event.token);
        if (event.request == RequestId(0) && allows && !event.finish) {
          input.allowed = {{event.request, every_fifth(tokens.size())}};
        }
      }
    }
    EXPECT_EQ(engine.scheduler().cache().free_pages(), 100);
    its.drafts = engine.scheduler().stats().num_draft_tokens;
  });
  for (const Served& its : served) EXPECT_EQ(its.outputs, served.front().outputs);
  return served.front();
}

TEST(Guided, TokensAreThoseThatWereAllowedBeforeThem) {
  SamplingParams sampled{.temperature = 1, .top_p = 0.9, .seed = 5};
  sampled.repetition_penalty = 1.3;
  for (const SamplingParams& sampling : {SamplingParams{}, sampled}) {
    const Served one = serve(1, sampling);
    const std::vector<std::int32_t>& tokens = one.outputs.at(0);
    ASSERT_EQ(std::ssize(tokens), kTokens);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ(tokens[i] % 5, static_cast<std::int32_t>(i % 5));
    }
    for (const std::int32_t ranks : {2, 4}) EXPECT_EQ(serve(ranks, sampling).outputs, one.outputs);
    // Drafts are for the other request alone.
    const Served drafted = serve(1, sampling, true, 4);
    EXPECT_EQ(drafted.outputs, one.outputs);
  }
  EXPECT_GT(serve(1, {}, true, 4).drafts, 0);
}

TEST(Guided, ARequestThatWasAllowedNothingFailsAlone) {
  const Served found = serve(2, {}, false);
  EXPECT_EQ(std::ssize(found.outputs.at(0)), 1);
  EXPECT_EQ(found.failures.at(0),
            "request: expected the tokens that may come next, found none given");
  EXPECT_EQ(std::ssize(found.outputs.at(1)), kTokens);
}

TEST(Guided, OnlyKeepsTheLogitsOfASet) {
  constexpr float kNone = -std::numeric_limits<float>::infinity();
  const std::vector<float> logits(40, 2);
  const std::vector<float> kept = only(logits, {1U << 3});  // nothing of the second word
  EXPECT_EQ(kept[3], 2);
  EXPECT_EQ(std::ranges::count(kept, kNone), 39);
  EXPECT_EQ(only(logits, {0, 1U << 2, ~0U})[34], 2);  // more words than there are tokens
  EXPECT_EQ(message_of([&] {
              static_cast<void>(only(logits, {0, 1U << 31}));
            }),
            "request: expected a token that may come next, found none of 40");
}

}  // namespace
}  // namespace contextile
