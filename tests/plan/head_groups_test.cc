// Plans whose blocks have head groups of their own: they mean the same as their even form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "contextile/extend/plan_build.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "contextile/simulate.h"
#include "contextile/verify.h"
#include "support/message_of.h"
#include "support/plan_interpreter.h"
#include "support/plan_mutations.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using ::testing::HasSubstr;

// Random arrangements of batches, those with head groups per block.
template <typename Check>
void for_random_plans(std::int64_t wanted, const Check& check) {
  std::int64_t found = 0;
  for (std::uint64_t seed = 1; found < wanted; ++seed) {
    ASSERT_LT(seed, 100 * static_cast<std::uint64_t>(wanted));
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance, BatchLimits{.max_tokens = 40});
    const Arrangement arrangement = random_arrangement(chance, batch);
    const Plan plan = build_plan(batch.workload, batch.cluster, arrangement);
    if (!has_block_head_groups(plan)) continue;
    ++found;
    SCOPED_TRACE(seed);
    SCOPED_TRACE(batch.text);
    check(plan, batch);
  }
}

TEST(BlockHeadGroups, PlansAndTheirEvenFormsAreValid) {
  for_random_plans(150, [](const Plan& plan, const RandomBatch&) {
    const VerifyReport report = verify(plan);
    EXPECT_TRUE(report.ok()) << violations_text(report);
    const Plan even = with_even_head_groups(plan);
    EXPECT_FALSE(has_block_head_groups(even));
    const VerifyReport of_even = verify(even);
    EXPECT_TRUE(of_even.ok()) << violations_text(of_even);
  });
}

TEST(BlockHeadGroups, PlansAndTheirEvenFormsAttendAlike) {
  for_random_plans(40, [](const Plan& plan, const RandomBatch&) {
    const ToyBatch batch(plan, 7);
    EXPECT_EQ(batch.difference(plan), std::nullopt);
    EXPECT_EQ(batch.difference(with_even_head_groups(plan)), std::nullopt);
  });
}

// Bytes, memory and messages are those of the even form; tiles and transfers are fewer.
TEST(BlockHeadGroups, CountAsTheirEvenForms) {
  std::int64_t tiles = 0;
  std::int64_t even_tiles = 0;
  for_random_plans(60, [&](const Plan& plan, const RandomBatch& batch) {
    const PlanStats stats = statistics(plan);
    const Plan even_plan = with_even_head_groups(plan);
    const PlanStats even = statistics(even_plan);
    ASSERT_EQ(stats.backward.has_value(), even.backward.has_value());
    for (const auto& [mine, other] :
         {std::pair(stats.forward, even.forward), std::pair(stats.backward, even.backward)}) {
      if (!mine) continue;
      EXPECT_EQ(mine->bytes_by_kind, other->bytes_by_kind);
      EXPECT_EQ(mine->inter_bytes, other->inter_bytes);
      EXPECT_EQ(mine->messages, other->messages);
      EXPECT_EQ(mine->launches, other->launches);
      EXPECT_EQ(mine->retained_bytes, other->retained_bytes);
      EXPECT_EQ(mine->pairs, other->pairs);
      EXPECT_DOUBLE_EQ(mine->flops, other->flops);
      EXPECT_DOUBLE_EQ(mine->compute_overload, other->compute_overload);
      EXPECT_LE(mine->tiles, other->tiles);
      tiles += mine->tiles;
      even_tiles += other->tiles;
    }
    const Simulation mine = simulate(plan, batch.cluster);
    const Simulation other = simulate(even_plan, batch.cluster);
    EXPECT_NEAR(mine.time_us(), other.time_us(), 1e-9 * other.time_us());
  });
  EXPECT_LT(tiles, even_tiles);
}

TEST(BlockHeadGroups, AreEvenInExportsUnlessAskedFor) {
  for_random_plans(20, [](const Plan& plan, const RandomBatch&) {
    std::ostringstream json;
    export_json(plan, json);
    EXPECT_EQ(import_json(json.str(), "test").digest, with_even_head_groups(plan).digest);
    json.str({});
    export_json(plan, json, std::nullopt, ExportedHeadGroups::kOfBlocks);
    const Plan imported = import_json(json.str(), "test");
    EXPECT_EQ(imported.digest, plan.digest);
    for (std::size_t r = 0; r < plan.rounds.size(); ++r) {
      EXPECT_EQ(imported.rounds[r].block_head_groups, plan.rounds[r].block_head_groups);
    }
  });
}

// If a plan is wrong, its even form is wrong in the same way, or there is none. An even form has
// the staging slots that instructions use.
TEST(BlockHeadGroups, EvenFormsOfBrokenPlansAreNoValidPlans) {
  std::int64_t broken = 0;
  for_random_plans(60, [&](const Plan& plan, const RandomBatch&) {
    Chance chance(plan.digest);
    for (const PlanMutation& mutation : all_mutations()) {
      SCOPED_TRACE(mutation.name);
      Plan mutant = plan;
      try {
        if (!mutation.apply(mutant, chance)) continue;
      } catch (const std::out_of_range&) {
        continue;
      }
      const VerifyReport report = verify(mutant);
      if (report.ok() || !has_block_head_groups(mutant)) continue;
      ++broken;
      try {
        EXPECT_FALSE(verify(with_even_head_groups(mutant)).ok()) << violations_text(report);
      } catch (const InvalidPlan&) {
        continue;
      }
    }
  });
  EXPECT_GT(broken, 1000);
}

// A unit of the wrong block in a slot of few groups would read on into memory of the next block.
TEST(BlockHeadGroups, OwnedSlotsWithoutAUnitHaveNoEvenForm) {
  for_random_plans(20, [](Plan plan, const RandomBatch&) {
    for (std::size_t r = 0; r < plan.rounds.size(); ++r) {
      PlanRound& round = plan.rounds[r];
      for (DeviceProgram& device : round.devices) {
        for (std::size_t i = 0; i < device.local_blocks.size(); ++i) {
          const BlockId block = device.local_blocks[i];
          if (round.groups_of(block) == round.head_groups) continue;
          const SlotId hole{static_cast<std::int32_t>(i + 1) * round.head_groups - 1};
          CopyOp copy{Kind::kO, block, GroupId{0}, hole, hole};
          for (ProgramPair& pair : device.programs) {
            if (pair.forward)
              pair.forward->instructions.insert(pair.forward->instructions.begin(), copy);
          }
          EXPECT_THAT(
              message_of<InvalidPlan>([&] { static_cast<void>(with_even_head_groups(plan)); }),
              HasSubstr("instruction 0: expected an owned slot of a head group of block"));
          return;
        }
      }
    }
  });
}

// Without a limit, few bytes could demand an even form of any size.
TEST(BlockHeadGroups, OfVeryManyHaveNoEvenForm) {
  Plan plan;
  plan.shape = {.q_heads = 512, .kv_heads = 512, .head_dim = 4, .value_dim = 4};
  PlanRound& round = plan.rounds.emplace_back();
  round.head_groups = 512;
  const Range tokens{0, 4};
  round.blocks.add({&tokens, 1});
  round.block_head_groups = {1};
  EXPECT_EQ(
      message_of<InvalidPlan>([&] { static_cast<void>(with_even_head_groups(plan)); }),
      "even head groups: round 0, block 0: expected at most 256 of the round's head groups in "
      "one, found 512");
  round.block_head_groups = {1, 1};
  EXPECT_EQ(message_of<InvalidPlan>([&] { static_cast<void>(with_even_head_groups(plan)); }),
            "even head groups: round 0: expected head groups of 1 blocks, found 2");
}

// The mask has about 2^20 tiles; with room for all of the round's groups each, verify would need
// 12 GB to say that they are missing.
TEST(BlockHeadGroups, VerifyHasNoRoomForGroupsThatBlocksLack) {
  constexpr std::int64_t kTokens = 1447;
  Plan plan;
  plan.nodes = plan.devices_per_node = 1;
  plan.shape = {.q_heads = 2048, .kv_heads = 2048, .head_dim = 4, .value_dim = 4};
  plan.sequences = {{0, kTokens}};
  PlanRound& round = plan.rounds.emplace_back();
  round.head_groups = 2048;
  round.masks = {
      {"causal", 1,
       make_workload(std::vector{kTokens}, plan.shape, std::vector{parse_mask_use("causal")})
           .masks[0]
           .mask}};
  DeviceProgram& device = round.devices.emplace_back();
  for (std::int64_t token = 0; token < kTokens; ++token) {
    const Range one{token, token + 1};
    device.local_blocks.push_back(round.blocks.add({&one, 1}));
  }
  round.owners.assign(kTokens, Rank{0});
  round.block_head_groups.assign(kTokens, 1);
  device.programs.emplace_back().forward.emplace();
  EXPECT_THAT(violations_text(verify(plan)), HasSubstr("of group 0 is never computed"));
}

TEST(BlockHeadGroups, OfATileAreEqual) {
  const AttentionShape shape{.q_heads = 4, .kv_heads = 2, .head_dim = 4, .value_dim = 4};
  const MaskUse causal = parse_mask_use("causal");
  const Workload workload = make_workload(std::vector<std::int64_t>{8}, shape, {&causal, 1});
  Cluster cluster;
  ArrangedRound round;
  for (const Range range : {Range{0, 4}, Range{4, 8}}) round.blocks.add({&range, 1});
  round.owners.assign(2, Rank{0});
  round.head_groups = 2;
  round.masks.push_back(workload.masks[0].mask);
  ArrangedMask& programs = round.programs.emplace_back();
  programs.forward.emplace();
  for (const Tile& tile : TileIndex(round.masks[0], round.blocks).tiles()) {
    programs.forward->tiles.push_back(
        {tile.q_block, tile.kv_block, GroupId{0}, Rank{0}, 0, tile.pairs});
  }
  const auto arrangement = [&] {
    Arrangement all;
    all.rounds = {round};
    return all;
  };
  const auto refusal = [&](std::vector<std::int32_t> groups) {
    round.block_head_groups = std::move(groups);
    return message_of<InvalidArgument>(
        [&] { static_cast<void>(build_plan(workload, cluster, arrangement())); });
  };
  EXPECT_THAT(refusal({1, 2}), HasSubstr("blocks of equally many head groups, found 2 and 1"));
  EXPECT_THAT(refusal({1}), HasSubstr("head groups of all or none of 2 blocks, found 1"));
  EXPECT_THAT(refusal({1, 3}), HasSubstr("divide the 2 of the round, found 3"));
  round.block_head_groups = {1, 1};
  Plan plan = build_plan(workload, cluster, arrangement());
  EXPECT_TRUE(verify(plan).ok());
  plan.rounds[0].block_head_groups = {1, 2};
  EXPECT_THAT(violations_text(verify(plan)), HasSubstr("blocks have 2 and 1 head groups"));
  plan.rounds[0].block_head_groups = {1, 3};
  EXPECT_THAT(violations_text(verify(plan)), HasSubstr("3 head groups do not divide the 2"));
  EXPECT_THAT(message_of<InvalidPlan>([&] { static_cast<void>(with_even_head_groups(plan)); }),
              HasSubstr("block 1: expected a divisor of 2 head groups, found 3"));
  plan.rounds[0].block_head_groups = {1, 1};
  SlotId& slot =
      std::get<AttentionOp>(plan.rounds[0].devices[0].programs[0].forward->instructions[0])
          .tiles[0]
          .q;
  const SlotId right = std::exchange(slot, SlotId{1000});
  EXPECT_THAT(message_of<InvalidPlan>([&] { static_cast<void>(with_even_head_groups(plan)); }),
              HasSubstr("expected a slot of q among 0"));
  slot = right;
  plan.rounds[0].block_head_groups = {2, 2};
  EXPECT_THAT(violations_text(verify(plan)), HasSubstr("of group 1 is never computed"));
}

}  // namespace
}  // namespace contextile
