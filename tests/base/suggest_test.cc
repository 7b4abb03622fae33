#include "base/suggest.h"

#include <gtest/gtest.h>

#include <vector>

namespace contextile {
namespace {

const std::vector<std::string> kNames = {"ring", "zigzag", "ulysses", "all_gather", "magi"};

TEST(DidYouMean, NamesTheNearest) {
  EXPECT_EQ(did_you_mean("zigzg", kNames), "; did you mean 'zigzag'?");
  EXPECT_EQ(did_you_mean("ulises", kNames), "; did you mean 'ulysses'?");
  EXPECT_EQ(did_you_mean("allgather", kNames), "; did you mean 'all_gather'?");
  EXPECT_EQ(did_you_mean("rinf", kNames), "; did you mean 'ring'?");
  EXPECT_EQ(did_you_mean("rring", kNames), "; did you mean 'ring'?");
}

TEST(DidYouMean, IsSilentWhenNothingIsNear) {
  EXPECT_EQ(did_you_mean("dcp", kNames), "");
  EXPECT_EQ(did_you_mean("", kNames), "");
  EXPECT_EQ(did_you_mean("ring", {}), "");
  EXPECT_EQ(did_you_mean(std::string(1'000'000, 'r'), kNames), "");
}

TEST(DidYouMean, AllowsAThirdOfTheNameInEdits) {
  EXPECT_EQ(did_you_mean("zigzagab", kNames), "; did you mean 'zigzag'?");
  EXPECT_EQ(did_you_mean("zigzagabc", kNames), "");
}

TEST(DidYouMean, TakesTheFirstOfTwoEquallyNear) {
  const std::vector<std::string> names = {"cat", "car"};
  EXPECT_EQ(did_you_mean("cab", names), "; did you mean 'cat'?");
}

}  // namespace
}  // namespace contextile
