#include "serving/server/added_tokens.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace contextile {
namespace {

TEST(AddedTokens, FindsTheFirstAndOfThoseThatBeginThereTheLongest) {
  const AddedTokens tokens({{"<a>", 1, true}, {"<a><b>", 2, false}, {"b>x", 3, false}});
  const auto first = tokens.find("zz<a><b>x", 0);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->begin, 2U);
  EXPECT_EQ(first->size, 6U);
  EXPECT_EQ(first->added->token, 2);
  EXPECT_EQ(tokens.find("zz<a><b>x", 3)->added->token, 3);
  EXPECT_FALSE(tokens.find("zz<a", 0));
  EXPECT_EQ(AddedTokens({{"a", 1}, {"a", 2}}).find("a", 0)->added->token, 1);
  EXPECT_EQ(tokens.special("<a>"), 1);
  EXPECT_EQ(tokens.special("b>x"), std::nullopt);
}

TEST(AddedTokens, EqualsASearchOfEveryToken) {
  std::mt19937 random(3);
  const auto text_of = [&](std::size_t longest) {
    std::string text;
    const std::size_t size = 1 + random() % longest;
    for (std::size_t i = 0; i < size; ++i) text += static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 500; ++round) {
    std::vector<AddedToken> all;
    for (std::int32_t i = 0; i < 5; ++i) all.push_back({text_of(4), i, false});
    const AddedTokens tokens(all);
    const std::string text = text_of(30);
    std::size_t begin = text.size();
    std::size_t size = 0;
    for (const AddedToken& added : all) {
      const std::size_t at = text.find(added.text);
      if (at < begin) {
        begin = at;
        size = added.text.size();
      } else if (at == begin) {
        size = std::max(size, added.text.size());
      }
    }
    const auto found = tokens.find(text, 0);
    ASSERT_EQ(found.has_value(), size > 0) << text;
    if (found) {
      EXPECT_EQ(found->begin, begin) << text;
      EXPECT_EQ(found->size, size) << text;
    }
  }
}

}  // namespace
}  // namespace contextile
