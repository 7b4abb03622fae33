#include "contextile/verify.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/extend/plan_build.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "support/example_parts.h"
#include "support/plan_interpreter.h"
#include "support/plan_mutations.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

// ---------------------------------------------------------------------------------- clean plans

TEST(Verify, TheExampleIsCleanAndComputesAttention) {
  const Plan plan = example_plan();
  const VerifyReport report = verify(plan);
  EXPECT_TRUE(report.ok()) << violations_text(report);
  EXPECT_THAT(report.warnings, IsEmpty());
  EXPECT_TRUE(report.grouped_launches_ok);
  for (const DataMovement& movement : report.movement) {
    EXPECT_EQ(movement.transfers, 2);
    EXPECT_EQ(movement.redundant_transfers, 0);
    EXPECT_EQ(movement.unused_by_receiver_transfers, 0);
  }
  EXPECT_EQ(ToyBatch(plan, 1).difference(plan), std::nullopt);
}

TEST(Verify, PlansOfEveryStrategyAreCleanAndComputeAttention) {
  std::size_t checked = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Chance chance(seed);
    const RandomBatch batch =
        random_batch_of(chance, {.ranks = {1, 2, 3, 4, 6, 8, 16}, .homes = true});
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(fmt::format("seed {}: {} of {}", seed, named.name, batch.text));
      const VerifyReport report = verify(named.plan);
      ASSERT_TRUE(report.ok()) << violations_text(report);
      ASSERT_EQ(ToyBatch(named.plan, seed).difference(named.plan), std::nullopt);
      ++checked;
    }
  }
  EXPECT_GT(checked, 60 * strategies().size() / 2);
}

TEST(Verify, APlanWithoutBackwardIsClean) {
  Plan plan = example_plan();
  for (DeviceProgram& device : round_of(plan).devices) device.programs.front().backward.reset();
  forward(plan, 0).retain.clear();
  const VerifyReport report = verify(plan);
  EXPECT_TRUE(report.ok()) << violations_text(report);
  EXPECT_EQ(report.movement[1].transfers, 0);
}

TEST(Verify, TellsHowManyInstructionsItHasExaminedAndThrowsWhatItsHookThrows) {
  const std::vector<std::int64_t> lengths = {4096};
  const MaskUse causal = parse_mask_use("causal");
  const Workload workload = make_workload(lengths, AttentionShape{}, {&causal, 1});
  const Cluster cluster = load_cluster("dgx-h200:4x8");
  const Plan plan =
      build_plan(workload, cluster, find_strategy("ring").arrange(workload, cluster, {}));
  std::int64_t last = 0;
  const ProgressHook ascending = [&](std::string_view, std::int64_t done, std::int64_t total) {
    EXPECT_GT(done, last);
    EXPECT_LE(done, total);
    last = done;
  };
  EXPECT_TRUE(verify(plan, {.progress = ascending}).ok());
  EXPECT_GT(last, 0);
  const ProgressHook angry = [](std::string_view, std::int64_t, std::int64_t) {
    throw IoError("nobody listens");
  };
  EXPECT_THROW(static_cast<void>(verify(plan, {.progress = angry})), IoError);
}

// ----------------------------------------------------------------------------------- deadlocks

// Two ranks, one block each; both send their KV to the other, which does not need it. `program(r)`
// is what a rank does besides its own tile.
Plan exchange_plan(const std::function<std::vector<Instruction>(std::int32_t)>& program) {
  Plan plan;
  plan.shape = {.q_heads = 1, .kv_heads = 1, .head_dim = 1, .value_dim = 1};
  plan.devices_per_node = 2;
  plan.sequences = {{0, 2}, {2, 4}};
  PlanRound& round = plan.rounds.emplace_back();
  round.masks = {{"full", 1, {{{{0, 2}, {0, 2}}, {{2, 4}, {2, 4}}}}}};
  for (std::int32_t r = 0; r < 2; ++r) {
    round.blocks.add({2 * r, 2 * r + 2});
    round.owners.emplace_back(r);
    TileOp own;
    own.q_block = own.kv_block = BlockId{r};
    own.group = GroupId{0};
    own.q = own.kv = own.result = SlotId{0};
    own.init_result = true;
    own.pairs = 4;
    Program one;
    one.instructions = program(r);
    one.instructions.emplace_back(AttentionOp{{own}});
    one.staging[static_cast<std::size_t>(Kind::kKv)] = {{0, 2}};
    round.devices.push_back({{BlockId{r}}, {{one, std::nullopt}}});
  }
  return plan;
}
TransferEnd kv_end(std::int32_t block, std::int32_t slot, std::int32_t peer) {
  return {Kind::kKv, BlockId{block}, GroupId{0}, SlotId{slot}, Rank{peer}, Dtype::kBf16};
}

TEST(VerifyDeadlock, AnExchangeInOneLaunchIsFine) {
  const VerifyReport report = verify(exchange_plan([](std::int32_t r) -> std::vector<Instruction> {
    return {LaunchOp{0, {kv_end(r, 0, 1 - r)}, {kv_end(1 - r, 1, 1 - r)}}, WaitOp{0}};
  }));
  EXPECT_TRUE(report.ok()) << violations_text(report);
  EXPECT_THAT(report.warnings, Contains(HasSubstr("2 of 2 transfers carry unread data")));
  EXPECT_EQ(report.movement[0].redundant_transfers, 2);
  EXPECT_EQ(report.movement[0].redundant_bytes, 2 * 2 * 2 * 2);  // units, tokens, K and V, bf16
}

TEST(VerifyDeadlock, BothWaitingBeforeTheySendIsADeadlock) {
  const VerifyReport report = verify(exchange_plan([](std::int32_t r) -> std::vector<Instruction> {
    return {LaunchOp{0, {}, {kv_end(1 - r, 1, 1 - r)}}, WaitOp{0},
            LaunchOp{1, {kv_end(r, 0, 1 - r)}, {}}, WaitOp{1}};
  }));
  EXPECT_THAT(report.violations,
              Contains(HasSubstr(
                  "rank 0 instruction 1 (wait): deadlock, waits for message 0 from 1 to 0")));
  EXPECT_FALSE(report.grouped_launches_ok);
}

TEST(VerifyDeadlock, LaunchesInACircleOnlyWorkWhenTheyDoNotBlock) {
  const Plan plan = exchange_plan([](std::int32_t r) -> std::vector<Instruction> {
    return {LaunchOp{0, {}, {kv_end(1 - r, 1, 1 - r)}}, LaunchOp{1, {kv_end(r, 0, 1 - r)}, {}},
            WaitOp{0}, WaitOp{1}};
  });
  const VerifyReport strict = verify(plan);
  EXPECT_EQ(strict.num_violations, 1);
  EXPECT_THAT(strict.violations,
              Contains(HasSubstr("deadlock of grouped launches, 2 ranks are stuck")));
  EXPECT_FALSE(strict.grouped_launches_ok);
  const VerifyReport relaxed = verify(plan, {.require_grouped_launches = false});
  EXPECT_TRUE(relaxed.ok()) << violations_text(relaxed);
  EXPECT_THAT(relaxed.warnings, Contains(HasSubstr("deadlock of grouped launches")));
  EXPECT_FALSE(relaxed.grouped_launches_ok);
}

TEST(VerifyDeadlock, OtherOrdersOfMessagesBetweenTwoRanksAreToldApart) {
  // Rank 0 sends twice, K and V of one block each time; rank 1 swaps nothing but the launches.
  const VerifyReport report = verify(exchange_plan([](std::int32_t r) -> std::vector<Instruction> {
    if (r == 0) {
      return {LaunchOp{0, {kv_end(0, 0, 1)}, {}}, LaunchOp{1, {}, {kv_end(1, 1, 1)}}, WaitOp{1},
              WaitOp{0}};
    }
    return {LaunchOp{0, {kv_end(1, 0, 0)}, {}}, LaunchOp{1, {}, {kv_end(0, 1, 0)}}, WaitOp{1},
            WaitOp{0}};
  }));
  EXPECT_FALSE(report.grouped_launches_ok);
  EXPECT_EQ(report.num_violations, 1) << violations_text(report);
}

// ----------------------------------------------------------------------------------- redundancy

// Causal over three one-token blocks, every tile with its query; KV of block 0 is relayed 0 -> 1
// -> 2.
Arrangement relay_arrangement(const Workload& workload) {
  Arrangement arrangement;
  arrangement.strategy = "relay";
  ArrangedRound& round = arrangement.rounds.emplace_back();
  for (std::int32_t b = 0; b < 3; ++b) {
    round.blocks.add({b, b + 1});
    round.owners.emplace_back(b);
  }
  round.masks = {workload.masks.front().mask};
  ArrangedDirection forward;
  for (const Tile& tile : TileIndex(round.masks[0], round.blocks).tiles()) {
    forward.tiles.push_back({tile.q_block, tile.kv_block, GroupId{0}, Rank{tile.q_block.value},
                             tile.q_block == tile.kv_block ? 0 : 2, tile.pairs});
  }
  forward.transfers = {{Kind::kKv, BlockId{0}, GroupId{0}, Rank{0}, Rank{1}, 0, 1},
                       {Kind::kKv, BlockId{0}, GroupId{0}, Rank{1}, Rank{2}, 1, 2}};
  round.programs = {{forward, std::nullopt, {}}};
  return arrangement;
}

Workload relay_workload(bool all_rows) {
  Workload workload;
  workload.sequences = {{0, 3}};
  workload.shape = {.q_heads = 1, .kv_heads = 1, .head_dim = 1, .value_dim = 1};
  Mask mask{{{{0, 1}, {0, 1}}, {{1, 2}, {1, 2}}, {{2, 3}, {2, 3}}}};
  if (all_rows) mask.bands.push_back({{2, 3}, {0, 1}});
  workload.masks = {{"some", 1, mask}};
  workload.positions = {{{0, 3}, 0, 0}};
  return workload;
}

TEST(VerifyRedundancy, ARelayedTransferIsNeededWhenItsLastReceiverReadsIt) {
  const Workload workload = relay_workload(true);
  const VerifyReport report =
      verify(build_plan(workload, {.devices_per_node = 3}, relay_arrangement(workload)));
  ASSERT_TRUE(report.ok()) << violations_text(report);
  EXPECT_EQ(report.movement[0].transfers, 2);
  EXPECT_EQ(report.movement[0].redundant_transfers, 0);
  EXPECT_EQ(report.movement[0].unused_by_receiver_transfers, 1);
  EXPECT_EQ(report.movement[0].unused_by_receiver_bytes, 4);  // K and V in bf16
  EXPECT_THAT(report.warnings, IsEmpty());
}

TEST(VerifyRedundancy, ARelayThatEndsUnreadIsRedundantAllTheWay) {
  const Workload workload = relay_workload(false);
  const VerifyReport report =
      verify(build_plan(workload, {.devices_per_node = 3}, relay_arrangement(workload)));
  ASSERT_TRUE(report.ok()) << violations_text(report);
  EXPECT_EQ(report.movement[0].redundant_transfers, 2);
  EXPECT_EQ(report.movement[0].redundant_bytes, 8);
  EXPECT_THAT(report.warnings,
              Contains("round 0 mask 0 (some) forward: 2 of 2 transfers carry unread "
                       "data"));
}

TEST(VerifyRedundancy, ARetainedInputThatBackwardReadsIsAUseOfItsTransfer) {
  Plan plan = example_plan();
  // Rank 0 receives KV of block 1 in addition to its query in forward, and only keeps it.
  op<LaunchOp>(forward(plan, 0), 0).recvs.push_back(kv_end(1, 1, 1));
  op<LaunchOp>(forward(plan, 1), 0).sends.push_back(kv_end(1, 0, 0));
  staging(forward(plan, 0), Kind::kKv) = {{0, 1}};
  staging(backward(plan, 0), Kind::kKv) = {{0, 1}};
  forward(plan, 0).retain.push_back({Kind::kKv, SlotId{1}, SlotId{1}});
  const VerifyReport report = verify(plan);
  ASSERT_TRUE(report.ok()) << violations_text(report);
  EXPECT_EQ(report.movement[0].transfers, 3);
  EXPECT_EQ(report.movement[0].redundant_transfers, 1);
  EXPECT_THAT(report.warnings,
              Contains(HasSubstr("backward: 1 of 2 retained slots are never read")));
  EXPECT_THAT(report.warnings, Contains(HasSubstr("forward: 1 of 3 transfers carry unread data")));
}

// ------------------------------------------------------------------------------------- reports

TEST(Verify, CountsAllViolationsAndShowsTheFirstCausesFirst) {
  Plan plan = example_plan();
  round_of(plan).limits.tokens = 0;
  op<LaunchOp>(forward(plan, 1), 0).sends.clear();
  const VerifyReport all = verify(plan);
  EXPECT_EQ(all.num_violations, std::ssize(all.violations));
  EXPECT_THAT(all.violations.front(), HasSubstr("has no partner"));
  const VerifyReport one = verify(plan, {.max_shown = 1});
  EXPECT_EQ(one.num_violations, all.num_violations);
  EXPECT_THAT(one.violations, testing::ElementsAre(all.violations.front()));
  EXPECT_THAT(verify(plan, {.max_shown = 0}).violations, IsEmpty());
  EXPECT_THAT(verify(plan, {.max_shown = -5}).violations, IsEmpty());
}

TEST(Verify, SurvivesPlansBrokenInManyPlaces) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance, {.max_tokens = 24, .homes = true});
    const std::vector<PlanMutation> mutations = all_mutations();
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      Plan plan = named.plan;
      for (std::int64_t n = chance.between(2, 20); n > 0; --n) {
        try {
          chance.pick(mutations).apply(plan, chance);
        } catch (const std::out_of_range&) {  // nothing left to break there
        }
      }
      EXPECT_NO_THROW((void)verify(plan));
    }
  }
}

TEST(Verify, AcceptsLargeNumbersThatMeanNothingWrong) {
  Plan plan = example_plan();
  plan.shape.head_dim = plan.shape.value_dim = plan.shape.q_heads = 1 << 20;
  Band& band = round_of(plan).masks[0].mask.bands[0];
  band.lo = std::numeric_limits<std::int64_t>::min();
  band.hi = 0;
  round_of(plan).limits.tokens = std::numeric_limits<std::int64_t>::max();
  round_of(plan).limits.memory_bytes = std::numeric_limits<std::int64_t>::max();
  op<LaunchOp>(forward(plan, 0), 4).id = std::numeric_limits<std::int32_t>::min();
  op<WaitOp>(forward(plan, 0), 5).id = std::numeric_limits<std::int32_t>::min();
  staging(forward(plan, 0), Kind::kQ).push_back({50, 50});
  const VerifyReport report = verify(plan);
  EXPECT_TRUE(report.ok()) << violations_text(report);
}

// One device that computes one tile of a batch of `tokens` under `mask`, in blocks of these ranges.
Plan one_tile_of(std::int64_t tokens, Blocking blocks, Mask mask) {
  Plan plan = exchange_plan([](std::int32_t) { return std::vector<Instruction>{}; });
  plan.sequences = {{0, tokens}};
  PlanRound& round = round_of(plan);
  round.masks[0].mask = std::move(mask);
  round.owners.assign(static_cast<std::size_t>(blocks.num_blocks()), Rank{0});
  for (DeviceProgram& device : round.devices) device.local_blocks.clear();
  for (std::int32_t b = 0; b < blocks.num_blocks(); ++b) {
    round.devices[0].local_blocks.emplace_back(b);
  }
  round.blocks = std::move(blocks);
  return plan;
}

// A few megabytes in a file would become tens of gigabytes if every tile of the mask were listed.
TEST(Verify, RefusesPlansWhoseMasksHaveTooManyTilesToCompare) {
  constexpr std::int64_t kTokens = std::int64_t{1} << 18;
  const Mask full{{{{0, kTokens}, {0, kTokens}}}};
  const auto expected =
      HasSubstr("round 0 mask 0 (full): 2 tiles are computed, the mask has far more");
  Blocking tokens;
  for (std::int64_t t = 0; t < kTokens; ++t) tokens.add({t, t + 1});
  EXPECT_THAT(verify(one_tile_of(kTokens, std::move(tokens), full)).violations, Contains(expected));

  std::vector<Range> even;
  std::vector<Range> odd;
  for (std::int64_t t = 0; t < kTokens; t += 2) {
    even.push_back({t, t + 1});
    odd.push_back({t + 1, t + 2});
  }
  Blocking striped;
  striped.add(even);
  striped.add(odd);
  EXPECT_THAT(verify(one_tile_of(kTokens, std::move(striped), full)).violations,
              Contains(expected));
}

TEST(Verify, RefusesPlansWhoseBandsMeetTooManyRanges) {
  constexpr std::int64_t kTokens = std::int64_t{1} << 14;
  Blocking tokens;
  Mask columns;
  for (std::int64_t t = 0; t < kTokens; ++t) {
    tokens.add({t, t + 1});
    columns.bands.push_back({{0, kTokens}, {t, t + 1}});
  }
  EXPECT_THAT(
      verify(one_tile_of(kTokens, std::move(tokens), std::move(columns))).violations,
      Contains(HasSubstr("expected bands that meet at most 67108864 ranges of query blocks")));
}

std::vector<std::function<void(Plan&)>> extreme_changes() {
  constexpr std::int32_t k32 = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t k64 = std::numeric_limits<std::int64_t>::max();
  return {
      [](Plan& p) { p.nodes = p.devices_per_node = k32; },
      [](Plan& p) { p.shape.q_heads = p.shape.kv_heads = k32; },
      [](Plan& p) { p.shape.head_dim = p.shape.value_dim = k32; },
      [](Plan& p) { p.shape.softcap = std::numeric_limits<double>::quiet_NaN(); },
      [](Plan& p) {
        p.sequences = {{0, kMaxTokens}};
      },
      [](Plan& p) {
        p.sequences = {{0, k64}};
      },
      [](Plan& p) {
        p.sequences = {{-k64, k64}};
      },
      [](Plan& p) { p.rounds[0].head_groups = k32; },
      [](Plan& p) { p.rounds[0].head_groups = -k32; },
      [](Plan& p) { p.shape.q_heads = p.shape.kv_heads = p.rounds[0].head_groups = 1 << 15; },
      [](Plan& p) { p.rounds[0].masks[0].mask.bands[0].hi = k64; },
      [](Plan& p) {
        p.rounds[0].masks[0].mask.bands[0].q = {-k64, k64};
      },
      [](Plan& p) {
        p.sequences = {{0, kMaxTokens}};
        p.rounds[0].masks[0].mask.bands = {{{0, kMaxTokens}, {0, kMaxTokens}}};
      },
      [](Plan& p) { p.rounds[0].masks.clear(); },
      [](Plan& p) { p.rounds[0].blocks = {}; },
      [](Plan& p) { p.rounds[0].owners[0] = Rank{-k32}; },
      [](Plan& p) { p.rounds[0].devices[0].local_blocks[0] = BlockId{k32}; },
      [](Plan& p) { p.rounds[0].devices[0].local_blocks.assign(100'000, BlockId{0}); },
      [](Plan& p) { p.rounds[0].devices.clear(); },
      [](Plan& p) {
        p.home = {{{-k64, k64}, Rank{k32}}};
      },
      [](Plan& p) {
        p.positions = {{{-k64, k64}, k64, -k64, k64}};
      },
      [](Plan& p) {
        staging(forward(p, 0), Kind::kQ)[0] = {k64, k64};
      },
      [](Plan& p) {
        forward(p, 0).retain[0] = {static_cast<Kind>(255), SlotId{-k32}, SlotId{k32}};
      },
      [](Plan& p) { forward(p, 0).retain[0].slot = SlotId{-1}; },
      [](Plan& p) { forward(p, 0).instructions.clear(); },
      [](Plan& p) { tile(forward(p, 0), 1).q = SlotId{-k32}; },
      [](Plan& p) { tile(forward(p, 0), 1).pairs = -k64; },
      [](Plan& p) { op<LaunchOp>(forward(p, 0), 0).recvs[0].peer = Rank{-k32}; },
      [](Plan& p) { op<LaunchOp>(forward(p, 0), 0).recvs[0].slot = SlotId{-k32}; },
      [](Plan& p) { op<LaunchOp>(forward(p, 0), 0).recvs[0].wire = static_cast<Dtype>(77); },
      [](Plan& p) { op<WaitOp>(forward(p, 0), 2).id = -k32; },
      [](Plan& p) { p.rounds[0].limits.tokens = p.rounds[0].limits.memory_bytes = -k64; },
  };
}

TEST(Verify, SurvivesExtremeNumbers) {
  const std::vector<std::function<void(Plan&)>> changes = extreme_changes();
  for (std::size_t n = 0; n < changes.size(); ++n) {
    SCOPED_TRACE(fmt::format("change {}", n));
    Plan plan = example_plan();
    changes[n](plan);
    EXPECT_NO_THROW(EXPECT_GT(verify(plan).num_violations, 0));
  }
}

}  // namespace
}  // namespace contextile
