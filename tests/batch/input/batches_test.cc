#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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

std::int64_t sum_of(const Lengths& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

std::string length_message_of(const Lengths& lengths, const BatchOptions& options) {
  try {
    static_cast<void>(batches_from_lengths(lengths, options));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Batches, WithoutTokensAreOneBatchOfEverything) {
  EXPECT_THAT(batches_from_lengths(Lengths{7, 12, 3}, {}), ElementsAre(ElementsAre(7, 12, 3)));
  EXPECT_THAT(length_message_of({7}, {.batches = 2}), HasSubstr("expected 1 when no tokens"));
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
  EXPECT_THAT(length_message_of({7, 12, 3}, {.tokens = 10, .batches = 3}),
              AllOf(HasSubstr("expected 30 tokens for 3 batches of 10"),
                    HasSubstr("found 13 in 3 documents")));
  EXPECT_THAT(length_message_of({7}, {.tokens = 10}),
              HasSubstr("expected 10 tokens for 1 batch of 10, found 7 in 1 document "));
  EXPECT_EQ(length_message_of({7, 12, 10}, {.tokens = 10, .batches = 2}), "no error");
}

// Steps of two batches of 10 tokens, with micro-batches of at most 14; outliers have 8 tokens or
// more.
BatchOptions in_steps(std::int64_t batches, Packing packing) {
  BatchOptions options = {.tokens = 10, .batches = batches, .packing = packing};
  options.wlb.micro_batches = 2;
  options.wlb.max_tokens = 14;
  options.wlb.outlier_levels_tokens = Lengths{8};
  options.wlb.balance_tokens = 4;
  return options;
}

TEST(Batches, InStepsArePackedAnew) {
  const Lengths lengths = {8, 2, 3, 3, 4, 9, 1, 6, 4};
  // Step 1: 8 waits; 4, 3, 3, 2 → {4, 2}, {3, 3}. Step 2: 8 and 9 leave: {9, 1, 4}, {8, 6}.
  EXPECT_THAT(
      batches_from_lengths(lengths, in_steps(4, Packing::kWlb)),
      ElementsAre(ElementsAre(4, 2), ElementsAre(3, 3), ElementsAre(9, 4, 1), ElementsAre(8, 6)));
  EXPECT_THAT(batches_from_lengths(lengths, in_steps(2, Packing::kWlbNoDefer)),
              ElementsAre(ElementsAre(8), ElementsAre(4, 3, 3, 2)));
}

TEST(Batches, InStepsSkipWhatIsEmptyAndStopWhenThereAreEnough) {
  // Two outliers fill the queue at once; the first of the two batches is enough.
  EXPECT_THAT(batches_from_lengths(Lengths{10, 10}, in_steps(1, Packing::kWlb)),
              ElementsAre(ElementsAre(10)));
  BatchOptions alone = in_steps(2, Packing::kWlb);
  alone.wlb.micro_batches = 1;
  alone.wlb.outlier_levels_tokens = Lengths{};
  EXPECT_THAT(batches_from_lengths(Lengths{10, 7, 3}, alone),
              ElementsAre(ElementsAre(10), ElementsAre(7, 3)));
  BatchOptions three = in_steps(2, Packing::kWlb);
  three.wlb.micro_batches = 3;
  three.wlb.outlier_levels_tokens = Lengths{9, 10};
  // Step 1: the 9 and both 10 wait for others, the 1 is alone. Step 2: two of 5 in each.
  EXPECT_THAT(batches_from_lengths(Lengths{9, 1, 10, 10, 5, 5, 5, 5, 5, 5}, three),
              ElementsAre(ElementsAre(1), ElementsAre(5, 5)));
}

TEST(Batches, InStepsHoldTwiceTheTokensUnlessLimited) {
  BatchOptions options = {.tokens = 10, .batches = 1, .packing = Packing::kWlb};
  options.wlb.micro_batches = 1;
  options.wlb.outlier_levels_tokens = Lengths{};
  EXPECT_THAT(batches_from_lengths(Lengths{10}, options), ElementsAre(ElementsAre(10)));
  options.wlb.max_tokens = 9;
  EXPECT_THAT(length_message_of({10}, options), HasSubstr("documents of 1 to 9 tokens"));
  EXPECT_THAT(length_message_of({10}, {.packing = Packing::kWlb}),
              HasSubstr("to pack in steps, found 0"));
}

TEST(Batches, InStepsSayHowManyTokensAreMissing) {
  EXPECT_THAT(length_message_of({8, 2, 5, 5, 9}, in_steps(4, Packing::kWlb)),
              HasSubstr("expected 40 tokens for 2 steps of 2 batches of 10, found 29 in 5"));
  EXPECT_THAT(length_message_of({8}, in_steps(1, Packing::kWlbNoDefer)),
              HasSubstr("expected 20 tokens for 1 step of 2 batches of 10, found 8 in 1"));
}

TEST(Batches, InStepsHoldExactlyTheDocumentsOfSequentialBatchesWhenNothingWaits) {
  for (const Dataset& dataset : datasets()) {
    SCOPED_TRACE(dataset.name);
    BatchOptions options = {.tokens = 65536, .batches = 8, .seed = 5};
    Lengths sequential;
    for (const Lengths& batch : batches_from_dataset(dataset.name, options)) {
      sequential.insert(sequential.end(), batch.begin(), batch.end());
    }
    options.packing = Packing::kWlbNoDefer;
    options.wlb.micro_batches = 8;
    Lengths packed;
    for (const Lengths& batch : batches_from_dataset(dataset.name, options)) {
      packed.insert(packed.end(), batch.begin(), batch.end());
    }
    std::sort(sequential.begin(), sequential.end());
    std::sort(packed.begin(), packed.end());
    EXPECT_EQ(packed, sequential);
  }
}

TEST(Batches, RefuseBadOptionsAndLengths) {
  EXPECT_THAT(length_message_of({}, {}), HasSubstr("expected at least one"));
  EXPECT_THAT(length_message_of({7, 0}, {}), HasSubstr("index 1"));
  EXPECT_THAT(length_message_of({7, -1}, {.tokens = 7}), HasSubstr("index 1"));
  EXPECT_THAT(length_message_of({7}, {.tokens = -1}), HasSubstr("tokens"));
  EXPECT_THAT(length_message_of({7}, {.tokens = kMaxTokens + 1}), HasSubstr("tokens"));
  EXPECT_THAT(length_message_of({7}, {.tokens = 7, .batches = 0}), HasSubstr("batches"));
  EXPECT_THAT(length_message_of({7}, {.tokens = 7, .batches = std::int64_t{1} << 40}),
              HasSubstr("batches"));
  EXPECT_THAT(length_message_of({7}, {.max_length = -1}), HasSubstr("max length"));
  for (const double scale : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT(length_message_of({7}, {.scale = scale}), HasSubstr("scale"));
  }
}

TEST(Batches, OfADatasetAreExactlyFull) {
  for (const Dataset& dataset : datasets()) {
    SCOPED_TRACE(dataset.name);
    const auto batches = batches_from_dataset(
        dataset.name,
        {.tokens = 100'003, .batches = 5, .max_length = 16384, .scale = 1.5, .seed = 3});
    ASSERT_EQ(batches.size(), 5U);
    for (const Lengths& batch : batches) {
      EXPECT_EQ(sum_of(batch), 100'003);
      for (const std::int64_t length : batch) {
        ASSERT_GE(length, 1);
        ASSERT_LE(length, 16384);
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
              ElementsAre(ElementsAre(26880, 17392, 20006, 12741, 26529, 8763, 7908, 10853)));
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
    // The rest of a document that a batch cannot use is lost: each batch takes documents until it
    // is full.
    std::size_t used = 0;
    bool enough = true;
    for (std::int64_t b = 0; b < options.batches; ++b) {
      std::int64_t filled = 0;
      while (filled < options.tokens && used < lengths.size()) filled += lengths[used++];
      enough = enough && filled >= options.tokens;
    }
    if (!enough) {
      EXPECT_THAT(length_message_of(lengths, options), HasSubstr("tokens for"));
      continue;
    }
    const auto batches = batches_from_lengths(lengths, options);
    ASSERT_EQ(batches.size(), static_cast<std::size_t>(options.batches));
    std::size_t next = 0;
    for (const Lengths& batch : batches) {
      EXPECT_EQ(sum_of(batch), options.tokens);
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

TEST(Batches, LeaveOutLongDocumentsAndCutNone) {
  const BatchOptions options = {
      .tokens = 10, .batches = 3, .max_length = 8, .long_documents = LongDocuments::kDrop};
  EXPECT_THAT(batches_from_lengths(std::vector<std::int64_t>{3, 9, 6, 4, 8, 2, 7, 10, 5}, options),
              ElementsAre(ElementsAre(3, 6), ElementsAre(4), ElementsAre(8, 2)));
  EXPECT_THAT(batches_from_lengths(std::vector<std::int64_t>{3, 9, 6},
                                   {.max_length = 8, .long_documents = LongDocuments::kDrop}),
              ElementsAre(ElementsAre(3, 6)));
  BatchOptions of_dataset = options;
  of_dataset.tokens = 1 << 15;
  of_dataset.batches = 40;
  of_dataset.max_length = 0;
  of_dataset.scale = 2;
  for (const Lengths& batch : batches_from_dataset("longalign", of_dataset)) {
    EXPECT_FALSE(batch.empty());
    EXPECT_LE(sum_of(batch), 1 << 15);
    EXPECT_GE(*std::min_element(batch.begin(), batch.end()), 2 * 7152);
  }
}

TEST(Batches, SayThatAllDocumentsAreTooLong) {
  const BatchOptions options = {.tokens = 4, .long_documents = LongDocuments::kDrop};
  EXPECT_THAT(length_message_of({5, 6}, {.max_length = 4, .long_documents = LongDocuments::kDrop}),
              HasSubstr("expected documents of at most 4 tokens, found 2, all longer"));
  try {
    static_cast<void>(batches_from_dataset("longalign", options));
    FAIL() << "no error";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("at most 4 tokens, found 1048576, all longer"));
  }
}

}  // namespace
}  // namespace contextile
