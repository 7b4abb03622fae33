#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "contextile/plan.h"
#include "support/plan_interpreter.h"
#include "support/plan_mutations.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

// ------------------------------------------------------------------------- parts of the example

PlanRound& round_of(Plan& plan) { return plan.rounds.front(); }
Program& forward(Plan& plan, std::size_t rank) {
  return *round_of(plan).devices[rank].programs.front().forward;
}
Program& backward(Plan& plan, std::size_t rank) {
  return *round_of(plan).devices[rank].programs.front().backward;
}
template <typename Op>
Op& op(Program& program, std::size_t index) {
  return std::get<Op>(program.instructions[index]);
}
TileOp& tile(Program& program, std::size_t instruction, std::size_t index = 0) {
  return op<AttentionOp>(program, instruction).tiles[index];
}
std::vector<StagingSlot>& staging(Program& program, Kind kind) {
  return program.staging[static_cast<std::size_t>(kind)];
}
void erase(Program& program, std::ptrdiff_t index) {
  program.instructions.erase(program.instructions.begin() + index);
}

void expect_flagged(const Plan& plan, const std::string& text) {
  const VerifyReport report = verify(plan);
  EXPECT_GT(report.num_violations, 0);
  EXPECT_THAT(report.violations, Contains(HasSubstr(text)));
}

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

// ------------------------------------------------------------------- one corruption, one message

struct Corruption {
  const char* name;
  std::function<void(Plan&)> apply;
  const char* message;
};
void PrintTo(const Corruption& corruption, std::ostream* out) { *out << corruption.name; }

class CorruptedExample : public testing::TestWithParam<Corruption> {};

TEST_P(CorruptedExample, IsFlagged) {
  Plan plan = example_plan();
  GetParam().apply(plan);
  expect_flagged(plan, GetParam().message);
}

std::string name_of(const testing::TestParamInfo<Corruption>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Tiles, CorruptedExample,
    testing::Values(
        Corruption{"Dropped", [](Plan& p) { op<AttentionOp>(forward(p, 1), 1).tiles.pop_back(); },
                   "round 0 mask 0 (causal) forward: tile (2, 2) of group 0 is computed by nobody"},
        Corruption{"Twice",
                   [](Plan& p) {
                     auto& tiles = op<AttentionOp>(forward(p, 1), 1).tiles;
                     tiles.push_back(tiles.front());
                   },
                   "tile (1, 1) of group 0 is computed 2 times"},
        Corruption{"OutsideTheMask", [](Plan& p) { tile(forward(p, 0), 1).kv_block = BlockId{2}; },
                   "rank 0 instruction 1 (attention): tile (0, 2) of group 0 has no pair"},
        Corruption{
            "WrongPairs", [](Plan& p) { tile(backward(p, 0), 3).pairs = 5; },
            "backward rank 0 instruction 3 (attention): tile (1, 0) of group 0 says 5 pairs, "
            "the mask has 4"},
        Corruption{"NoSuchBlock", [](Plan& p) { tile(forward(p, 0), 1).q_block = BlockId{3}; },
                   "there is no unit of block 3 group 0"},
        Corruption{"NoSuchGroup", [](Plan& p) { tile(forward(p, 0), 1).group = GroupId{1}; },
                   "there is no unit of block 0 group 1"},
        Corruption{"NoSuchSlot", [](Plan& p) { tile(forward(p, 0), 1).kv = SlotId{7}; },
                   "there is no slot kv[7]"},
        Corruption{"OtherUnit", [](Plan& p) { tile(forward(p, 1), 1).kv = SlotId{1}; },
                   "reads kv[1] for block 1 group 0, it holds block 2 group 0"},
        Corruption{"AccumulatesIntoNothing",
                   [](Plan& p) { tile(forward(p, 0), 1).init_result = false; },
                   "reads o[0] for block 0 group 0, it holds nothing"},
        Corruption{"LosesAPartial", [](Plan& p) { tile(backward(p, 0), 3).init_dkv = true; },
                   "writes dkv[0], losing a partial of block 0 group 0 in dkv[0]"},
        Corruption{"WritesAnothersPlace",
                   [](Plan& p) { tile(forward(p, 0), 3).result = SlotId{0}; },
                   "writes block 1 group 0 into o[0], the place of block 0 group 0"},
        Corruption{"ReadsTooEarly",
                   [](Plan& p) {
                     auto& instructions = forward(p, 0).instructions;
                     std::swap(instructions[2], instructions[3]);
                   },
                   "rank 0 instruction 2 (attention): reads q[1] before the wait of its receive"}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Transfers, CorruptedExample,
    testing::Values(
        Corruption{"ToItself",
                   [](Plan& p) { op<LaunchOp>(forward(p, 1), 0).sends[0].peer = Rank{1}; },
                   "rank 1 instruction 0 (launch): peer 1 is itself"},
        Corruption{"ToNobody",
                   [](Plan& p) { op<LaunchOp>(forward(p, 1), 0).sends[0].peer = Rank{2}; },
                   "peer 2 is no rank of 2"},
        Corruption{"NeverExpected", [](Plan& p) { op<LaunchOp>(forward(p, 0), 0).recvs.clear(); },
                   "message 0 from 1 to 0 has no partner: it is never expected"},
        Corruption{"NeverSent", [](Plan& p) { op<LaunchOp>(forward(p, 1), 0).sends.clear(); },
                   "message 0 from 1 to 0 has no partner: it is never sent"},
        Corruption{"OtherUnitExpected",
                   [](Plan& p) { op<LaunchOp>(forward(p, 0), 0).recvs[0].block = BlockId{2}; },
                   "unit 0 of 1 is sent as q of block 1 group 0 in bf16, expected as q of block 2"},
        Corruption{
            "OtherWireExpected",
            [](Plan& p) { op<LaunchOp>(forward(p, 1), 3).recvs[0].wire = Dtype::kBf16; },
            "is sent as o of block 1 group 0 in f32, expected as o of block 1 group 0 in bf16"},
        Corruption{"InputInAnotherDtype",
                   [](Plan& p) {
                     op<LaunchOp>(forward(p, 1), 0).sends[0].wire = Dtype::kF32;
                     op<LaunchOp>(forward(p, 0), 0).recvs[0].wire = Dtype::kF32;
                   },
                   "input q travels in f32, not bf16"},
        Corruption{"PartialInAnotherDtype",
                   [](Plan& p) {
                     op<LaunchOp>(forward(p, 0), 4).sends[0].wire = Dtype::kBf16;
                     op<LaunchOp>(forward(p, 1), 3).recvs[0].wire = Dtype::kBf16;
                   },
                   "partial o of block 1 group 0 travels in bf16, not f32"},
        Corruption{"OverAnInput",
                   [](Plan& p) { op<LaunchOp>(forward(p, 0), 0).recvs[0].slot = SlotId{0}; },
                   "overwrites the caller's input q[0]"},
        Corruption{"IntoTooLittle",
                   [](Plan& p) {
                     round_of(p).blocks = [] {
                       Blocking blocks;
                       blocks.add({0, 3});
                       blocks.add({3, 5});
                       blocks.add({5, 8});
                       return blocks;
                     }();
                   },
                   "q[1] has 1 tokens, block 1 group 0 needs 2"},
        Corruption{"NeverWaited", [](Plan& p) { erase(forward(p, 1), 2); },
                   "rank 1: launch 0 is never waited for"},
        Corruption{"WaitedTwice",
                   [](Plan& p) { forward(p, 1).instructions.emplace_back(WaitOp{1}); },
                   "rank 1 instruction 6 (wait): no launch 1 is under way"},
        Corruption{"IdTwice", [](Plan& p) { op<LaunchOp>(forward(p, 1), 3).id = 0; },
                   "rank 1 instruction 3 (launch): launch id 0 is used twice"},
        Corruption{"WriteWhileSent",
                   [](Plan& p) {
                     Program& program = forward(p, 0);
                     std::swap(program.instructions[4], program.instructions[3]);
                     std::swap(program.instructions[5], program.instructions[4]);
                     std::swap(program.instructions[5], program.instructions[4]);
                     program.instructions.insert(program.instructions.begin() + 3,
                                                 program.instructions[4]);
                     tile(program, 5).init_result = true;
                   },
                   "writes o[1] while a transfer reads o[1]"},
        Corruption{
            "UnknownKind",
            [](Plan& p) { op<LaunchOp>(forward(p, 1), 0).sends[0].kind = static_cast<Kind>(17); },
            "unknown kind 17"}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Results, CorruptedExample,
    testing::Values(
        Corruption{"NeverReduced", [](Plan& p) { erase(forward(p, 1), 5); },
                   "partial of block 1 group 0 in o[2] is never used"},
        Corruption{"OwnerWithoutAll",
                   [](Plan& p) { op<ReduceOp>(forward(p, 1), 5).srcs.pop_back(); },
                   "rank 1: o of block 1 group 0 ends at its owner with 1 of 2 tiles"},
        Corruption{"SourceTwice",
                   [](Plan& p) { op<ReduceOp>(forward(p, 1), 5).srcs.emplace_back(2); },
                   "reads o[2] for block 1 group 0, it holds nothing (reduced at instruction 5)"},
        Corruption{"DestinationNotListed",
                   [](Plan& p) { op<ReduceOp>(forward(p, 1), 5).srcs = {SlotId{2}}; },
                   "writes o[0], losing a partial of block 1 group 0 in o[0]"},
        Corruption{"NothingToReduce", [](Plan& p) { op<ReduceOp>(forward(p, 1), 5).srcs = {}; },
                   "reduces 0 slots of kind o"},
        Corruption{"AnInputReduced",
                   [](Plan& p) { op<ReduceOp>(forward(p, 1), 5).kind = Kind::kKv; },
                   "reduces 2 slots of kind kv"},
        Corruption{"CopiedOntoItself",
                   [](Plan& p) {
                     forward(p, 1).instructions.emplace_back(
                         CopyOp{Kind::kO, BlockId{2}, GroupId{0}, SlotId{1}, SlotId{1}});
                   },
                   "copies o[1] onto itself"},
        Corruption{"CopiedToAnotherPlace",
                   [](Plan& p) {
                     forward(p, 1).instructions.emplace_back(
                         CopyOp{Kind::kO, BlockId{2}, GroupId{0}, SlotId{2}, SlotId{1}});
                   },
                   "o[2] has 1 tokens, block 2 group 0 needs 3"}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Staging, CorruptedExample,
    testing::Values(
        Corruption{"Negative",
                   [](Plan& p) { staging(forward(p, 0), Kind::kQ)[0].offset_tokens = -1; },
                   "staging slot 0 of q: offset -1, capacity 1"},
        Corruption{"Absurd",
                   [](Plan& p) {
                     staging(forward(p, 0), Kind::kQ)[0].offset_tokens =
                         std::numeric_limits<std::int64_t>::max();
                   },
                   "staging slot 0 of q: offset 9223372036854775807"},
        Corruption{"OfNoSuchKind",
                   [](Plan& p) {
                     staging(forward(p, 0), Kind::kDq) = {{0, 1}};
                   },
                   "staging of dq, which does not occur"},
        Corruption{"Dropped", [](Plan& p) { staging(forward(p, 0), Kind::kO).clear(); },
                   "there is no slot o[1]"},
        Corruption{"RetainsNothing",
                   [](Plan& p) {
                     staging(forward(p, 0), Kind::kQ).push_back({0, 1});
                     forward(p, 0).retain[0].slot = SlotId{2};
                   },
                   "rank 0 (retain): retains q[2], which holds nothing at the end"},
        Corruption{"RetainsAnOwnedInput", [](Plan& p) { forward(p, 0).retain[0].slot = SlotId{0}; },
                   "retains q[0], which is not a received input"},
        Corruption{"RetainsAResult", [](Plan& p) { forward(p, 0).retain[0].kind = Kind::kO; },
                   "which is not a received input"},
        Corruption{"RetainsIntoAnotherPlace",
                   [](Plan& p) { forward(p, 0).retain[0].backward_slot = SlotId{0}; },
                   "backward rank 0 (retained input): overwrites the caller's input q[0]"},
        Corruption{"RetainsTooLittle", [](Plan& p) { forward(p, 0).retain.clear(); },
                   "backward rank 0 instruction 3 (attention): reads q[1] for block 1 group 0, it "
                   "holds nothing"},
        Corruption{"RetainsWithoutBackward",
                   [](Plan& p) {
                     for (auto& d : round_of(p).devices) d.programs.front().backward.reset();
                   },
                   "rank 0: retains 1 slots without a backward"},
        Corruption{"BackwardRetains", [](Plan& p) { backward(p, 0).retain = forward(p, 0).retain; },
                   "backward rank 0: backward retains 1 slots"}),
    name_of);

INSTANTIATE_TEST_SUITE_P(
    Around, CorruptedExample,
    testing::Values(
        Corruption{"OwnerOutOfRange", [](Plan& p) { round_of(p).owners[0] = Rank{2}; },
                   "round 0: block 0: owner 2 is no rank of 2"},
        Corruption{"OwnerMissing", [](Plan& p) { round_of(p).owners.pop_back(); },
                   "2 owners of 3 blocks"},
        Corruption{"OwnerNotListed", [](Plan& p) { round_of(p).owners[0] = Rank{1}; },
                   "block 0 is not in the local_blocks of its owner"},
        Corruption{"LocalOfAnother", [](Plan& p) { round_of(p).owners[0] = Rank{1}; },
                   "rank 0: local block 0 is owned by 1"},
        Corruption{"LocalTwice",
                   [](Plan& p) { round_of(p).devices[0].local_blocks.emplace_back(0); },
                   "block 0 is listed twice in local_blocks"},
        Corruption{"LocalReordered",
                   [](Plan& p) {
                     auto& local = round_of(p).devices[1].local_blocks;
                     std::swap(local[0], local[1]);
                   },
                   "for block 1 group 0, it holds block 2 group 0"},
        Corruption{"BlocksWithAGap",
                   [](Plan& p) {
                     Blocking blocks;
                     blocks.add({0, 4});
                     blocks.add({4, 5});
                     blocks.add({6, 8});
                     round_of(p).blocks = blocks;
                   },
                   "tokens [5, 6) are in no block"},
        Corruption{"BlocksOverlap",
                   [](Plan& p) {
                     Blocking blocks;
                     blocks.add({0, 4});
                     blocks.add({3, 5});
                     blocks.add({5, 8});
                     round_of(p).blocks = blocks;
                   },
                   "blocks overlap at token 3"},
        Corruption{"BlocksLeaveTheBatch",
                   [](Plan& p) {
                     Blocking blocks;
                     blocks.add({0, 4});
                     blocks.add({4, 5});
                     blocks.add({5, 9});
                     round_of(p).blocks = blocks;
                   },
                   "block 2: range [5, 9) is not inside [0, 8)"},
        Corruption{"NoQueries",
                   [](Plan& p) {
                     Blocking blocks;
                     blocks.add({0, 4}, Role::kKvOnly);
                     blocks.add({4, 5});
                     blocks.add({5, 8});
                     round_of(p).blocks = blocks;
                   },
                   "tile (0, 0): block 0 has no queries"},
        Corruption{"NoKeys",
                   [](Plan& p) {
                     Blocking blocks;
                     blocks.add({0, 4});
                     blocks.add({4, 5});
                     blocks.add({5, 8}, Role::kQOnly);
                     round_of(p).blocks = blocks;
                   },
                   "tile (2, 2): block 2 has no keys"},
        Corruption{"BandsOverlap",
                   [](Plan& p) {
                     round_of(p).masks[0].mask.bands.push_back({{5, 6}, {0, 6}});
                   },
                   "mask 0 (causal): bands 1 and 2 overlap"},
        Corruption{"BandLeavesTheBatch",
                   [](Plan& p) { round_of(p).masks[0].mask.bands[1].k.end = 9; },
                   "band 1: queries [5, 8), keys [5, 9) are not inside [0, 8)"},
        Corruption{"BandReversed",
                   [](Plan& p) {
                     round_of(p).masks[0].mask.bands[1].k = {8, 5};
                   },
                   "band 1: queries [5, 8), keys [8, 5) are not inside"},
        Corruption{"TokenLimit", [](Plan& p) { round_of(p).token_limit = 3; },
                   "rank 0: owns 4 tokens, the limit is 3"},
        Corruption{"MemoryLimit", [](Plan& p) { round_of(p).memory_limit_bytes = 40; },
                   "bytes, the limit is 40"},
        Corruption{"HeadGroups", [](Plan& p) { round_of(p).head_groups = 2; },
                   "2 head groups do not divide 1 KV heads"},
        Corruption{"NoHeadGroups", [](Plan& p) { round_of(p).head_groups = 0; },
                   "0 head groups do not divide"},
        Corruption{"MissingProgram", [](Plan& p) { round_of(p).devices[1].programs.clear(); },
                   "rank 1: 0 programs for 1 masks"},
        Corruption{"MissingDirection",
                   [](Plan& p) { round_of(p).devices[1].programs[0].backward.reset(); },
                   "backward: 1 of 2 ranks have a program"},
        Corruption{"MissingDevice", [](Plan& p) { round_of(p).devices.pop_back(); },
                   "1 devices, the cluster has 2"},
        Corruption{"OtherHome",
                   [](Plan& p) {
                     p.home = {{{0, 5}, Rank{0}}, {{5, 8}, Rank{1}}};
                   },
                   "block 1: its owner 1 is not the home 0 of token 4"},
        Corruption{"HomeWithAGap",
                   [](Plan& p) {
                     p.home = {{{0, 4}, Rank{0}}, {{5, 8}, Rank{1}}};
                   },
                   "home range [5, 8) does not continue at token 4"},
        Corruption{"HomeNowhere",
                   [](Plan& p) {
                     p.home = {{{0, 8}, Rank{5}}};
                   },
                   "owner 5 is no rank of 2"},
        Corruption{"PositionsOfAnotherSequence",
                   [](Plan& p) {
                     p.positions = {{{0, 8}, 0, 0}};
                   },
                   "positions of tokens [0, 8): sequence 0 is [0, 5)"},
        Corruption{"PositionsTooFew",
                   [](Plan& p) {
                     p.positions = {{{0, 5}, 0, 0}};
                   },
                   "position ranges end at 5, the batch has 8 tokens"},
        Corruption{"SequencesApart", [](Plan& p) { p.sequences[1].begin = 6; },
                   "sequence 1 is [6, 8), expected a non-empty one from 5 on"},
        Corruption{"NoSequences", [](Plan& p) { p.sequences.clear(); }, "plan: no sequences"},
        Corruption{"NoRounds", [](Plan& p) { p.rounds.clear(); }, "plan: no rounds"},
        Corruption{"TwoRounds", [](Plan& p) { p.rounds.push_back(p.rounds[0]); },
                   "token 0 is in block 0 of round 1 and in another block"},
        Corruption{"Heads", [](Plan& p) { p.shape.q_heads = 0; }, "q_heads 0 is not in [1, "},
        Corruption{"HeadsDoNotDivide", [](Plan& p) { p.shape.kv_heads = 4; },
                   "2 query heads are no multiple of 4 KV heads"},
        Corruption{"Layers", [](Plan& p) { round_of(p).masks[0].layers = 0; },
                   "0 layers, expected at least 1"},
        Corruption{"UnknownDtype", [](Plan& p) { p.shape.dtype = static_cast<Dtype>(9); },
                   "unknown dtype 9"},
        Corruption{"NoNodes", [](Plan& p) { p.nodes = -1; }, "-1 nodes of 2 devices"}),
    name_of);

// ----------------------------------------------------------------------------------- deadlocks

// Two ranks, one block each; both send their KV to the other and nobody needs it. `program(r)` is
// what a rank does besides its own tile.
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
  EXPECT_THAT(report.warnings, Contains(HasSubstr("2 of 2 transfers carry data nobody reads")));
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
              Contains("round 0 mask 0 (some) forward: 2 of 2 transfers carry data "
                       "nobody reads"));
}

TEST(VerifyRedundancy, ARetainedInputThatBackwardReadsIsAUseOfItsTransfer) {
  Plan plan = example_plan();
  // Rank 0 receives KV of block 1 beside its query in forward, and only keeps it.
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
  EXPECT_THAT(report.warnings, Contains(HasSubstr("forward: 1 of 3 transfers carry data nobody")));
}

// ------------------------------------------------------------------------------------- reports

TEST(Verify, CountsAllViolationsAndShowsTheFirstCausesFirst) {
  Plan plan = example_plan();
  round_of(plan).token_limit = 0;
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

TEST(Verify, SurvivesExtremeNumbers) {
  constexpr std::int32_t k32 = std::numeric_limits<std::int32_t>::max();
  constexpr std::int64_t k64 = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::function<void(Plan&)>> changes = {
      [](Plan& p) { p.nodes = p.devices_per_node = k32; },
      [](Plan& p) { p.shape.q_heads = p.shape.kv_heads = k32; },
      [](Plan& p) { p.shape.head_dim = p.shape.value_dim = k32; },
      [](Plan& p) { p.shape.head_dim = p.shape.value_dim = p.shape.q_heads = 1 << 20; },
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
      [](Plan& p) { p.shape.q_heads = p.shape.kv_heads = p.rounds[0].head_groups = 1 << 20; },
      [](Plan& p) { p.rounds[0].masks[0].mask.bands[0].lo = -k64 - 1; },
      [](Plan& p) { p.rounds[0].masks[0].mask.bands[0].hi = k64; },
      [](Plan& p) {
        p.rounds[0].masks[0].mask.bands[0].q = {-k64, k64};
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
        p.positions = {{{-k64, k64}, k64, -k64}};
      },
      [](Plan& p) {
        staging(forward(p, 0), Kind::kQ)[0] = {k64, k64};
      },
      [](Plan& p) {
        staging(forward(p, 0), Kind::kQ)[0] = {std::int64_t{1} << 39, 5};
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
      [](Plan& p) { p.rounds[0].token_limit = p.rounds[0].memory_limit_bytes = -k64; },
  };
  for (std::size_t n = 0; n < changes.size(); ++n) {
    SCOPED_TRACE(fmt::format("change {}", n));
    Plan plan = example_plan();
    changes[n](plan);
    EXPECT_NO_THROW(EXPECT_GT(verify(plan).num_violations, 0));
  }
}

}  // namespace
}  // namespace contextile
