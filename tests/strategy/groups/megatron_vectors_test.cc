// Schedules and layouts against the outputs of Megatron-LM and TransformerEngine themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "contextile/mask.h"
#include "strategy/groups/megatron_balanced.h"
#include "strategy/groups/megatron_packing.h"
#include "strategy/original_outputs.h"
#include "strategy/schedule/rank_layout.h"

namespace contextile {
namespace {

using Json = nlohmann::json;

std::vector<std::int64_t> lengths_of_case(const Json& c) {
  return c["lengths"].get<std::vector<std::int64_t>>();
}

void expect_same_rounds(const std::vector<ScheduledRound>& found, const Json& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t r = 0; r < found.size(); ++r) {
    SCOPED_TRACE("round " + std::to_string(r));
    EXPECT_EQ(found[r].samples, expected[r]["rank_sample_ids"].get<RankSamples>());
    const auto loads = expected[r]["exec_times"].get<std::vector<double>>();
    ASSERT_EQ(found[r].loads.size(), loads.size());
    for (std::size_t i = 0; i < loads.size(); ++i) {
      EXPECT_NEAR(found[r].loads[i], loads[i], 1e-9 * loads[i]) << "rank " << i;
    }
    std::vector<std::int32_t> leftover;
    for (const Json& item : expected[r]["leftovers"]) leftover.push_back(item[0]);
    EXPECT_EQ(found[r].leftover, leftover);
  }
}

TEST_F(OriginalOutputs, BalancedCpSchedulerMakesMegatronsRounds) {
  if (!load("megatron_balanced_cp.json")) GTEST_SKIP() << "megatron_balanced_cp.json is missing";
  for (const Json& c : vectors_["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const auto rounds = schedule_balanced_cp(
        lengths_of_case(c), {c["ranks"], c["max_seqlen_per_rank"], UpstreamFaults::kReproduced});
    expect_same_rounds(rounds, c["rounds"]);
  }
}

TEST_F(OriginalOutputs, RepairsChangeNothingButTheCountedWorkOnPowersOfTwo) {
  if (!load("megatron_balanced_cp.json")) GTEST_SKIP() << "megatron_balanced_cp.json is missing";
  for (const Json& c : vectors_["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const auto rounds = schedule_balanced_cp(
        lengths_of_case(c), {c["ranks"], c["max_seqlen_per_rank"], UpstreamFaults::kRepaired});
    ASSERT_EQ(rounds.size(), c["rounds"].size());
    for (std::size_t r = 0; r < rounds.size(); ++r) {
      EXPECT_EQ(rounds[r].samples, c["rounds"][r]["rank_sample_ids"].get<RankSamples>());
    }
  }
}

TEST_F(OriginalOutputs, DynamicCpMakesMegatronsRounds) {
  if (!load("megatron_dev_dynamic_cp.json"))
    GTEST_SKIP() << "megatron_dev_dynamic_cp.json is missing";
  for (const Json& c : vectors_["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const auto rounds = schedule_dynamic_cp(lengths_of_case(c),
                                            {c["ranks"], c["max_seqlen_per_rank"], c["min_cp"]});
    expect_same_rounds(rounds, c["rounds"]);
  }
}

TEST_F(OriginalOutputs, AlignedRoundsAreMegatrons) {
  if (!load("megatron_dev_dynamic_cp.json"))
    GTEST_SKIP() << "megatron_dev_dynamic_cp.json is missing";
  int compared = 0;
  for (const Json& c : vectors_["cases"]) {
    if (!c.contains("vpp_multiple") || c["vpp_multiple"].is_null()) continue;
    SCOPED_TRACE(c["name"].get<std::string>());
    std::vector<RankSamples> rounds;
    for (const Json& round : c["rounds"]) {
      rounds.push_back(round["rank_sample_ids"].get<RankSamples>());
    }
    EXPECT_EQ(align_rounds(rounds, c["vpp_multiple"]),
              c["aligned"].get<std::vector<RankSamples>>());
    ++compared;
  }
  report_compared(compared);
}

TEST_F(OriginalOutputs, DpBalancedMakesMegatronsMicroBatches) {
  if (!load("megatron_dp_balanced.json")) GTEST_SKIP() << "megatron_dp_balanced.json is missing";
  for (const Json& c : vectors_["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const auto or_else = [&](const char* key, std::int32_t value) {
      return c[key].is_null() ? value : c[key].get<std::int32_t>();
    };
    const auto rounds =
        schedule_dp_balanced(lengths_of_case(c), {c["cp"], c["dp"], c["max_seqlen_per_rank"],
                                                  or_else("microbatch_group_size_per_vp_stage", 1),
                                                  or_else("max_num_seqs", 0)});
    EXPECT_EQ(rounds, c["groups"].get<std::vector<RankSamples>>());
  }
}

// Returns the token indices of ascending ranges.
std::vector<std::int64_t> tokens_of(const std::vector<Range>& ranges) {
  std::vector<std::int64_t> tokens;
  for (const Range& range : ranges) {
    for (std::int64_t t = range.begin; t < range.end; ++t) tokens.push_back(t);
  }
  return tokens;
}

std::vector<Range> sequences_of(const std::vector<std::int64_t>& boundaries) {
  std::vector<Range> sequences;
  for (std::size_t i = 0; i + 1 < boundaries.size(); ++i) {
    if (boundaries[i] < boundaries[i + 1]) sequences.push_back({boundaries[i], boundaries[i + 1]});
  }
  return sequences;
}

TEST_F(OriginalOutputs, ZigzagGivesEveryRankTransformerEnginesTokens) {
  if (!load("te_thd_partition.json")) GTEST_SKIP() << "te_thd_partition.json is missing";
  for (const Json& c : vectors_["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    const auto sequences = sequences_of(c["cu_seqlens"].get<std::vector<std::int64_t>>());
    const auto ranges = rank_ranges(TokenLayout::kZigzag, sequences, c["cp"]);
    for (std::size_t r = 0; r < ranges.size(); ++r) {
      EXPECT_EQ(tokens_of(ranges[r]), c["indices"][r].get<std::vector<std::int64_t>>())
          << "rank " << r;
    }
  }
}

TEST_F(OriginalOutputs, ZigzagRanksOneAfterAnotherHoldChunksInTheAllToAllsOrder) {
  // After the all-to-all, a rank has the chunks of rank 0, 1, … one after another. The chunk number
  // of every place is TransformerEngine's order before it scatters attention's results. The inverse
  // is the order in which gathered chunks are read.
  if (!load("te_cp_helpers.json")) GTEST_SKIP() << "te_cp_helpers.json is missing";
  for (const Json& c : vectors_["chunk_ids"]) {
    const std::int32_t ranks = c["cp"];
    SCOPED_TRACE(ranks);
    const Range sequence{0, 2 * ranks};  // one token per chunk
    std::vector<std::int64_t> gathered;
    for (const auto& ranges : rank_ranges(TokenLayout::kZigzag, {&sequence, 1}, ranks)) {
      for (const std::int64_t chunk : tokens_of(ranges)) gathered.push_back(chunk);
    }
    EXPECT_EQ(gathered, c["after"].get<std::vector<std::int64_t>>());
    std::vector<std::int64_t> place(gathered.size());
    for (std::size_t i = 0; i < gathered.size(); ++i) {
      place[static_cast<std::size_t>(gathered[i])] = static_cast<std::int64_t>(i);
    }
    EXPECT_EQ(place, c["before"].get<std::vector<std::int64_t>>());
  }
}

TEST_F(OriginalOutputs, ClippedChunksHoldTransformerEnginesRealTokens) {
  // Sequences are padded to `padded` tokens, of which the first `real` are real; compared are the
  // real tokens of a rank's two chunks. Contextile pads each sequence only as far as its chunks
  // need, so only cases with exactly that padding are compared.
  if (!load("te_cp_helpers.json")) GTEST_SKIP() << "te_cp_helpers.json is missing";
  int compared = 0;
  for (const Json& c : vectors_["cu_seqlens_on_cp_rank"]) {
    const std::int64_t ranks = c["cp"];
    const auto real = c["cu_seqlens"].get<std::vector<std::int64_t>>();
    const auto padded = c["cu_seqlens_padded"].get<std::vector<std::int64_t>>();
    const auto both = c["both"].get<std::vector<std::int64_t>>();
    for (std::size_t s = 0; s + 1 < real.size(); ++s) {
      const Range sequence{0, real[s + 1] - real[s]};
      const std::int64_t chunk = (sequence.size() + 2 * ranks - 1) / (2 * ranks);
      if (padded[s + 1] - padded[s] != 2 * ranks * chunk) continue;
      const auto ranges =
          rank_ranges(TokenLayout::kZigzag, {&sequence, 1}, static_cast<std::int32_t>(ranks));
      EXPECT_EQ(static_cast<std::int64_t>(tokens_of(ranges[c["rank"]]).size()),
                both[s + 1] - both[s])
          << "ranks " << ranks << " rank " << c["rank"] << " sequence " << s;
      ++compared;
    }
  }
  report_compared(compared);
}

// Compares the keys that a query chunk attends in the tiles of a plan with the keys that
// TransformerEngine's all-gather slices out of the gathered keys.
TEST_F(OriginalOutputs, QueryChunksAttendTheKeysTransformerEngineSlices) {
  if (!load("te_cp_helpers.json")) GTEST_SKIP() << "te_cp_helpers.json is missing";
  int compared = 0;
  for (const Json& c : vectors_["ag_kv_range"]) {
    const std::int64_t ranks = c["cp"];
    const std::int64_t chunk_tokens = c["chunk_len"];
    const std::int64_t chunk = c["chunk"];
    const std::int64_t window = c["window"][0];
    const std::int64_t length = 2 * ranks * chunk_tokens;
    MaskSpec spec;
    spec.rule = !c["causal"].get<bool>() ? MaskSpec::Rule::kFull
                : window < 0             ? MaskSpec::Rule::kCausal
                                         : MaskSpec::Rule::kSlidingWindow;
    if (window >= 0) spec.window = window + 1;  // their window does not count the token itself
    if (spec.rule == MaskSpec::Rule::kFull && window >= 0) continue;
    const Range sequence{0, length};
    const Mask mask = build_mask(spec, {&sequence, 1});
    Range keys{length, 0};
    for (const Band& band : mask.bands) {
      const Band piece = clip(band, {chunk * chunk_tokens, (chunk + 1) * chunk_tokens}, sequence);
      if (num_pairs(piece) == 0) continue;
      keys = {std::min(keys.begin, piece.k.begin), std::max(keys.end, piece.k.end)};
    }
    const auto expected = c["result"][0].get<std::vector<std::int64_t>>();
    EXPECT_EQ(keys.begin, expected[0]) << c;
    EXPECT_EQ(keys.end, expected[1]) << c;
    ++compared;
  }
  report_compared(compared);
}

}  // namespace
}  // namespace contextile
