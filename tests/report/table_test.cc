#include "report/table.h"

#include <gtest/gtest.h>

#include <string>

namespace contextile {
namespace {

TEST(Wrap, BreaksLinesAtSpaces) {
  EXPECT_EQ(wrap("", 10), "");
  EXPECT_EQ(wrap("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrap("a verylongword b", 5), "a\nverylongword\nb");
}

TEST(Wrap, CountsColumnsNotBytes) {
  EXPECT_EQ(wrap("12 µs 34 µs", 11), "12 µs 34 µs");
  EXPECT_EQ(wrap("12 µs 34 µs", 10), "12 µs 34\nµs");
}

TEST(Wrap, IndentsLinesBehindTheFirst) {
  EXPECT_EQ(wrap("one two three", 9, {.first = 2, .others = 4}), "one two\n    three");
  EXPECT_EQ(wrap("one two three", 9, {.first = 3, .others = 1}), "one\n two\n three");
}

}  // namespace
}  // namespace contextile
