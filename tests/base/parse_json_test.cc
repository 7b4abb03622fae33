#include "base/parse_json.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/quote.h"
#include "contextile/base.h"

namespace contextile {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string message_of(const std::string& text, const JsonLimits& limits = {}) {
  try {
    static_cast<void>(parse_json(text, "here", limits));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(ParseJson, ReadsADocument) {
  EXPECT_EQ(parse_json(R"({"a": [1, null, {"a": 2}]})", "here")["a"][2]["a"], 2);
}

TEST(ParseJson, NamesSourceAndPositionOfASyntaxError) {
  EXPECT_THAT(message_of("{\"a\":\n tru}"),
              HasSubstr("here: expected JSON: parse error at line 2"));
  EXPECT_THAT(message_of("1 2"), Not(HasSubstr("json.exception")));
  EXPECT_THAT(message_of(""), HasSubstr("here: "));
  EXPECT_THAT(message_of("[NaN]"), HasSubstr("here: "));
  EXPECT_THAT(message_of("[1e999]"), HasSubstr("number overflow"));
  EXPECT_THAT(message_of("\"\xff\""), HasSubstr("UTF-8"));
}

TEST(ParseJson, RefusesDeepNestingHoweverItIsMade) {
  EXPECT_EQ(message_of(std::string(64, '[') + std::string(64, ']')), "no error");
  EXPECT_THAT(message_of(std::string(1'000'000, '[')), HasSubstr("64 levels"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  EXPECT_THAT(message_of(objects), HasSubstr("64 levels"));
}

TEST(ParseJson, RefusesAKeyGivenTwiceInOneObjectOnly) {
  EXPECT_THAT(message_of(R"({"a": {"b": 1}, "b": 2, "b": 3})"), HasSubstr("found 'b' twice"));
  EXPECT_EQ(message_of(R"([{"a": {"a": 1}, "b": 1}, {"a": 1}])"), "no error");
}

// A reader that looks through the parent at the end of every object needs an hour for these.
TEST(ParseJson, ReadsMillionsOfSmallObjects) {
  std::string objects = "{}";
  std::string members = R"("":{})";
  for (int i = 1; i < 1'000'000; ++i) objects += ",{}";
  for (int i = 1; i < 300'000; ++i) members += fmt::format(R"(,"{}":{{"a":[]}})", i);
  EXPECT_EQ(parse_json('[' + objects + ']', "here").size(), 1'000'000U);
  EXPECT_EQ(parse_json(R"({"a":[)" + objects + "]}", "here")["a"].size(), 1'000'000U);
  EXPECT_EQ(parse_json('{' + members + '}', "here").size(), 300'000U);
}

TEST(JsonInteger, IsNothingForNumbersThatWouldWrap) {
  EXPECT_EQ(json_integer(parse_json("9223372036854775807", "here")), INT64_MAX);
  EXPECT_EQ(json_integer(parse_json("-9223372036854775808", "here")), INT64_MIN);
  for (const char* other : {"9223372036854775808", "18446744073709551615", "1.0", "true", "null"}) {
    EXPECT_EQ(json_integer(parse_json(other, "here")), std::nullopt) << other;
  }
  EXPECT_EQ(json_integer(parse_json("3", "here"), 3, 3), 3);
  EXPECT_EQ(json_integer(parse_json("4", "here"), 1, 3), std::nullopt);
  EXPECT_EQ(json_integer(parse_json("18446744073709551615", "here"), -1, 3), std::nullopt);
}

TEST(ParseJson, BuildsEveryKindOfValueAsTheLibraryDoes) {
  const std::string text =
      R"({"a":[],"b":{},"c":[[[1]],{"x":{"y":[null,true,-1,18446744073709551615,0.5,"é\u0041"]}},)"
      R"([{}],2],"d":{"e":{"f":3},"g":4}})";
  EXPECT_EQ(parse_json(text, "here"), nlohmann::json::parse(text));
  for (const std::string scalar : {"null", "false", "-3", "1e3", R"("text")"}) {
    EXPECT_EQ(parse_json(scalar, "here"), nlohmann::json::parse(scalar));
  }
}

TEST(ParseJson, RefusesMoreValuesOrNodesThanAllowed) {
  const std::string text = R"([1,{"a":2},[]])";
  EXPECT_EQ(message_of(text, {.max_values = 5, .max_nodes = 4}), "no error");
  EXPECT_THAT(message_of(text, {.max_values = 4}),
              HasSubstr("here: expected at most 4 values, found more"));
  EXPECT_THAT(message_of(text, {.max_nodes = 3}),
              HasSubstr("here: expected at most 3 objects, arrays, keys and texts, found more"));
}

TEST(ParseJson, LooksUpOftenAndEndsWhenTold) {
  std::string zeros = "0";
  for (int i = 1; i < 1'000'000; ++i) zeros += ",0";
  int num_looks = 0;
  static_cast<void>(parse_json('[' + zeros + ']', "here", {.look = [&] { ++num_looks; }}));
  EXPECT_GT(num_looks, 200);
  EXPECT_LT(num_looks, 1000);
  struct Stopped {};
  const auto stop = [&] {
    if (--num_looks == 0) throw Stopped();
  };
  num_looks = 3;
  EXPECT_THROW(static_cast<void>(parse_json('[' + zeros, "here", {.look = stop})), Stopped);
}

TEST(Quote, CutsLongTextAndEscapesWhatIsNoAscii) {
  EXPECT_EQ(quote("ab"), "'ab'");
  EXPECT_EQ(quote("\n\xff"), "'\\x0a\\xff'");
  const std::string forty(40, 'x');
  EXPECT_EQ(quote(forty), fmt::format("'{}'", forty));
  EXPECT_EQ(quote(forty + "x"), fmt::format("'{}...'", forty));
}

TEST(ParseJson, QuotesNoNumberOfAnyLength) {
  try {
    static_cast<void>(parse_json("[" + std::string(100'000, '9') + "]", "here"));
    ADD_FAILURE() << "expected an error";
  } catch (const InvalidArgument& error) {
    EXPECT_LT(std::string(error.what()).size(), 300U);
  }
}

}  // namespace
}  // namespace contextile
