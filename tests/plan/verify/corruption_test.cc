// One corruption of the example, one message.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <utility>

#include "contextile/plan.h"
#include "contextile/verify.h"
#include "support/example_parts.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using testing::Contains;
using testing::HasSubstr;

void expect_flagged(const Plan& plan, const std::string& text) {
  const VerifyReport report = verify(plan);
  EXPECT_GT(report.num_violations, 0);
  EXPECT_THAT(report.violations, Contains(HasSubstr(text)));
}

// Rank 0 also receives the query of block 2, into a slot that overlaps the one of block 1's: by a
// launch that both ranks wait for at once, at `instruction` of rank 0.
void receive_block_2_too(Plan& plan, std::ptrdiff_t instruction) {
  const auto end = [](Rank peer, std::int32_t slot) {
    return TransferEnd{Kind::kQ, BlockId{2}, GroupId{0}, SlotId{slot}, peer, Dtype::kBf16};
  };
  staging(forward(plan, 0), Kind::kQ) = {{2, 1}, {0, 3}};
  auto& to = forward(plan, 0).instructions;
  auto& from = forward(plan, 1).instructions;
  if (instruction == 0) {
    std::get<LaunchOp>(to[0]).recvs.push_back(end(Rank{1}, 2));
    std::get<LaunchOp>(from[0]).sends.push_back(end(Rank{0}, 1));
    return;
  }
  to.insert(to.begin() + instruction, {LaunchOp{7, {}, {end(Rank{1}, 2)}}, WaitOp{7}});
  from.insert(from.begin() + 1, {LaunchOp{7, {end(Rank{0}, 1)}, {}}, WaitOp{7}});
}

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
                   "round 0 mask 0 (causal) forward: tile (2, 2) of group 0 is never computed"},
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
        Corruption{"OverwritesDkvForward", [](Plan& p) { tile(forward(p, 0), 1).init_dkv = true; },
                   "forward rank 0 instruction 1 (attention): a forward tile overwrites dkv"},
        Corruption{"UsesDkvForward", [](Plan& p) { tile(forward(p, 0), 1).dkv = SlotId{0}; },
                   "a forward tile uses dkv[0]"},
        Corruption{"UsesDoForward", [](Plan& p) { tile(forward(p, 0), 1).d_o = SlotId{0}; },
                   "a forward tile uses do[0]"},
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
                     program.instructions[5] = op<AttentionOp>(program, 3);
                     program.instructions.emplace_back(WaitOp{1});
                   },
                   "rank 0 instruction 5 (attention): writes o[1] while a transfer reads o[1]"},
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
        Corruption{"OverlappingInFlight", [](Plan& p) { receive_block_2_too(p, 0); },
                   "rank 0 instruction 0 (launch): writes q[2] while a transfer writes q[1]"},
        Corruption{"OverlappingInUse", [](Plan& p) { receive_block_2_too(p, 3); },
                   "rank 0 instruction 5 (attention): reads q[1] for block 1 group 0, it holds "
                   "nothing (overwritten at instruction 3)"},
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
        Corruption{"TokenLimit", [](Plan& p) { round_of(p).limits.tokens = 3; },
                   "rank 0: owns 4 tokens, the limit is 3"},
        Corruption{"MemoryLimit", [](Plan& p) { round_of(p).limits.memory_bytes = 40; },
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
        Corruption{"BranchOfALaterToken",
                   [](Plan& p) {
                     p.positions = {{{0, 5}, 0, 0}, {{5, 7}, 1, 0}, {{7, 8}, 1, 1, 7}};
                   },
                   "positions of tokens [7, 8) follow token 7"},
        Corruption{"BranchOfAnotherSequence",
                   [](Plan& p) {
                     p.positions = {{{0, 5}, 0, 0}, {{5, 7}, 1, 0}, {{7, 8}, 1, 1, 4}};
                   },
                   "positions of tokens [7, 8) follow token 4"},
        Corruption{"BranchOfNoToken",
                   [](Plan& p) {
                     p.positions = {{{0, 5}, 0, 0}, {{5, 7}, 1, 0}, {{7, 8}, 1, 1, -4}};
                   },
                   "positions of tokens [7, 8) follow token -4"},
        Corruption{"BranchAtAnotherPosition",
                   [](Plan& p) {
                     p.positions = {{{0, 5}, 0, 0}, {{5, 7}, 1, 0}, {{7, 8}, 1, 2, 5}};
                   },
                   "positions of tokens [7, 8) begin at 2, token 5 before them is at 0"},
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

}  // namespace
}  // namespace contextile
