#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

template <typename Check>
void for_plans_of_seeds(std::uint64_t seeds, const Check& check) {
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE(seed);
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance, {.homes = true});
    SCOPED_TRACE(batch.text);
    for (const auto& [name, plan] : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(name);
      check(plan);
    }
  }
}

// ----------------------------------------------------------------------------------- statistics

TEST(Statistics, OfTheExampleAreAsCountedByHand) {
  const PlanStats stats = statistics(example_plan());
  EXPECT_EQ(stats.tokens, 8);
  EXPECT_EQ(stats.token_imbalance, 0);
  EXPECT_EQ(stats.token_overload, 0);

  const DirectionStats& forward = *stats.forward;
  EXPECT_EQ(forward.tiles, 4);
  EXPECT_EQ(forward.pairs, 21);
  EXPECT_EQ(forward.transfers, 2);
  EXPECT_EQ(forward.messages, 2);
  EXPECT_EQ(forward.launches, 4);
  EXPECT_EQ(forward.inter_bytes, 0);
  EXPECT_EQ(forward.intra_bytes, 16 + 40);  // q: 2 heads x 4 x bf16; o: 2 x (4 x f32 + LSE)
  EXPECT_EQ(forward.bytes_by_kind, (std::array<std::int64_t, kNumKinds>{16, 0, 40, 0, 0, 0}));
  EXPECT_EQ(forward.max_device_bytes, 40);
  EXPECT_EQ(forward.flops, 21 * 2 * 2 * 8);
  EXPECT_DOUBLE_EQ(forward.compute_overload, 14 / 10.5 - 1);
  EXPECT_DOUBLE_EQ(forward.compute_imbalance, (14 - 10.5) / 14);
  EXPECT_EQ(forward.devices[0].sent_bytes, 40);
  EXPECT_EQ(forward.devices[0].received_bytes, 16);
  EXPECT_EQ(forward.peak_memory_bytes, 216);  // rank 0: q 16, o 40; o of 4 tokens 160
  EXPECT_EQ(forward.retained_bytes, 16);

  const DirectionStats& backward = *stats.backward;
  EXPECT_EQ(backward.bytes_by_kind, (std::array<std::int64_t, kNumKinds>{0, 0, 0, 32, 32, 0}));
  EXPECT_EQ(backward.flops, 21 * 2 * 2 * 20);
  EXPECT_EQ(backward.peak_memory_bytes, 336);  // q 16, do 32, dq 32; dq 128, dkv 128
  EXPECT_EQ(backward.retained_bytes, 0);
}

TEST(Statistics, CountBytesBetweenNodesApart) {
  Plan plan = example_plan();
  std::swap(plan.nodes, plan.devices_per_node);
  const DirectionStats forward = *statistics(plan).forward;
  EXPECT_EQ(forward.intra_bytes, 0);
  EXPECT_EQ(forward.inter_bytes, 56);
  EXPECT_EQ(forward.max_node_uplink_bytes, 40);
  EXPECT_EQ(forward.devices[1].inter_sent_bytes, 16);
  EXPECT_EQ(forward.devices[1].inter_received_bytes, 40);
}

TEST(Statistics, AddUpOverDevicesAndKinds) {
  for_plans_of_seeds(20, [](const Plan& plan) {
    const PlanStats stats = statistics(plan);
    for (const auto& direction : {stats.forward, stats.backward}) {
      if (!direction) continue;
      std::int64_t sent = 0;
      std::int64_t received = 0;
      std::int64_t inter = 0;
      double flops = 0;
      for (const DeviceStats& device : direction->devices) {
        sent += device.sent_bytes;
        received += device.received_bytes;
        inter += device.inter_sent_bytes;
        flops += device.flops;
        EXPECT_LE(device.memory_bytes, direction->peak_memory_bytes);
      }
      EXPECT_EQ(sent, direction->total_bytes());
      EXPECT_EQ(received, sent);
      EXPECT_EQ(inter, direction->inter_bytes);
      EXPECT_EQ(std::accumulate(direction->bytes_by_kind.begin(), direction->bytes_by_kind.end(),
                                std::int64_t{0}),
                sent);
      EXPECT_DOUBLE_EQ(flops, direction->flops);
      EXPECT_GE(direction->transfers, direction->messages);
    }
  });
}

TEST(Statistics, CountThePairsOfTheMasks) {
  for_plans_of_seeds(20, [](const Plan& plan) {
    std::int64_t pairs = 0;
    for (const PlanRound& round : plan.rounds) {
      for (const NamedMask& mask : round.masks) pairs += mask.mask.num_pairs();
    }
    const PlanStats stats = statistics(plan);
    const std::int32_t q_heads = plan.shape.q_heads;
    ASSERT_TRUE(stats.forward || stats.backward);
    if (stats.forward) {
      EXPECT_EQ(stats.forward->pairs, pairs);
      EXPECT_DOUBLE_EQ(stats.forward->flops, forward_flops(pairs, q_heads, plan.shape));
    }
    if (stats.backward) {
      EXPECT_EQ(stats.backward->pairs, pairs);
      EXPECT_DOUBLE_EQ(stats.backward->flops, backward_flops(pairs, q_heads, plan.shape));
    }
  });
}

TEST(Statistics, ImbalanceAndOverloadAreOneThing) {
  for_plans_of_seeds(10, [](const Plan& plan) {
    const PlanStats stats = statistics(plan);
    EXPECT_NEAR(stats.token_overload, stats.token_imbalance / (1 - stats.token_imbalance), 1e-9);
    const DirectionStats& forward = *stats.forward;
    EXPECT_NEAR(forward.compute_overload,
                forward.compute_imbalance / (1 - forward.compute_imbalance), 1e-9);
  });
}

TEST(Statistics, WaitForTheSlowestDeviceOfEveryRound) {
  // Two rounds, each with all of its work on another device: together balanced, one by one not.
  Plan plan = example_plan();
  plan.rounds.push_back(plan.rounds[0]);
  for (std::size_t idle = 0; idle < 2; ++idle) {
    for (ProgramPair& pair : plan.rounds[idle].devices[idle].programs) {
      pair.forward->instructions.clear();
    }
  }
  EXPECT_DOUBLE_EQ(statistics(plan).forward->compute_overload, 1);
}

TEST(Statistics, ChargePaddingWhenTheStrategyAsksForIt) {
  Plan plan = example_plan();
  plan.padded_bytes_factor = 1.5;
  plan.padded_pairs_factor = 2;
  const DirectionStats forward = *statistics(plan).forward;
  EXPECT_EQ(forward.intra_bytes, 84);
  EXPECT_EQ(forward.bytes_by_kind[0], 24);
  EXPECT_EQ(forward.max_device_bytes, 60);
  EXPECT_EQ(forward.pairs, 42);
  EXPECT_EQ(forward.flops, 2 * 21 * 2 * 2 * 8);
  EXPECT_EQ(forward.peak_memory_bytes, 216);  // memory holds real tokens only
}

TEST(Statistics, LackWhatThePlanLacks) {
  Plan plan = example_plan();
  for (DeviceProgram& device : plan.rounds[0].devices) device.programs[0].backward.reset();
  const PlanStats stats = statistics(plan);
  EXPECT_TRUE(stats.forward.has_value());
  EXPECT_FALSE(stats.backward.has_value());
}

// --------------------------------------------------------------------------------------- memory

TEST(DeviceMemory, OfKvOnlyBlocksHasNoQueryAccumulators) {
  Plan plan = example_plan();
  const DeviceMemory both = device_memory(plan, 0, 0, Direction::kBackward, Rank{0});
  plan.rounds[0].blocks = {};
  plan.rounds[0].blocks.add({0, 4}, Role::kKvOnly);
  plan.rounds[0].blocks.add({4, 5});
  plan.rounds[0].blocks.add({5, 8});
  const DeviceMemory memory = device_memory(plan, 0, 0, Direction::kBackward, Rank{0});
  EXPECT_EQ(both.accumulator_bytes - memory.accumulator_bytes, 4 * 2 * 4 * 4);
  EXPECT_EQ(device_memory(plan, 0, 0, Direction::kForward, Rank{0}).accumulator_bytes, 0);
}

TEST(DeviceMemory, OfAnAbsentDirectionIsNothing) {
  Plan plan = example_plan();
  plan.rounds[0].devices[0].programs[0].backward.reset();
  EXPECT_EQ(device_memory(plan, 0, 0, Direction::kBackward, Rank{0}).total_bytes(), 0);
}

// ---------------------------------------------------------------------------------- conversion

struct PackedRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// Walks a program as an executor would: no two conversions in flight may share bytes.
void expect_sound_conversions(const Plan& plan, const PlanRound& round, const Program& program) {
  constexpr std::int64_t kAlignmentBytes = 64;
  const ConversionLayout layout = conversion_layout(plan, round, program);
  std::map<std::int32_t, std::vector<PackedRange>> in_flight;
  std::int64_t largest = 0;
  for (const Instruction& instruction : program.instructions) {
    if (const auto* wait = std::get_if<WaitOp>(&instruction)) in_flight.erase(wait->id);
    const auto* launch = std::get_if<LaunchOp>(&instruction);
    if (launch == nullptr) continue;
    const auto& send_offsets = layout.send_offset_bytes.at(launch->id);
    const auto& recv_offsets = layout.recv_offset_bytes.at(launch->id);
    ASSERT_EQ(send_offsets.size(), launch->sends.size());
    ASSERT_EQ(recv_offsets.size(), launch->recvs.size());
    std::vector<TransferEnd> ends = launch->sends;
    ends.insert(ends.end(), launch->recvs.begin(), launch->recvs.end());
    std::vector<std::int64_t> offsets = send_offsets;
    offsets.insert(offsets.end(), recv_offsets.begin(), recv_offsets.end());
    for (std::size_t i = 0; i < ends.size(); ++i) {
      const bool packed = is_result(ends[i].kind) && ends[i].wire != Dtype::kF32;
      ASSERT_EQ(offsets[i] >= 0, packed);
      if (!packed) continue;
      const PackedRange place{
          offsets[i],
          offsets[i] + unit_bytes(ends[i].kind, round.blocks.num_tokens(ends[i].block), plan.shape,
                                  round.groups_of(ends[i].block), ends[i].wire)};
      EXPECT_EQ(place.begin % kAlignmentBytes, 0);
      for (const auto& [id, places] : in_flight) {
        for (const PackedRange& other : places) {
          EXPECT_FALSE(place.begin < other.end && other.begin < place.end);
        }
      }
      in_flight[launch->id].push_back(place);
      largest = std::max(largest, place.end);
    }
  }
  EXPECT_GE(layout.size_bytes, largest);
  EXPECT_LT(layout.size_bytes, largest + kAlignmentBytes);
}

TEST(ConversionLayout, NeverSharesBytesInFlight) {
  for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
    for_plans_of_seeds(15, [wire](const Plan& original) {
      Plan plan = original;
      plan.partial_wire = wire;
      for (PlanRound& round : plan.rounds) {
        for (DeviceProgram& device : round.devices) {
          for (ProgramPair& pair : device.programs) {
            for (auto* program : {&pair.forward, &pair.backward}) {
              if (!program->has_value()) continue;
              for (Instruction& instruction : (*program)->instructions) {
                auto* launch = std::get_if<LaunchOp>(&instruction);
                if (launch == nullptr) continue;
                for (TransferEnd& end : launch->sends) {
                  if (is_result(end.kind)) end.wire = wire;
                }
                for (TransferEnd& end : launch->recvs) {
                  if (is_result(end.kind)) end.wire = wire;
                }
              }
              expect_sound_conversions(plan, round, **program);
            }
          }
        }
      }
    });
  }
}

TEST(ConversionLayout, ReusesBytesAfterTheWait) {
  Plan plan = example_plan();
  Program program;
  TransferEnd end{Kind::kO, BlockId{0}, GroupId{0}, SlotId{0}, Rank{1}, Dtype::kBf16};
  program.instructions = {LaunchOp{0, {end}, {}}, WaitOp{0}, LaunchOp{1, {end}, {end}}, WaitOp{1}};
  const ConversionLayout layout = conversion_layout(plan, plan.rounds[0], program);
  const std::int64_t unit = 128;  // 4 tokens · 2 heads · (4 · 2 + 4) bytes, rounded up to 64
  EXPECT_EQ(layout.send_offset_bytes.at(0), std::vector<std::int64_t>{0});
  EXPECT_EQ(layout.send_offset_bytes.at(1), std::vector<std::int64_t>{0});
  EXPECT_EQ(layout.recv_offset_bytes.at(1), std::vector<std::int64_t>{unit});
  EXPECT_EQ(layout.size_bytes, 2 * unit);
}

}  // namespace
}  // namespace contextile
