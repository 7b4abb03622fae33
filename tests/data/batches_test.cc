#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "contextile/data.h"

namespace contextile {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

using Lengths = std::vector<std::int64_t>;

std::int64_t sum(const Lengths& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

std::string message_of(const Lengths& lengths, const BatchOptions& options) {
  try {
    static_cast<void>(batches_from_lengths(lengths, options));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Batches, WithoutTokensAreOneBatchOfEverything) {
  EXPECT_THAT(batches_from_lengths(Lengths{7, 12, 3}, {}), ElementsAre(ElementsAre(7, 12, 3)));
  EXPECT_THAT(message_of({7}, {.batches = 2}), HasSubstr("expected 1 when no tokens"));
}

TEST(Batches, FillInOrderAndCutTheLastDocument) {
  EXPECT_THAT(batches_from_lengths(Lengths{7, 12, 3, 9, 20}, {.tokens = 10, .batches = 3}),
              ElementsAre(ElementsAre(7, 3), ElementsAre(3, 7), ElementsAre(10)));
  EXPECT_THAT(batches_from_lengths(Lengths{4, 6, 5, 5}, {.tokens = 10, .batches = 2}),
              ElementsAre(ElementsAre(4, 6), ElementsAre(5, 5)));
}

TEST(Batches, ScaleThenLimitEveryDocument) {
  EXPECT_THAT(batches_from_lengths(Lengths{1, 7, 12, 100}, {.max_length = 10, .scale = 0.5}),
              ElementsAre(ElementsAre(1, 3, 6, 10)));
  EXPECT_THAT(batches_from_lengths(Lengths{1, 7}, {.max_length = 10, .scale = 4}),
              ElementsAre(ElementsAre(4, 10)));
  EXPECT_THAT(batches_from_lengths(Lengths{5}, {.scale = 1e-300}), ElementsAre(ElementsAre(1)));
  EXPECT_THAT(batches_from_lengths(Lengths{5}, {.scale = 1e300}),
              ElementsAre(ElementsAre(kMaxTokens)));
}

TEST(Batches, SayHowManyTokensAreMissing) {
  EXPECT_THAT(message_of({7, 12, 3}, {.tokens = 10, .batches = 3}),
              AllOf(HasSubstr("expected 30 tokens for 3 batches of 10"),
                    HasSubstr("found 13 in 3 documents")));
  EXPECT_EQ(message_of({7, 12, 10}, {.tokens = 10, .batches = 2}), "no error");
}

TEST(Batches, RefuseBadOptionsAndLengths) {
  EXPECT_THAT(message_of({}, {}), HasSubstr("expected at least one"));
  EXPECT_THAT(message_of({7, 0}, {}), HasSubstr("index 1"));
  EXPECT_THAT(message_of({7, -1}, {.tokens = 7}), HasSubstr("index 1"));
  EXPECT_THAT(message_of({7}, {.tokens = -1}), HasSubstr("tokens"));
  EXPECT_THAT(message_of({7}, {.tokens = kMaxTokens + 1}), HasSubstr("tokens"));
  EXPECT_THAT(message_of({7}, {.tokens = 7, .batches = 0}), HasSubstr("batches"));
  EXPECT_THAT(message_of({7}, {.tokens = 7, .batches = std::int64_t{1} << 40}),
              HasSubstr("batches"));
  EXPECT_THAT(message_of({7}, {.max_length = -1}), HasSubstr("max length"));
  for (const double scale : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(message_of({7}, {.scale = scale}), HasSubstr("scale"));
  }
}

TEST(Batches, OfADatasetAreExactlyFull) {
  for (const Dataset& dataset : datasets()) {
    SCOPED_TRACE(dataset.name);
    const auto batches = batches_from_dataset(
        dataset.name,
        {.tokens = 100'003, .batches = 5, .max_length = 8192, .scale = 1.5, .seed = 3});
    ASSERT_EQ(batches.size(), 5U);
    for (const Lengths& batch : batches) {
      EXPECT_EQ(sum(batch), 100'003);
      for (const std::int64_t length : batch) {
        ASSERT_GE(length, 1);
        ASSERT_LE(length, 8192);
      }
    }
    EXPECT_NE(batches[0], batches[1]);
  }
}

TEST(Batches, OfADatasetDoNotDependOnHowManyAreAskedFor) {
  const BatchOptions one = {.tokens = 65536, .seed = 8};
  BatchOptions three = one;
  three.batches = 3;
  EXPECT_EQ(batches_from_dataset("prolong", one)[0], batches_from_dataset("prolong", three)[0]);
}

TEST(Batches, OfADatasetArePinned) {
  EXPECT_THAT(batches_from_dataset("longalign", {.tokens = 131'072, .seed = 1}),
              ElementsAre(ElementsAre(76326, 45193, 9553)));
}

TEST(Batches, OfADatasetNeedTokensAndAKnownName) {
  EXPECT_THROW(static_cast<void>(batches_from_dataset("prolong", {})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(batches_from_dataset("", {.tokens = 5})), InvalidArgument);
}

TEST(Batches, AreFullWhateverTheLengths) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Lengths lengths(1 + random() % 50);
    for (std::int64_t& length : lengths) length = static_cast<std::int64_t>(1 + random() % 40);
    const BatchOptions options = {.tokens = static_cast<std::int64_t>(1 + random() % 60),
                                  .batches = static_cast<std::int64_t>(1 + random() % 4)};
    // What a batch cannot use of its last document is lost: each batch takes documents until it is
    // full.
    std::size_t used = 0;
    bool enough = true;
    for (std::int64_t b = 0; b < options.batches; ++b) {
      std::int64_t filled = 0;
      while (filled < options.tokens && used < lengths.size()) filled += lengths[used++];
      enough = enough && filled >= options.tokens;
    }
    if (!enough) {
      EXPECT_THAT(message_of(lengths, options), HasSubstr("tokens for"));
      continue;
    }
    const auto batches = batches_from_lengths(lengths, options);
    ASSERT_EQ(batches.size(), static_cast<std::size_t>(options.batches));
    std::size_t next = 0;
    for (const Lengths& batch : batches) {
      EXPECT_EQ(sum(batch), options.tokens);
      for (std::size_t i = 0; i < batch.size(); ++i, ++next) {
        if (i + 1 < batch.size()) {
          EXPECT_EQ(batch[i], lengths[next]);
        } else {
          EXPECT_LE(batch[i], lengths[next]);
        }
      }
    }
    EXPECT_EQ(next, used);
  }
}

}  // namespace
}  // namespace contextile
