#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "contextile/serving/completion_server.h"
#include "serving/server/completion.h"
#include "serving/server/protocol.h"
#include "serving/server/request_queue.h"
#include "serving/server/text_stream.h"

namespace contextile {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(TextStream, GivesOutWholeCharacters) {
  TextStream text({});
  EXPECT_EQ(text.add("a\xc3"), "a");
  EXPECT_EQ(text.add("\xa4"), "ä");
  EXPECT_EQ(text.add("\xf0\x9f\x98"), "");
  EXPECT_EQ(text.add("\x80!"), "😀!");
  EXPECT_EQ(text.add("\xff\x80x\xe6"), "\xef\xbf\xbd\xef\xbf\xbdx");
  EXPECT_EQ(text.finish(), "\xef\xbf\xbd");
  // One for bytes that begin a character, each for itself where none begins so.
  EXPECT_EQ(text.add("\xf0\x9f\x98x\xe6\xb5\xc3\xa4"), "\xef\xbf\xbdx\xef\xbf\xbdä");
  EXPECT_EQ(
      text.add("\xe0\x80\x80\xed\xa0\xf4\x90x"),
      "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdx");
}

TEST(TextStream, HoldsBackWhatMayBeginAStopSequence) {
  TextStream text({"END", "\n\n"});
  EXPECT_EQ(text.add("one E"), "one ");
  EXPECT_EQ(text.add("N"), "");
  EXPECT_EQ(text.add("D?"), "");
  EXPECT_TRUE(text.stopped());
  EXPECT_EQ(text.add("more"), "");
  EXPECT_EQ(text.finish(), "");
  TextStream other({"END", "\n\n"});
  EXPECT_EQ(other.add("EN\n"), "EN");
  EXPECT_EQ(other.add("x"), "\nx");
  EXPECT_FALSE(other.stopped());
}

// However the bytes are cut, the text is the same.
TEST(TextStream, DoesNotDependOnWhereTokensEnd) {
  std::mt19937 random(1);
  for (int turn = 0; turn < 300; ++turn) {
    std::string bytes;
    for (int i = 0; i < 30; ++i) {
      bytes +=
          std::vector<std::string>{"a", "b", "ab", "ä", "😀", "\xf0\x9f", "\x80", "c"}[random() % 8];
    }
    const std::vector<std::string> stops = {"aba", "äc"};
    TextStream whole(stops);
    const std::string first = whole.add(bytes);
    const std::string expected = first + whole.finish();
    TextStream cut(stops);
    std::string found;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t size = 1 + random() % 4;
      found += cut.add(std::string_view(bytes).substr(at, size));
      at += size;
    }
    found += cut.finish();
    EXPECT_EQ(found, expected);
    EXPECT_EQ(cut.stopped(), whole.stopped());
  }
}

CompletionRequest request_from(std::string_view body) {
  return parse_completion(body, *byte_tokenizer(), {"m", 256, 1000, 8});
}

TEST(Protocol, ReadsWhatClientsSend) {
  const CompletionRequest request = request_from(
      R"({"model":"m","prompt":["ab",[1,2,3]],"max_tokens":7,"n":2,"temperature":0.5,"top_p":0.25,
          "top_k":-1,"seed":-3,"stop":["x","y"],"stream":true,"stream_options":{"include_usage":true},
          "echo":true,"logprobs":0,"ignore_eos":true,"return_token_ids":true,"user":"u"})");
  ASSERT_EQ(request.prompts.size(), 2U);
  EXPECT_THAT(request.prompts[0], ElementsAre('a', 'b'));
  EXPECT_THAT(request.prompts[1], ElementsAre(1, 2, 3));
  EXPECT_EQ(request.max_tokens, 7);
  EXPECT_EQ(request.n, 2);
  EXPECT_EQ(request.sampling.temperature, 0.5);
  EXPECT_EQ(request.sampling.top_p, 0.25);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_TRUE(request.has_seed);
  EXPECT_THAT(request.stops, ElementsAre("x", "y"));
  EXPECT_TRUE(request.stream && request.include_usage && request.echo && request.logprobs &&
              request.ignore_end && request.return_tokens);
  const CompletionRequest plain = request_from(R"({"prompt":"a","seed":null})");
  EXPECT_EQ(plain.max_tokens, 16);
  EXPECT_EQ(plain.sampling.temperature, 1);
  EXPECT_FALSE(plain.has_seed || plain.stream || plain.echo || plain.logprobs);
}

ProtocolError refusal_of(std::string_view body) {
  try {
    static_cast<void>(request_from(body));
  } catch (const ProtocolFailure& failure) {
    return failure.error();
  }
  return {.status = 200};
}

TEST(Completion, PutsPiecesTogether) {
  CompletionRequest asked =
      request_from(R"({"prompt":"ab","n":2,"stop":"z","echo":true,"max_tokens":9})");
  const auto tokenizer = byte_tokenizer();
  Completion completion(asked, *tokenizer);
  const auto event = [](std::int32_t token, std::optional<FinishReason> finish = std::nullopt) {
    return EngineEvent{RequestId(0), token, -1, 2, finish};
  };
  EXPECT_EQ(completion.add(0, event('x')).text, "abx");
  EXPECT_EQ(completion.add(1, event('y')).text, "aby");
  EXPECT_FALSE(completion.is_finished());
  const CompletionChoice last = completion.add(0, event('z'));
  EXPECT_EQ(last.text, "");
  EXPECT_EQ(last.finish_reason, "stop");
  EXPECT_TRUE(completion.ends_early(0, event('z')));
  EXPECT_EQ(completion.add(0, event('q')).text, "");
  EXPECT_EQ(completion.add(1, event('w', FinishReason::kLength)).finish_reason, "length");
  EXPECT_TRUE(completion.is_finished());
  EXPECT_EQ(completion.choices()[0].text, "abx");
  EXPECT_EQ(completion.choices()[1].text, "abyw");
  EXPECT_EQ(completion.usage().completion_tokens, 4);
  EXPECT_EQ(completion.usage().cached_tokens, 2);
}

TEST(Protocol, SaysWhatIsNotUnderstood) {
  EXPECT_EQ(refusal_of(R"({"prompt":"a"})").status, 200);
  EXPECT_EQ(refusal_of(R"({"prompt":"a","logit_bias":{},"best_of":1,"suffix":null})").status, 200);
  EXPECT_EQ(refusal_of(R"({"prompt":"a","tools":[],"priority":0,"store":false})").status, 200);
  EXPECT_EQ(refusal_of(R"({"prompt":"a","best_of":2})").code, "unsupported_parameter");
  EXPECT_EQ(refusal_of(R"({"prompt":"a","user":5})").param, "user");
  EXPECT_EQ(refusal_of(R"({"prompt":"a","stream_options":{"include_usage":true}})").param,
            "stream_options");
  EXPECT_EQ(refusal_of(R"({"prompt":"a","model":"other"})").status, 404);
  EXPECT_EQ(refusal_of(R"({"prompt":["a","b","c"],"n":3})").param, "prompt");
  EXPECT_THAT(refusal_of(R"({"prompt":[1,300]})").message, HasSubstr("0 to 255, found '300'"));
}

GenerationRequest request_of(std::vector<std::int32_t> prompt) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  return request;
}

EngineEvent event_of(RequestId id, std::int32_t token) {
  EngineEvent event;
  event.request = id;
  event.token = token;
  return event;
}

TEST(RequestQueue, BringsTokensToTheirCalls) {
  RequestQueue queue;
  const auto one = queue.submit({request_of({1}), request_of({2})});
  const auto other = queue.submit({request_of({3})});
  const EngineInput input = queue.take(milliseconds(0));
  ASSERT_EQ(input.arrivals.size(), 3U);
  EXPECT_TRUE(queue.take(milliseconds(0)).arrivals.empty());
  EngineOutput output;
  output.events = {event_of(input.arrivals[1].id, 7), event_of(input.arrivals[2].id, 8)};
  queue.deliver(output);
  for (const auto& call : {one, one, other}) EXPECT_TRUE(call->next(milliseconds(0))->is_taken);
  const auto update = one->next(milliseconds(0));
  ASSERT_TRUE(update);
  EXPECT_EQ(update->index, 1);
  EXPECT_EQ(update->event.token, 7);
  EXPECT_FALSE(one->next(milliseconds(0)));
  EXPECT_EQ(other->next(milliseconds(0))->event.token, 8);
  queue.cancel(*one);
  EXPECT_THAT(queue.take(milliseconds(0)).cancelled,
              ElementsAre(input.arrivals[0].id, input.arrivals[1].id));
}

TEST(RequestQueue, WhatWasNotTakenIsCancelledWithoutAWord) {
  RequestQueue queue;
  const auto call = queue.submit({request_of({1})});
  queue.cancel(*call);
  const EngineInput input = queue.take(milliseconds(0));
  EXPECT_TRUE(input.arrivals.empty());
  EXPECT_TRUE(input.cancelled.empty());
}

TEST(RequestQueue, ARejectionEndsTheWholeCall) {
  RequestQueue queue;
  const auto call = queue.submit({request_of({1}), request_of({2})});
  const EngineInput input = queue.take(milliseconds(0));
  EngineOutput output;
  output.rejections = {{input.arrivals[1].id, "no", true}};
  queue.deliver(output);
  const auto update = call->next(milliseconds(0));
  ASSERT_TRUE(update);
  EXPECT_EQ(update->failure, "no");
  EXPECT_TRUE(update->is_full);
  EXPECT_THAT(queue.take(milliseconds(0)).cancelled,
              ElementsAre(input.arrivals[0].id, input.arrivals[1].id));
}

TEST(RequestQueue, StoppingFailsWhatIsUnderWayAndWhatComes) {
  RequestQueue queue;
  const auto call = queue.submit({request_of({1})});
  queue.stop("over");
  EXPECT_TRUE(call->next(milliseconds(0))->is_internal);
  EXPECT_EQ(queue.submit({request_of({1})})->next(milliseconds(0))->failure, "over");
  EXPECT_TRUE(queue.take(milliseconds(0)).stop);
}

// Requests that lost engines had begun are lost, too; the others come once more.
TEST(RequestQueue, NewEnginesAreGivenWhatHadNotBegun) {
  EngineOptions options;
  options.cache.num_pages = 4;
  options.max_running = 1;
  Scheduler scheduler(options, 100);
  RequestQueue queue;
  const auto begun = queue.submit({request_of({1})});
  const auto waiting = queue.submit({request_of({2})});
  for (const GenerationRequest& request : queue.take(milliseconds(0)).arrivals) {
    ASSERT_TRUE(scheduler.submit(request));
  }
  static_cast<void>(scheduler.next());
  const auto later = queue.submit({request_of({3})});
  queue.restart(scheduler, "lost");
  EXPECT_EQ(begun->next(milliseconds(0))->failure, "lost");
  EXPECT_FALSE(waiting->next(milliseconds(0)));
  const EngineInput input = queue.take(milliseconds(0));
  ASSERT_EQ(input.arrivals.size(), 2U);
  EXPECT_THAT(input.arrivals[0].prompt, ElementsAre(2));
  EXPECT_THAT(input.arrivals[1].prompt, ElementsAre(3));
  EXPECT_TRUE(input.cancelled.empty());
}

class BpeTokenizer : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!completion_server_missing().empty()) GTEST_SKIP() << completion_server_missing();
  }
  static std::unique_ptr<Tokenizer> load(const std::string& text) {
    const std::filesystem::path folder =
        std::filesystem::path(::testing::TempDir()) / "contextile_tokenizer";
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "tokenizer.json") << text;
    return load_tokenizer(folder.string());
  }
  static std::string refusal_of(const std::string& text) {
    try {
      static_cast<void>(load(text));
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "";
  }
};

constexpr const char* kCharacters = R"({"added_tokens":[{"id":9,"content":"<s>","special":true}],
  "normalizer":{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},
    {"type":"Replace","pattern":{"String":" "},"content":"▁"}]},
  "post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},
    {"Sequence":{"id":"A","type_id":0}}],"special_tokens":{"<s>":{"id":"<s>","ids":[9],"tokens":["<s>"]}}},
  "model":{"type":"BPE","byte_fallback":true,"vocab":{"▁":0,"a":1,"b":2,"ab":3,"▁ab":4,"<0xC3>":5,"<0xA4>":6,
    "<s>":9},"merges":[["a","b"],["▁","ab"]]}})";

TEST_F(BpeTokenizer, JoinsCharactersAndFallsBackToBytes) {
  const auto tokenizer = load(kCharacters);
  EXPECT_THAT(tokenizer->encode("ab ab"), ElementsAre(9, 4, 4));
  EXPECT_THAT(tokenizer->encode("baä"), ElementsAre(9, 0, 2, 1, 5, 6));
  EXPECT_THAT(tokenizer->encode("a<s>b"), ElementsAre(9, 0, 1, 9, 0, 2));
  EXPECT_THAT(tokenizer->encode(" ab"), ElementsAre(9, 0, 4));
  EXPECT_EQ(tokenizer->bytes(4), " ab");
  EXPECT_EQ(tokenizer->bytes(5), "\xc3");
  EXPECT_EQ(tokenizer->bytes(9), "");
  EXPECT_EQ(tokenizer->name(9), "<s>");
  EXPECT_EQ(tokenizer->name(4), " ab");
  EXPECT_EQ(tokenizer->bytes(77), "");
  EXPECT_THROW(static_cast<void>(tokenizer->encode("c")), InvalidArgument);
  EXPECT_THROW(static_cast<void>(tokenizer->encode("\xc3")), InvalidArgument);
}

TEST_F(BpeTokenizer, TakesTokensThatOnlyLookLikeBytesAsTexts) {
  const auto tokenizer = load(R"j({"model":{"type":"BPE","byte_fallback":true,"merges":[],"vocab":
    {"<0x:3>":0,"<0x3:>":1,"<0x-1>":2,"<0xzz>":3,"<0xfF>":4,"<0x41)":5}}})j");
  EXPECT_EQ(tokenizer->bytes(0), "<0x:3>");
  EXPECT_EQ(tokenizer->bytes(1), "<0x3:>");
  EXPECT_EQ(tokenizer->bytes(2), "<0x-1>");
  EXPECT_EQ(tokenizer->bytes(3), "<0xzz>");
  EXPECT_EQ(tokenizer->bytes(4), "\xff");
  EXPECT_EQ(tokenizer->bytes(5), "<0x41)");
}

TEST_F(BpeTokenizer, PutsASpaceBeforeTextOrEveryPieceUnlessOneIsThere) {
  const auto encode = [](const std::string& scheme, const std::string& text) {
    return load(fmt::format(R"j({{"added_tokens":[{{"id":9,"content":"<s>"}}],"pre_tokenizer":
      {{"type":"Metaspace","replacement":"▁","prepend_scheme":"{}","split":false}},
      "model":{{"type":"BPE","byte_fallback":true,"vocab":{{"▁":0,"a":1}},"merges":[]}}}})j",
                            scheme))
        ->encode(text);
  };
  EXPECT_THAT(encode("never", "a<s>a"), ElementsAre(1, 9, 1));
  EXPECT_THAT(encode("first", "a<s>a"), ElementsAre(0, 1, 9, 1));
  EXPECT_THAT(encode("first", "<s>a"), ElementsAre(9, 1));
  EXPECT_THAT(encode("always", "a<s>a"), ElementsAre(0, 1, 9, 0, 1));
  EXPECT_THAT(encode("always", " a<s>▁a"), ElementsAre(0, 1, 9, 0, 1));
}

TEST_F(BpeTokenizer, TakesLongWordsInTime) {
  const auto tokenizer = load(kCharacters);
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += "ab";
  EXPECT_EQ(tokenizer->encode(text).size(), 300'001U);
}

TEST_F(BpeTokenizer, EndsWhenTold) {
  struct Stopped {};
  int num_looks = 0;
  const auto look = [&] {
    if (++num_looks == 3) throw Stopped();
  };
  const auto tokenizer = load(kCharacters);
  std::string one_word;
  for (int i = 0; i < 20'000; ++i) one_word += "ab";
  std::string pieces;
  for (int i = 0; i < 20'000; ++i) pieces += "<s>a";
  for (const std::string& text : {one_word, pieces}) {
    num_looks = 0;
    EXPECT_THROW(static_cast<void>(tokenizer->encode_watched(text, SpecialTokens::kAdd, look)),
                 Stopped);
  }
}

TEST_F(BpeTokenizer, SaysWhatIsNotRead) {
  EXPECT_THAT(refusal_of("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(refusal_of("{}"), HasSubstr("expected a tokenizer of Hugging Face's format"));
  EXPECT_THAT(refusal_of(R"({"model":{"type":"Unigram"}})"),
              HasSubstr("expected BPE, found 'Unigram'"));
  EXPECT_THAT(refusal_of(R"({"model":{"vocab":{"a":-1},"merges":[]}})"), HasSubstr("token ids"));
  const auto error_with = [](const std::string& parts) {
    return refusal_of(R"({"model":{"byte_fallback":true,"vocab":{"a":1},"merges":["a b"]})" +
                      parts + "}");
  };
  EXPECT_THAT(error_with(""), HasSubstr("found 'b'"));
  EXPECT_THAT(error_with(R"(,"pre_tokenizer":{"type":"Bert"})"),
              HasSubstr(R"(found '{"type":"Bert"}')"));
  EXPECT_THAT(
      refusal_of(
          R"j({"model":{"vocab":{},"merges":[]},"pre_tokenizer":{"type":"Sequence","pretokenizers":[
                  {"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"},{"type":"ByteLevel"}]}})j"),
      HasSubstr("expected a pattern of words"));
}

TEST_F(BpeTokenizer, RefusesWhatWouldChangeTokens) {
  const auto error_with = [](const std::string& model, const std::string& parts) {
    return refusal_of(R"({"model":{"vocab":{"a":1},"merges":[])" + model + "}" + parts + "}");
  };
  const std::string bytes = R"(,"pre_tokenizer":{"type":"ByteLevel"})";
  EXPECT_EQ(error_with("", bytes), "");
  EXPECT_THAT(error_with("", ""), HasSubstr("found neither"));
  EXPECT_THAT(error_with(R"(,"byte_fallback":true)", bytes), HasSubstr("found both"));
  EXPECT_THAT(error_with(R"(,"dropout":0.1)", bytes), HasSubstr("dropout: expected none"));
  EXPECT_THAT(error_with(R"(,"end_of_word_suffix":"</w>")", bytes),
              HasSubstr("end_of_word_suffix"));
  for (const char* normalizer : {R"({"type":"NFKC"})", R"({"type":"Lowercase"})",
                                 R"({"type":"Replace","pattern":{"Regex":"a"},"content":"b"})"}) {
    EXPECT_THAT(error_with("", bytes + R"(,"normalizer":)" + normalizer), HasSubstr("normalizer:"));
  }
  for (const char* words :
       {R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Removed"})",
        R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Isolated","invert":true})",
        R"({"type":"Metaspace","replacement":"_","split":false})", R"({"type":"Metaspace"})",
        R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Digits"}]})"}) {
    EXPECT_THAT(error_with("", R"(,"pre_tokenizer":)" + std::string(words)),
                HasSubstr("pre_tokenizer:"));
  }
  EXPECT_THAT(error_with("", bytes + R"(,"decoder":{"type":"WordPiece"})"), HasSubstr("decoder:"));
}

TEST_F(BpeTokenizer, FindsAddedTokensByTheirFlags) {
  const auto encode = [](const std::string& flags, const std::string& text) {
    return load(R"j({"model":{"byte_fallback":true,"vocab":{"a":1," ":2,"x":3,"é":4},"merges":[]},
      "normalizer":{"type":"NFC"},"added_tokens":[{"id":9,"content":"e\u0301x")j" +
                flags + "}]}")
        ->encode(text);
  };
  EXPECT_THAT(encode("", "a e\u0301x a"), ElementsAre(1, 2, 9, 2, 1));
  EXPECT_THAT(encode(R"(,"lstrip":true)", "a  e\u0301x a"), ElementsAre(1, 9, 2, 1));
  EXPECT_THAT(encode(R"(,"rstrip":true)", "a e\u0301x  a"), ElementsAre(1, 2, 9, 1));
  EXPECT_THAT(encode(R"(,"single_word":true)", "ae\u0301x e\u0301x"), ElementsAre(1, 4, 3, 2, 9));
  // The text in another form is found where the token is one of normalized text.
  EXPECT_THAT(encode("", "éx"), ElementsAre(4, 3));
  EXPECT_THAT(encode(R"(,"normalized":true)", "éx"), ElementsAre(9));
}

TEST_F(BpeTokenizer, TakesLongWhiteSpaceInTime) {
  const auto tokenizer = load(R"j({"model":{"byte_fallback":true,"vocab":{" ":2},"merges":[]},
    "added_tokens":[{"id":9,"content":"  ","lstrip":true,"rstrip":true}]})j");
  EXPECT_THAT(tokenizer->encode(std::string(1'000'000, ' ')), ElementsAre(9));
}

TEST_F(BpeTokenizer, PutsTokensBehindAText) {
  const auto tokenizer = load(R"j({"model":{"byte_fallback":true,"vocab":{"a":1},"merges":[]},
    "post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}},
    {"SpecialToken":{"id":"</s>","type_id":0}}],"special_tokens":{"</s>":{"ids":[9]}}}})j");
  EXPECT_THAT(tokenizer->encode("a"), ElementsAre(1, 9));
  EXPECT_THAT(tokenizer->encode("a", SpecialTokens::kNone), ElementsAre(1));
}

}  // namespace
}  // namespace contextile
