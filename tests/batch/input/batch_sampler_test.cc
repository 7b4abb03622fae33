#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "base/rng.h"
#include "contextile/data.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using Lengths = std::vector<std::int64_t>;

std::int64_t sum(const Lengths& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

Lengths random_documents(std::int64_t count, std::int64_t longest, std::uint64_t seed) {
  Rng rng(seed);
  Lengths lengths(static_cast<std::size_t>(count));
  for (std::int64_t& length : lengths) {
    length = 1 + static_cast<std::int64_t>(rng.next() % static_cast<std::uint64_t>(longest));
  }
  return lengths;
}

TEST(BatchSampler, GivesTheSameBatchInWhateverOrderItIsAsked) {
  for (const LongDocuments what : {LongDocuments::kSplit, LongDocuments::kDrop}) {
    const BatchSamplerOptions options = {.tokens = 100, .long_documents = what, .seed = 5};
    const BatchSampler sampler(random_documents(40, 60, 1), options);
    const BatchSampler other(random_documents(40, 60, 1), options);
    std::vector<Lengths> forwards;
    for (std::int64_t step = 0; step < 60; ++step) forwards.push_back(sampler.batch(step));
    for (std::int64_t step = 59; step >= 0; --step) {
      EXPECT_EQ(other.batch(step), forwards[static_cast<std::size_t>(step)]) << step;
    }
  }
}

TEST(BatchSampler, SplitBatchesAreFullAndLoseNoToken) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Lengths documents = random_documents(1 + static_cast<std::int64_t>(seed), 300, seed);
    const BatchSampler sampler(documents, {.tokens = 128, .max_document_tokens = 50, .seed = seed});
    EXPECT_EQ(sampler.epoch_tokens(), sum(documents));
    for (std::int64_t step = 0; step < 30; ++step) {
      const Lengths batch = sampler.batch(step);
      EXPECT_EQ(sum(batch), 128);
      EXPECT_LE(*std::max_element(batch.begin(), batch.end()), 50);
      EXPECT_GT(*std::min_element(batch.begin(), batch.end()), 0);
    }
  }
}

TEST(BatchSampler, SplitPiecesOfOneDocumentFollowOneAnother) {
  const BatchSampler sampler({250}, {.tokens = 100, .max_document_tokens = 60});
  // Pieces 60, 60, 60, 60, 10 of every epoch, cut after every 100 tokens.
  EXPECT_EQ(sampler.batch(0), (Lengths{60, 40}));
  EXPECT_EQ(sampler.batch(1), (Lengths{20, 60, 20}));
  EXPECT_EQ(sampler.batch(2), (Lengths{40, 10, 50}));
  EXPECT_EQ(sampler.batch(3), (Lengths{10, 60, 30}));
}

TEST(BatchSampler, DroppingKeepsDocumentsWholeAndUsesEachOnceAnEpoch) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const Lengths documents = random_documents(50, 120, seed);
    const BatchSampler sampler(documents, {.tokens = 200,
                                           .max_document_tokens = 100,
                                           .long_documents = LongDocuments::kDrop,
                                           .seed = seed});
    std::map<std::int64_t, std::int64_t> left;
    std::int64_t short_enough = 0;
    for (const std::int64_t length : documents) {
      if (length > 100) continue;
      ++left[length];
      ++short_enough;
    }
    EXPECT_EQ(sampler.num_documents(), short_enough);
    EXPECT_EQ(sampler.num_dropped(), 50 - short_enough);
    std::int64_t used = 0;
    for (std::int64_t step = 0; used < short_enough; ++step) {
      const Lengths batch = sampler.batch(step);
      ASSERT_FALSE(batch.empty());
      EXPECT_LE(sum(batch), 200);
      for (const std::int64_t length : batch) {
        EXPECT_GE(--left[length], 0) << length;
        ++used;
      }
    }
    EXPECT_EQ(used, short_enough) << "an epoch's last batch ends with it";
  }
}

TEST(BatchSampler, OrdersEveryEpochAndSeedAnew) {
  Lengths documents(100);
  std::iota(documents.begin(), documents.end(), 1);
  const BatchSampler sampler(documents, {.tokens = 5050});
  EXPECT_NE(sampler.batch(0), sampler.batch(1));
  EXPECT_NE(sampler.batch(0), BatchSampler(documents, {.tokens = 5050, .seed = 1}).batch(0));
  Lengths sorted = sampler.batch(7);
  std::sort(sorted.begin(), sorted.end());
  EXPECT_EQ(sorted, documents);
}

TEST(BatchSampler, DrawsFromDatasets) {
  const BatchSampler sampler = BatchSampler::of_dataset("prolong", 2000, {.tokens = 131072});
  EXPECT_EQ(sampler.num_documents(), 2000);
  EXPECT_EQ(sum(sampler.batch(3)), 131072);
  EXPECT_THROW(static_cast<void>(BatchSampler::of_dataset("unknown", 10, {})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(BatchSampler::of_dataset("prolong", 0, {})), InvalidArgument);
}

TEST(BatchSampler, RefusesWhatMakesNoBatches) {
  EXPECT_EQ(message_of([] { return BatchSampler({}, {.tokens = 10}); }),
            "documents: expected at least one, found none");
  EXPECT_EQ(message_of([] {
              return BatchSampler({11, 12}, {.tokens = 10, .long_documents = LongDocuments::kDrop});
            }),
            "documents: expected at least one of at most 10 tokens, found 2, all longer");
  EXPECT_THROW(BatchSampler({1, 0}, {}), InvalidArgument);
  EXPECT_THROW(BatchSampler({1}, {.tokens = 0}), InvalidArgument);
  EXPECT_THROW(BatchSampler({1}, {.max_document_tokens = -1}), InvalidArgument);
  const BatchSampler sampler({1}, {.tokens = 10});
  EXPECT_THROW(static_cast<void>(sampler.batch(-1)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(sampler.batch(std::int64_t{1} << 60)), InvalidArgument);
}

TEST(BatchSampler, GivesManyStepsInOnePass) {
  const Lengths documents = random_documents(70, 90, 3);
  for (const LongDocuments long_documents : {LongDocuments::kSplit, LongDocuments::kDrop}) {
    for (const std::int64_t most : {0, 40, 64}) {
      const BatchSampler sampler(documents, {.tokens = 130,
                                             .max_document_tokens = most,
                                             .long_documents = long_documents,
                                             .seed = 5});
      const auto many = sampler.pieces_of(3, 60);  // more than an epoch
      ASSERT_EQ(many.size(), 60U);
      for (std::int64_t i = 0; i < 60; ++i) {
        EXPECT_EQ(many[static_cast<std::size_t>(i)], sampler.pieces(3 + i)) << i;
      }
    }
  }
  const BatchSampler sampler(documents, {});
  EXPECT_EQ(message_of([&] { return sampler.pieces_of(0, 0); }),
            "batch: expected 1 to " + std::to_string((std::int64_t{1} << 62) / 131072) +
                " steps, found 0");
}

}  // namespace
}  // namespace contextile
