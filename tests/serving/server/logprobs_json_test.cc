#include "serving/server/logprobs_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "serving/server/completion.h"
#include "serving/server/protocol.h"

namespace contextile {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

CompletionRequest parsed(std::string_view body) {
  return parse_completion(body, *byte_tokenizer(), {"m", 256, 1000, 8});
}
ProtocolError error_of(std::string_view body) {
  try {
    static_cast<void>(parsed(body));
  } catch (const ProtocolFailure& failure) {
    return failure.error();
  }
  return {.status = 200};
}

TEST(Protocol, ReadsSamplingAndLengthsAsOtherServersDo) {
  const CompletionRequest request = parsed(
      R"({"prompt":"ab","max_completion_tokens":7,"min_p":0.125,"repetition_penalty":1.5,
          "presence_penalty":-1,"frequency_penalty":2,"logit_bias":{"7":-100,"255":2.5},
          "stop_token_ids":[3,4],"logprobs":5})");
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.sampling.min_p, 0.125);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(request.sampling.presence_penalty, -1);
  EXPECT_EQ(request.sampling.frequency_penalty, 2);
  EXPECT_THAT(request.sampling.logit_bias,
              testing::UnorderedElementsAre(TokenBias{7, -100}, TokenBias{255, 2.5}));
  EXPECT_THAT(request.stop_tokens, ElementsAre(3, 4));
  EXPECT_TRUE(request.logprobs);
  EXPECT_EQ(request.num_top, 5);
  EXPECT_FALSE(parsed(R"({"prompt":"ab","logprobs":false})").logprobs);
  EXPECT_EQ(parsed(R"({"prompt":"ab","max_tokens":0,"echo":true})").max_tokens, 0);
  EXPECT_EQ(parsed(R"({"prompt":"a","min_tokens":0,"response_format":{"type":"text"},
                       "skip_special_tokens":true})")
                .max_tokens,
            16);
}

TEST(Protocol, NamesFieldsThatItRefuses) {
  for (const auto& [body, param] : {
           std::pair(R"({"prompt":"a","min_p":2})", "min_p"),
           std::pair(R"({"prompt":"a","logit_bias":[1]})", "logit_bias"),
           std::pair(R"({"prompt":"a","logit_bias":{"x":1}})", "logit_bias"),
           std::pair(R"({"prompt":"a","logit_bias":{"1":null}})", "logit_bias"),
           std::pair(R"({"prompt":"a","stop_token_ids":3})", "stop_token_ids"),
           std::pair(R"({"prompt":"a","logprobs":true})", "logprobs"),
           std::pair(R"({"prompt":"a","logprobs":-1})", "logprobs"),
           std::pair(R"({"prompt":"a","response_format":{"type":"json_object"}})",
                     "response_format"),
           std::pair(R"({"prompt":"a","skip_special_tokens":false})", "skip_special_tokens"),
       }) {
    EXPECT_EQ(error_of(body).param, param) << body;
  }
  ProtocolLimits limits = {"m", 256, 1000, 8};
  limits.max_prompt_logprobs = 11;
  const auto tokenizer = byte_tokenizer();
  try {
    static_cast<void>(
        parse_completion(R"({"prompt":"abc","n":2,"echo":true,"logprobs":1})", *tokenizer, limits));
    ADD_FAILURE() << "expected a failure";
  } catch (const ProtocolFailure& failure) {
    EXPECT_THAT(failure.error().message, HasSubstr("at most 11 of a call's prompts, alternatives "
                                                   "included, found 12"));
  }
}

TEST(Protocol, TurnsTokensIntoText) {
  const auto tokenizer = byte_tokenizer();
  EXPECT_EQ(parse_detokenize(R"({"tokens":[97,195,164,255]})", *tokenizer), "aä\xef\xbf\xbd");
  EXPECT_EQ(parse_detokenize(R"({"tokens":[]})", *tokenizer), "");
  for (const char* body :
       {R"({})", R"({"tokens":"a"})", R"({"tokens":[256]})", R"({"tokens":[1],"x":1})", R"([1])"}) {
    EXPECT_THROW(static_cast<void>(parse_detokenize(body, *tokenizer)), ProtocolFailure) << body;
  }
}

EngineEvent event_of(std::int32_t token, float logprob, std::vector<TokenLogprob> top) {
  EngineEvent event;
  event.token = token;
  event.logprob = logprob;
  event.top = std::move(top);
  return event;
}

TEST(Logprobs, CoverAnEchoedPromptAndTheOutput) {
  const auto tokenizer = byte_tokenizer();
  const CompletionRequest asked =
      parsed(R"({"prompt":"\u00e4b","echo":true,"logprobs":2,"max_tokens":2})");
  Completion completion(asked, *tokenizer);
  EngineEvent first = event_of('c', -1, {{'x', -0.5}, {'c', -1}});
  first.prompt = {{-2, -3}, {{0xa4, -2}, {'a', -4}, {'y', -1}, {EngineEvent::kNoToken, 0}}};
  EXPECT_EQ(completion.add(0, first).text, "äbc");
  EngineEvent last = event_of('d', -std::numeric_limits<float>::infinity(), {{'x', 0}, {'y', -9}});
  last.finish = FinishReason::kLength;
  const CompletionChoice piece = completion.add(0, last);
  EXPECT_THAT(piece.logprobs.offsets, ElementsAre(3));
  const json found =
      json::parse(completion_json({}, asked, *tokenizer, completion.choices(), completion.usage()));
  const json& logprobs = found["choices"][0]["logprobs"];
  // The token of half a character has no text of its own.
  EXPECT_EQ(logprobs["tokens"], json({"token_id:195", "token_id:164", "b", "c", "d"}));
  EXPECT_EQ(logprobs["token_logprobs"], json({nullptr, -2, -3, -1, -9999}));
  EXPECT_EQ(logprobs["text_offset"], json({0, 1, 1, 2, 3}));
  EXPECT_EQ(logprobs["top_logprobs"],
            json({nullptr,
                  {{"token_id:164", -2}, {"a", -4}},
                  {{"y", -1}, {"b", -3}},  // the chosen one is always there
                  {{"x", -0.5}, {"c", -1}},
                  {{"x", 0}, {"y", -9}, {"d", -9999}}}));
  EXPECT_EQ(found["usage"]["completion_tokens"], 2);
}

TEST(Logprobs, AreThoseOfThePromptAloneWithoutOutput) {
  const auto tokenizer = byte_tokenizer();
  const CompletionRequest asked =
      parsed(R"({"prompt":"ab","echo":true,"logprobs":0,"max_tokens":0})");
  Completion completion(asked, *tokenizer);
  EngineEvent only = event_of(EngineEvent::kNoToken, 0, {});
  only.prompt.tokens = {-0.5};
  only.finish = FinishReason::kLength;
  const CompletionChoice piece = completion.add(0, only);
  EXPECT_EQ(piece.text, "ab");
  EXPECT_EQ(piece.finish_reason, "length");
  EXPECT_TRUE(completion.is_finished());
  EXPECT_EQ(completion.usage().completion_tokens, 0);
  EXPECT_EQ(json::parse(logprobs_json(piece.logprobs, *tokenizer)),
            json({{"tokens", {"a", "b"}},
                  {"token_logprobs", {nullptr, -0.5}},
                  {"top_logprobs", nullptr},
                  {"text_offset", {0, 1}}}));
}

}  // namespace
}  // namespace contextile
