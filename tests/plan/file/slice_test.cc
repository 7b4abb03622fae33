// Slices of plans: one rank's part, with the whole plan's digest.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/verify.h"
#include "plan/file/plan_file.h"
#include "plan/file/slice_frame.h"
#include "support/changed_bytes.h"
#include "support/message_of.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using Bytes = std::vector<std::uint8_t>;
using ::testing::HasSubstr;

// The example in the form in which it is kept.
Plan example() {
  Plan plan = example_plan();
  plan.digest = compute_digest(plan);
  return plan;
}

std::string slice_error_of(std::span<const std::uint8_t> bytes) {
  return message_of<InvalidPlan>([&] { return deserialize_slice(bytes, "some.slice"); });
}

// A slice whose checksum was repaired after its bytes were changed.
void sign_slice(Bytes& slice) {
  if (slice.size() >= SliceHeader::kBytes) put_checksum(slice, checksum_of(slice));
}

// A slice of these sections, stored uncompressed, with right hashes, digest and checksum.
Bytes slice_of(const std::vector<Bytes>& contents, Rank rank) {
  std::vector<ContentId> ids;
  for (const Bytes& content : contents) ids.push_back(identify(content));
  return write_slice_frame(ids, {ids[0], contents[0]},
                           {ids[rank.index() + 1], contents[rank.index() + 1]}, rank);
}

void load_and_use_slice(const Bytes& bytes) {
  try {
    const Plan plan = deserialize_slice(bytes, "changed");
    static_cast<void>(local_tokens(plan, plan.slice_of));
    EXPECT_FALSE(verify(plan).ok());
  } catch (const InvalidPlan&) {
  }
}

TEST(PlanSlice, HoldsItsRankAndTheDigestOfTheWholePlanOfEveryStrategy) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance, {.homes = true});
    for (const auto& [name, plan] : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(name + ": " + batch.text);
      const std::vector<Bytes> slices = serialize_slices(plan);
      ASSERT_EQ(std::ssize(slices), plan.num_devices());
      for (std::int32_t r = 0; r < plan.num_devices(); ++r) {
        const Bytes& bytes = slices[static_cast<std::size_t>(r)];
        EXPECT_EQ(serialize_slice(plan, Rank{r}), bytes);
        const Plan slice = deserialize_slice(bytes, "memory");
        EXPECT_EQ(slice.slice_of, Rank{r});
        EXPECT_EQ(slice.digest, plan.digest);
        EXPECT_EQ(slice.sequences, plan.sequences);
        EXPECT_EQ(local_tokens(slice, Rank{r}), local_tokens(plan, Rank{r}));
        ASSERT_EQ(slice.rounds.size(), plan.rounds.size());
        for (std::size_t n = 0; n < plan.rounds.size(); ++n) {
          const PlanRound& round = slice.rounds[n];
          EXPECT_EQ(round.owners, plan.rounds[n].owners);
          ASSERT_EQ(round.devices.size(), plan.rounds[n].devices.size());
          for (std::size_t d = 0; d < round.devices.size(); ++d) {
            if (std::cmp_equal(d, r)) {
              EXPECT_EQ(round.devices[d], plan.rounds[n].devices[d]);
            } else {
              EXPECT_TRUE(round.devices[d].local_blocks.empty());
              EXPECT_EQ(round.devices[d].programs, std::vector<ProgramPair>(round.masks.size()));
            }
          }
        }
      }
    }
  }
}

TEST(PlanSlice, IsRefusedByAllThatNeedsTheWholePlan) {
  const Plan slice = deserialize_slice(serialize_slice(example(), Rank{1}), "memory");
  const std::string found = "expected a whole plan, found the slice of rank 1";
  const VerifyReport report = verify(slice);
  ASSERT_EQ(report.num_violations, 1);
  EXPECT_THAT(report.violations[0], HasSubstr(found));
  EXPECT_EQ(message_of<InvalidPlan>([&] { return statistics(slice); }), "statistics: " + found);
  EXPECT_EQ(message_of<InvalidPlan>([&] { return serialize(slice); }), "plan to write: " + found);
  EXPECT_EQ(message_of<InvalidPlan>([&] { return serialize_slice(slice, Rank{1}); }),
            "plan to write: " + found);
  EXPECT_EQ(message_of<InvalidPlan>([&] { return compute_digest(slice); }),
            "plan to write: " + found);
  std::ostringstream out;
  EXPECT_THROW(export_json(slice, out), InvalidPlan);
  EXPECT_EQ(message_of<InvalidPlan>([&] { return local_tokens(slice, Rank{0}); }),
            "local tokens: expected a plan with rank 0, found the slice of rank 1");
  EXPECT_THROW(static_cast<void>(device_memory(slice, 0, 0, Direction::kForward, Rank{0})),
               InvalidPlan);
  EXPECT_EQ(device_memory(slice, 0, 0, Direction::kForward, Rank{1}).total_bytes(),
            device_memory(example(), 0, 0, Direction::kForward, Rank{1}).total_bytes());
}

TEST(PlanSlice, RefusesARankThePlanLacks) {
  EXPECT_EQ(message_of([] { return serialize_slice(example(), Rank{2}); }),
            "plan slice: expected a rank in [0, 2), found 2");
}

TEST(SliceBytes, OfAnotherFormatAreCalledThat) {
  EXPECT_THAT(slice_error_of(serialize(example())),
              HasSubstr("some.slice: not a slice of a plan: expected it to begin with 'CTXSLICE'"));
  EXPECT_THAT(slice_error_of({}), HasSubstr("not a slice"));
  Bytes bytes = serialize_slice(example(), Rank{0});
  bytes[8] = 9;
  EXPECT_EQ(slice_error_of(bytes),
            "some.slice: header: expected version 2, found 9: the slice was written by a newer "
            "contextile");
}

TEST(SliceBytes, CutAtAnyLengthAreRefused) {
  const Bytes bytes = serialize_slice(example(), Rank{1});
  for_every_cut(bytes, [](Bytes cut) {
    EXPECT_NE(slice_error_of(cut), "no error") << cut.size();
    sign_slice(cut);
    EXPECT_NE(slice_error_of(cut), "no error") << cut.size();
  });
}

TEST(SliceBytes, WithAnyBitFlippedAreRefused) {
  for_every_flipped_bit(serialize_slice(example(), Rank{1}),
                        [](const Bytes& changed, std::size_t at) {
                          EXPECT_NE(slice_error_of(changed), "no error") << "byte " << at;
                        });
}

TEST(SliceBytes, WithAnyByteChangedAndSignedAgainAreRefusedOrHarmless) {
  for_every_changed_byte(serialize_slice(example(), Rank{1}), [](Bytes changed) {
    sign_slice(changed);
    load_and_use_slice(changed);
  });
}

TEST(SliceBytes, OfEveryStrategyWithRandomChangesAreRefusedOrHarmless) {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance, {.homes = true});
    for (const auto& [name, plan] : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(name);
      const std::vector<Bytes> contents = encode_contents(plan);
      for (int round = 0; round < 30; ++round) {
        std::vector<Bytes> changed = contents;
        const Rank rank{static_cast<std::int32_t>(chance.between(0, plan.num_devices() - 1))};
        for (std::int64_t n = chance.between(1, 4); n > 0; --n) {
          Bytes& section = chance.one_in(2) ? changed[0] : changed[rank.index() + 1];
          section[chance.below(section.size())] = static_cast<std::uint8_t>(chance.between(0, 255));
        }
        load_and_use_slice(slice_of(changed, rank));
      }
    }
  }
}

TEST(SliceBytes, WithAChangedHashOfAnotherRankSayAnotherDigest) {
  const Plan plan = example();
  Bytes bytes = serialize_slice(plan, Rank{1});
  bytes[SliceHeader::kBytes + SliceHeader::kTableBytes + 8] ^= 1;  // the hash of rank 0's section
  sign_slice(bytes);
  EXPECT_THAT(slice_error_of(bytes), HasSubstr("header: expected digest"));
}

TEST(SliceBytes, WithADeviceTooFewAreRefused) {
  std::vector<Bytes> contents = encode_contents(example());
  contents.pop_back();
  EXPECT_THAT(slice_error_of(slice_of(contents, Rank{0})),
              HasSubstr("expected 2 devices (of the manifest)"));
}

}  // namespace
}  // namespace contextile
