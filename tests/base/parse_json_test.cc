#include "base/parse_json.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/quote.h"
#include "contextile/base.h"

namespace contextile {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string message_of(const std::string& text) {
  try {
    static_cast<void>(parse_json(text, "here"));
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
