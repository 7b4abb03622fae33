#include "base/quote.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace contextile {
namespace {

TEST(Printable, EscapesWhatGivesOrdersToATerminal) {
  EXPECT_EQ(printable("a\x1b[31mb\nc\x7f"), "a\\x1b[31mb\\x0ac\\x7f");
  EXPECT_EQ(printable("\u0085\u009b31m"), "\\xc2\\x85\\xc2\\x9b31m");
  EXPECT_EQ(printable("gr\u00fc\u00df\u20ac \U0001f600"), "gr\u00fc\u00df\u20ac \U0001f600");
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
}

TEST(Printable, EscapesWhatTurnsTheTextBehindIt) {
  EXPECT_EQ(printable("a\u202etxt"), "a\\xe2\\x80\\xaetxt");
  EXPECT_EQ(printable("\u2066\u200f"), "\\xe2\\x81\\xa6\\xe2\\x80\\x8f");
}

TEST(Printable, IsCutBetweenCharacters) {
  EXPECT_EQ(printable(fmt::format("{:a>80}", "")), fmt::format("{:a>80}", ""));
  EXPECT_EQ(printable(fmt::format("{:a>81}", "")), fmt::format("{:a>80}...", ""));
  EXPECT_EQ(printable(fmt::format("{:a>79}\u20ac", "")), fmt::format("{:a>79}...", ""));
}

TEST(WithEscapedControls, LeavesWhatIsNone) {
  EXPECT_EQ(with_escaped_controls("{\"a\u007fb\": \"\u0080\u009f\u00a0\u20ac\"}\n"),
            "{\"a\\u007fb\": \"\\u0080\\u009f\u00a0\u20ac\"}\n");
  EXPECT_EQ(with_escaped_controls("\xc2"), "\xc2");
  EXPECT_EQ(with_escaped_controls(""), "");
}

TEST(WithoutOrders, IsNotCut) {
  EXPECT_EQ(without_orders(fmt::format("{:a>200}\n", "")), fmt::format("{:a>200}\\x0a", ""));
}

}  // namespace
}  // namespace contextile
