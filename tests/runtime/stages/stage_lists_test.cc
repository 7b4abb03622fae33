// The lists of every strategy's plans hold each attended pair once, whatever the form.

#include "contextile/advanced/stage_lists.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "contextile/plan_file.h"
#include "support/message_of.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

constexpr auto kQ = static_cast<std::size_t>(Kind::kQ);
constexpr auto kKv = static_cast<std::size_t>(Kind::kKv);

// True if row i of n sees key j of m, as FlashAttention defines its windows.
bool sees(const StageCall& call, std::int64_t i, std::int64_t j, std::int64_t n, std::int64_t m) {
  std::int64_t left = -1;
  std::int64_t right = -1;
  if (call.entry_class == EntryClass::kCausal) right = 0;
  if (call.entry_class == EntryClass::kWindow) left = call.window;
  if (call.entry_class == EntryClass::kWindow) right = 0;
  if (call.entry_class == EntryClass::kInverse) left = 0;
  const std::int64_t at = i + m - n;
  return (left < 0 || j >= at - left) && (right < 0 || j <= at + right);
}

// Calls take(call, entry, row of queries, row of keys) for every pair; rows index the call's lists.
template <typename Take>
void for_each_pair(const StageCall& call, const Take& take) {
  for (std::size_t e = 0; e + 1 < call.q_offsets.size(); ++e) {
    const std::int64_t n = call.q_offsets[e + 1] - call.q_offsets[e];
    const std::int64_t m = call.k_offsets[e + 1] - call.k_offsets[e];
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t j = 0; j < m; ++j) {
        if (sees(call, i, j, n, m)) {
          take(e, static_cast<std::size_t>(call.q_offsets[e] + i),
               static_cast<std::size_t>(call.k_offsets[e] + j));
        }
      }
    }
  }
}

using Pairs = std::map<std::tuple<std::int32_t, std::int64_t, std::int64_t>, int>;

Pairs pairs_of_mask(const PlanRound& round, std::size_t mask) {
  Pairs pairs;
  for (const Band& band : round.masks[mask].mask.bands) {
    for (std::int64_t q = band.q.begin; q < band.q.end; ++q) {
      for (std::int64_t k = band.k.begin; k < band.k.end; ++k) {
        if (k - q < band.lo || k - q > band.hi) continue;
        for (std::int32_t g = 0; g < round.head_groups; ++g) ++pairs[{g, q, k}];
      }
    }
  }
  return pairs;
}

void add_pairs(const StageAttention& stage, Pairs& pairs) {
  std::int64_t counted = 0;
  for (const StageCall& call : stage.calls) {
    ASSERT_EQ(call.q_tokens.size(), call.rows[kQ].size());
    ASSERT_EQ(call.k_tokens.size(), call.rows[kKv].size());
    EXPECT_EQ(std::set(call.rows[kQ].begin(), call.rows[kQ].end()).size(), call.rows[kQ].size());
    std::int64_t of_call = 0;
    for_each_pair(call, [&](std::size_t entry, std::size_t q, std::size_t k) {
      ++pairs[{call.groups[entry], call.q_tokens[q], call.k_tokens[k]}];
      ++of_call;
    });
    EXPECT_EQ(of_call, call.pairs);
    counted += of_call;
  }
  EXPECT_EQ(counted, stage.pairs);
}

// The rows of intervals have the tokens, positions and head groups that they have in calls.
void expect_same_places(const StageAttention& stage) {
  using Place = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // group, token, position
  std::map<std::int64_t, Place> queries;
  std::map<std::int64_t, Place> keys;
  for (const StageCall& call : stage.calls) {
    for_each_pair(call, [&](std::size_t entry, std::size_t q, std::size_t k) {
      queries[call.rows[kQ][q]] = {call.groups[entry], call.q_tokens[q], call.q_positions[q]};
      keys[call.rows[kKv][k]] = {0, call.k_tokens[k], call.k_positions[k]};
    });
  }
  const StageIntervals& all = stage.intervals;
  ASSERT_EQ(all.q_groups.size(), all.rows[kQ].size());
  ASSERT_EQ(all.k_tokens.size(), all.rows[kKv].size());
  for (std::size_t q = 0; q < all.q_groups.size(); ++q) {
    const Place found(all.q_groups[q], all.q_tokens[q], all.q_positions[q]);
    EXPECT_EQ(queries.at(all.rows[kQ][q]), found);
  }
  for (std::size_t k = 0; k < all.k_tokens.size(); ++k) {
    EXPECT_EQ(keys.at(all.rows[kKv][k]), Place(0, all.k_tokens[k], all.k_positions[k]));
  }
}

// The pairs of rows of buffers are those of the calls, and blocks hold what they say.
void expect_same_pairs(const StageAttention& stage) {
  std::map<std::pair<std::int64_t, std::int64_t>, int> of_calls;
  for (const StageCall& call : stage.calls) {
    for_each_pair(call, [&](std::size_t, std::size_t q, std::size_t k) {
      ++of_calls[{call.rows[kQ][q], call.rows[kKv][k]}];
    });
  }
  const StageIntervals& all = stage.intervals;
  std::map<std::pair<std::int64_t, std::int64_t>, int> of_intervals;
  constexpr std::int64_t kBlock = StageIntervals::kBlock;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> in_block;
  for (std::size_t i = 0; i < all.low.size(); ++i) {
    const std::size_t row = i / static_cast<std::size_t>(all.width);
    for (std::int64_t k = all.low[i]; k < all.high[i]; ++k) {
      ++of_intervals[{all.rows[kQ][row], all.rows[kKv][static_cast<std::size_t>(k)]}];
      ++in_block[{static_cast<std::int64_t>(row) / kBlock, k / kBlock}];
    }
  }
  EXPECT_EQ(of_calls, of_intervals);
  EXPECT_EQ(std::ssize(all.rows[kKv]), stage.num_keys);

  const auto rows = std::ssize(all.rows[kQ]);
  std::set<std::pair<std::int64_t, std::int64_t>> partial;
  std::set<std::pair<std::int64_t, std::int64_t>> full;
  for (const auto& [block, pairs] : in_block) {
    const std::int64_t height = std::min(kBlock, rows - block.first * kBlock);
    (pairs == height * kBlock ? full : partial).insert(block);
  }
  const auto listed = [](const StageIntervals::Blocks& blocks, bool by_key) {
    std::set<std::pair<std::int64_t, std::int64_t>> found;
    for (std::size_t b = 0; b < blocks.counts.size(); ++b) {
      for (std::int32_t i = 0; i < blocks.counts[b]; ++i) {
        const std::int64_t other =
            blocks.lists[b * static_cast<std::size_t>(blocks.width) + static_cast<std::size_t>(i)];
        const auto own = static_cast<std::int64_t>(b);
        EXPECT_TRUE(found.insert(by_key ? std::pair(other, own) : std::pair(own, other)).second);
      }
    }
    return found;
  };
  EXPECT_EQ(listed(all.kv_full, false), listed(all.q_full, true));
  EXPECT_EQ(listed(all.kv_partial, false), listed(all.q_partial, true));
  // A block that two intervals cover together may count as partial.
  for (const auto& block : listed(all.kv_full, false)) EXPECT_TRUE(full.contains(block));
  std::set<std::pair<std::int64_t, std::int64_t>> both = listed(all.kv_full, false);
  both.merge(listed(all.kv_partial, false));
  full.merge(partial);
  EXPECT_EQ(both, full);
}

// Rows of results are overwritten or begun again only as lists say so.
void expect_first_calls(const StageProgram& program, Direction direction) {
  const Kind result = direction == Direction::kForward ? Kind::kO : Kind::kDq;
  const auto k = static_cast<std::size_t>(result);
  std::set<std::int64_t> written;
  for (const StageInstruction& instruction : program.instructions) {
    if (const auto* stage = std::get_if<StageAttention>(&instruction)) {
      for (const std::int64_t row : stage->resets[k]) written.erase(row);
      const std::set before = written;
      bool all_new = true;
      for (const StageCall& call : stage->calls) {
        bool any = false;
        for (const std::int64_t row : call.rows[k]) any = any || written.contains(row);
        EXPECT_EQ(call.is_first, !any);
        written.insert(call.rows[k].begin(), call.rows[k].end());
        for (const std::int64_t row : call.rows[k]) all_new = all_new && !before.contains(row);
      }
      EXPECT_EQ(stage->is_first, all_new);
    } else if (const auto* launch = std::get_if<StageLaunch>(&instruction)) {
      for (const StageMessage& message : launch->recvs) {
        if (message.kind == result) written.insert(message.rows.begin(), message.rows.end());
      }
    } else if (const auto* reduce = std::get_if<StageReduce>(&instruction)) {
      if (reduce->kind == result) written.insert(reduce->dst.begin(), reduce->dst.end());
    } else if (const auto* copy = std::get_if<StageCopy>(&instruction)) {
      if (copy->kind == result) written.insert(copy->dst.begin(), copy->dst.end());
    }
  }
}

void expect_right_lists(const Plan& plan, const StageOptions& options) {
  const bool even = !has_block_head_groups(plan);
  const Plan& cut = even ? plan : with_even_head_groups(plan);
  for (std::size_t mask = 0; mask < plan.rounds[0].masks.size(); ++mask) {
    for (const Direction direction : kDirections) {
      if (!plan.rounds[0].has_direction(mask, direction)) continue;
      std::vector<Pairs> found(plan.rounds.size());
      for (std::int32_t rank = 0; rank < plan.num_devices(); ++rank) {
        const std::vector<StageProgram> rounds =
            stage_lists(plan, Rank{rank}, mask, direction, options);
        ASSERT_EQ(rounds.size(), plan.rounds.size());
        for (std::size_t r = 0; r < rounds.size(); ++r) {
          for (const StageInstruction& instruction : rounds[r].instructions) {
            const auto* stage = std::get_if<StageAttention>(&instruction);
            if (stage == nullptr) continue;
            add_pairs(*stage, found[r]);
            expect_same_pairs(*stage);
            expect_same_places(*stage);
          }
          expect_first_calls(rounds[r], direction);
        }
      }
      for (std::size_t r = 0; r < found.size(); ++r) {
        EXPECT_EQ(found[r], pairs_of_mask(cut.rounds[r], mask));
      }
    }
  }
}

TEST(StageLists, HoldEveryPairOnceUnderEveryStrategyAndMask) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance);
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + named.name + ": " + batch.text);
      expect_right_lists(named.plan, {.intervals = true, .tokens = true});
      if (HasFailure()) return;
    }
  }
}

TEST(StageLists, HoldTheSamePairsInSmallerCalls) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance);
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + named.name + ": " + batch.text);
      expect_right_lists(named.plan, {.intervals = true, .tokens = true, .max_rows = 10});
      if (HasFailure()) return;
    }
  }
}

TEST(StageLists, ListBlocksOfLargerPlans) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Chance chance(seed);
    const RandomBatch batch =
        random_batch_of(chance, {.max_tokens = 700, .max_sequences = 3, .ranks = {2, 3}});
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + named.name + ": " + batch.text);
      for (const StageProgram& round :
           stage_lists(named.plan, Rank{1}, 0, Direction::kForward, {.intervals = true})) {
        for (const StageInstruction& instruction : round.instructions) {
          if (const auto* stage = std::get_if<StageAttention>(&instruction)) {
            expect_same_pairs(*stage);
          }
        }
      }
      if (HasFailure()) return;
    }
  }
}

TEST(StageLists, AreTheSameFromASlice) {
  Chance chance(3);
  const RandomBatch batch = random_batch_of(chance, {.ranks = {3}});
  for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
    const Plan slice = deserialize_slice(serialize_slice(named.plan, Rank{1}), "memory");
    const auto whole = stage_lists(named.plan, Rank{1}, 0, Direction::kForward);
    const auto part = stage_lists(slice, Rank{1}, 0, Direction::kForward);
    ASSERT_EQ(whole.size(), part.size());
    for (std::size_t r = 0; r < whole.size(); ++r) {
      EXPECT_EQ(whole[r].rows, part[r].rows);
      EXPECT_EQ(part[r].begin_cut, 0U);
      EXPECT_EQ(whole[r].launches_end, part[r].launches_end);
    }
  }
}

TEST(StageLists, RefusePlansThatTheExecutorRefuses) {
  Plan plan = example_plan();
  EXPECT_EQ(message_of<InvalidArgument>(
                [&] { static_cast<void>(stage_lists(plan, Rank{2}, 0, Direction::kForward)); }),
            "stages: expected a rank among 0 … 1, found 2");
  EXPECT_EQ(message_of<InvalidArgument>(
                [&] { static_cast<void>(stage_lists(plan, Rank{0}, 1, Direction::kForward)); }),
            "stages: expected a mask below 1, found 1");
  std::size_t num_retained = 0;
  for (std::int32_t rank = 0; rank < 2; ++rank) {
    Plan broken = example_plan();
    for (Retain& one : broken.rounds[0].devices[Rank{rank}.index()].programs[0].forward->retain) {
      one.backward_slot = SlotId{1'000'000};
      ++num_retained;
      EXPECT_NE(message_of<InvalidPlan>([&] {
                  return stage_lists(broken, Rank{rank}, 0, Direction::kForward);
                }).find("found 1000000"),
                std::string::npos);
    }
  }
  EXPECT_GT(num_retained, 0U);
  for (Instruction& one : plan.rounds[0].devices[0].programs[0].forward->instructions) {
    if (auto* attention = std::get_if<AttentionOp>(&one)) ++attention->tiles[0].pairs;
  }
  const std::string found = message_of<InvalidPlan>(
      [&] { static_cast<void>(stage_lists(plan, Rank{0}, 0, Direction::kForward)); });
  EXPECT_NE(found.find("pairs under the mask"), std::string::npos) << found;
}

}  // namespace
}  // namespace contextile
