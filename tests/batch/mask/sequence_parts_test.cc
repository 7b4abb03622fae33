#include "batch/mask/sequence_parts.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/batches.h"
#include "support/mask_support.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using Pairs = std::set<std::pair<std::int64_t, std::int64_t>>;

Pairs pairs_of(const Mask& mask, std::int64_t num_tokens) {
  Pairs pairs;
  for (const Band& band : mask.bands) {
    for (std::int64_t q = band.q.begin; q < band.q.end; ++q) {
      for (std::int64_t k = band.k.begin; k < band.k.end && k < num_tokens; ++k) {
        if (band.lo <= k - q && k - q <= band.hi) pairs.emplace(q, k);
      }
    }
  }
  return pairs;
}

// The selected tokens by their index in the whole batch.
std::vector<std::int64_t> tokens_behind(const Workload& whole,
                                        const std::vector<std::int32_t>& sequences) {
  std::vector<std::int64_t> tokens;
  for (const std::int32_t s : sequences) {
    const Range sequence = whole.sequences[static_cast<std::size_t>(s)];
    for (std::int64_t t = sequence.begin; t < sequence.end; ++t) tokens.push_back(t);
  }
  return tokens;
}

TEST(SequenceParts, KeepPairsAndPositionsOfTheChosenSequences) {
  Rng rng(7);
  for (const char* rule : {"causal", "full", "sliding_window:5", "lambda:2,4", "chunked:6",
                           "shared_question:0.3,2", "prefix_lm:4", "tree:[3,4,2,5],[-1,0,1,0]"}) {
    SCOPED_TRACE(rule);
    std::vector<std::int64_t> lengths = random_lengths(rng, 6, 25);
    if (std::string_view(rule).starts_with("tree")) lengths = {14, 14, 14, 14};
    const Workload whole = batch_of(lengths, rule);
    const SequenceParts parts(whole);
    std::vector<std::int32_t> chosen;
    for (auto s = static_cast<std::int32_t>(whole.sequences.size()) - 1; s >= 0; s -= 2) {
      chosen.push_back(s);
    }
    const Workload part = parts.select(chosen);
    check_workload(part);
    const std::vector<std::int64_t> was = tokens_behind(whole, chosen);
    ASSERT_EQ(part.num_tokens(), static_cast<std::int64_t>(was.size()));
    const Pairs before = pairs_of(whole.masks.front().mask, whole.num_tokens());
    const Pairs after = pairs_of(part.masks.front().mask, part.num_tokens());
    for (std::size_t q = 0; q < was.size(); ++q) {
      for (std::size_t k = 0; k < was.size(); ++k) {
        EXPECT_EQ(after.contains({static_cast<std::int64_t>(q), static_cast<std::int64_t>(k)}),
                  before.contains({was[q], was[k]}));
      }
    }
    const auto position_in = [](const Workload& workload, std::int64_t token) {
      for (const auto& [tokens, sequence, first, follows] : workload.positions) {
        if (tokens.contains(token)) return first + token - tokens.begin;
      }
      return std::int64_t{-1};
    };
    for (std::size_t t = 0; t < was.size(); ++t) {
      EXPECT_EQ(position_in(part, static_cast<std::int64_t>(t)), position_in(whole, was[t]));
    }
  }
}

TEST(SequenceParts, KeepRolesMasksAndShape) {
  const MaskUse uses[] = {parse_mask_use("causal@3"), parse_mask_use("near=sliding_window:8@2")};
  Workload whole = make_workload(std::vector<std::int64_t>{20, 30, 40}, grouped_heads(), uses);
  drop_queries(whole, std::vector<Range>{{10, 25}, {60, 70}});
  const Workload part = SequenceParts(whole).select(std::vector<std::int32_t>{2, 0});
  check_workload(part);
  ASSERT_EQ(part.roles.size(), 2U);
  EXPECT_EQ(part.roles[0].tokens, (Range{10, 20}));  // of sequence 2
  EXPECT_EQ(part.roles[1].tokens, (Range{50, 60}));  // of sequence 0, which comes behind
  EXPECT_EQ(part.roles[0].role, Role::kKvOnly);
  ASSERT_EQ(part.masks.size(), 2U);
  EXPECT_EQ(part.masks[1].name, "near");
  EXPECT_EQ(part.masks[1].layers, 2);
  EXPECT_EQ(part.shape, whole.shape);
}

TEST(SequenceParts, RefuseASequenceThatIsNotThere) {
  const Workload whole = batch_of({20, 30});
  const SequenceParts parts(whole);
  const std::string message =
      message_of([&] { static_cast<void>(parts.select(std::vector<std::int32_t>{2})); });
  EXPECT_EQ(message, "sequences: expected indices below 2, found 2");
}

}  // namespace
}  // namespace contextile
