// The event machine, compared with times computed by hand.
#include "predict/simulate/event_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "predict/simulate/programs.h"
#include "support/message_of.h"

namespace contextile {
namespace {

TEST(Machine, OneTransferTakesLaunchLatencyAndBytes) {
  Cluster cluster = plain(1, 2);
  cluster.launch_us = 3;
  cluster.intra_latency_us = 7;
  Programs programs(cluster);
  programs.message(0, 1, 5000, 0).wait(1, 0);
  const Machine machine = programs.run();
  EXPECT_DOUBLE_EQ(machine.time_us(), 3 + 7 + 5);
  EXPECT_DOUBLE_EQ(machine.devices()[1].of(Activity::kLaunch), 3);
  EXPECT_DOUBLE_EQ(machine.devices()[1].of(Activity::kExposed), 12);
  EXPECT_DOUBLE_EQ(machine.devices()[0].idle_us, 12);
  EXPECT_EQ(machine.intra_bytes(), 5000);
  EXPECT_EQ(machine.inter_bytes(), 0);
}

TEST(Machine, IncastSharesTheReceiversPort) {
  for (std::int32_t n = 1; n <= 7; ++n) {
    Programs programs(plain(1, 8));
    std::vector<MessageEnd> receives;
    for (std::int32_t s = 1; s <= n; ++s) {
      programs.launch(s, 0, {{Rank{0}, 2000}}, {});
      receives.push_back({Rank{s}, 2000});
    }
    programs.launch(0, 0, {}, receives).wait(0, 0);
    EXPECT_DOUBLE_EQ(programs.time_us(), 2.0 * n);
  }
}

TEST(Machine, ARingStepUsesEveryPortOnce) {
  Programs programs(plain(1, 5));
  for (std::int32_t d = 0; d < 5; ++d) {
    programs.launch(d, 0, {{Rank{(d + 1) % 5}, 4000}}, {{Rank{(d + 4) % 5}, 4000}}).wait(d, 0);
  }
  EXPECT_DOUBLE_EQ(programs.time_us(), 4);
}

TEST(Machine, TransfersHideUnderCompute) {
  for (const double compute_us : {2.0, 10.0}) {
    Programs programs(plain(1, 2));
    programs.message(0, 1, 6000, 0).attention(1, compute_us).wait(1, 0).attention(1, 1);
    const Machine machine = programs.run();
    EXPECT_DOUBLE_EQ(machine.time_us(), std::max(compute_us, 6.0) + 1);
    EXPECT_DOUBLE_EQ(machine.devices()[1].of(Activity::kExposed), std::max(0.0, 6 - compute_us));
  }
}

TEST(Machine, APipelineFills) {
  // Device 1 passes on what device 0 sends; three pieces of 2 µs reach device 2 after 4 stages.
  Programs programs(plain(1, 3));
  for (std::int32_t piece = 0; piece < 3; ++piece) programs.launch(0, piece, {{Rank{1}, 2000}}, {});
  // One piece at a time: device 0 waits for the one before.
  Programs paced(plain(1, 3));
  for (std::int32_t piece = 0; piece < 3; ++piece) {
    paced.launch(0, piece, {{Rank{1}, 2000}}, {}).wait(0, piece);
    paced.launch(1, 2 * piece, {}, {{Rank{0}, 2000}}).wait(1, 2 * piece);
    paced.launch(1, 2 * piece + 1, {{Rank{2}, 2000}}, {});
    paced.launch(2, piece, {}, {{Rank{1}, 2000}}).wait(2, piece);
  }
  EXPECT_DOUBLE_EQ(paced.time_us(), 2 * (3 + 1));
}

TEST(Machine, DevicesOfANodeShareItsUplinkOrHaveTheirOwnNic) {
  for (const std::int32_t nics : {1, 2}) {
    Cluster cluster = plain(2, 2);
    cluster.nics_per_node = nics;  // each 1/nics GB/s
    Programs both(cluster);
    both.message(0, 2, 3000, 0).message(1, 3, 3000, 0).wait(2, 0).wait(3, 0);
    EXPECT_DOUBLE_EQ(both.time_us(), 6);
    Programs one(cluster);
    one.message(0, 2, 3000, 0).wait(2, 0);
    EXPECT_DOUBLE_EQ(one.time_us(), 3.0 * nics);
  }
}

TEST(Machine, AnotherRailIsReachedThroughTheSendersNode) {
  Cluster cluster = plain(2, 2);
  cluster.nics_per_node = 2;
  cluster.inter_gbytes_per_s_per_node = 2;
  // Both messages end at device 2's NIC when rails are separate: 0 → 2 directly, 1 → 2 through 0.
  const auto time_us = [&](std::int64_t through_port) {
    Programs programs(cluster);
    programs.message(0, 2, 1000, 0).message(1, 2, 1000, 1).wait(2, 0).wait(2, 1);
    if (through_port > 0) programs.message(1, 0, through_port, 2).wait(0, 2);
    return programs.time_us();
  };
  EXPECT_DOUBLE_EQ(time_us(0), 2);  // device 2's NIC takes both, one after the other in effect
  // Without rails the port into device 0 is free for a local message; with them it is shared.
  EXPECT_DOUBLE_EQ(time_us(2000), 2);
  cluster.rails = true;
  EXPECT_DOUBLE_EQ(time_us(0), 2);
  EXPECT_GT(time_us(2000), 2.5);
}

TEST(Machine, AFlowBetweenNodesHasALimitOfItsOwn) {
  Cluster cluster = plain(3, 2);
  cluster.inter_gbytes_per_s_per_node = 4;
  cluster.flow_gbytes_per_s = {{.nodes = 2, .gbytes_per_s = 0.5}};
  {
    Programs one(cluster);
    one.message(0, 2, 3000, 0).wait(2, 0);
    EXPECT_DOUBLE_EQ(one.time_us(), 6);
  }
  {
    // Two messages of one flow share its limit; another pair of devices has its own.
    Programs two(cluster);
    two.message(0, 2, 3000, 0).message(0, 2, 3000, 1).message(1, 2, 3000, 2);
    two.wait(2, 0).wait(2, 1).wait(2, 2);
    EXPECT_DOUBLE_EQ(two.time_us(), 12);
  }
  {
    // Flows that share a slower uplink get less than their limit.
    cluster.inter_gbytes_per_s_per_node = 0.5;
    Programs shared(cluster);
    shared.message(0, 2, 3000, 0).message(1, 4, 3000, 0).wait(2, 0).wait(4, 0);
    EXPECT_DOUBLE_EQ(shared.time_us(), 12);
  }
  // Inside a node there is none.
  Programs inside(cluster);
  inside.message(0, 1, 3000, 0).wait(1, 0);
  EXPECT_DOUBLE_EQ(inside.time_us(), 3);
}

TEST(Machine, AFlowsLimitAboveThatOfPortsChangesNothing) {
  Cluster cluster = plain(2, 2);
  const auto run = [&] {
    Programs programs(cluster);
    programs.message(0, 2, 3001, 0).message(1, 3, 1999, 0).message(0, 3, 777, 1);
    return programs.wait(2, 0).wait(3, 0).wait(3, 1).time_us();
  };
  const double without_us = run();
  cluster.flow_gbytes_per_s = {{.nodes = 2, .gbytes_per_s = 1e6}};
  EXPECT_EQ(run(), without_us);
}

TEST(Machine, ACollectiveSharesTheLinksOfMessages) {
  Programs programs(plain(2, 1));
  programs.message(0, 1, 3000, 0).wait(1, 0).attention(1, 1);
  const auto run = [&](double gbytes_per_s, double us) {
    return programs.run({}, {{.node_gbytes_per_s = gbytes_per_s}, us});
  };
  // Both want the whole NIC: the message ends after twice its time, then the collective is alone.
  EXPECT_DOUBLE_EQ(run(1, 5).time_us(), 6 + 1);
  EXPECT_DOUBLE_EQ(run(1, 5).collective_end_us(), 3 + 5);
  // One that ends first leaves the NIC to the message.
  EXPECT_DOUBLE_EQ(run(1, 2).collective_end_us(), 4);
  EXPECT_DOUBLE_EQ(run(1, 2).time_us(), 3 + 2 + 1);
  // At a quarter of the rate it takes no more than that.
  EXPECT_DOUBLE_EQ(run(0.25, 20).collective_end_us(), 20);
  EXPECT_DOUBLE_EQ(run(0.25, 20).time_us(), 4 + 1);
  EXPECT_DOUBLE_EQ(run(1, 0).time_us(), 3 + 1);
  EXPECT_DOUBLE_EQ(run(0, 7).collective_end_us(), 0);
}

TEST(Machine, ACollectiveRunsAroundEveryNodeAndThroughAllItsNics) {
  Cluster cluster = plain(3, 2);
  cluster.nics_per_node = 2;
  cluster.inter_gbytes_per_s_per_node = 4;
  cluster.flow_gbytes_per_s = {{.nodes = 2, .gbytes_per_s = 0.1}};  // not of collectives
  Programs inside(cluster);
  inside.message(0, 1, 2000, 0).wait(1, 0);
  Programs between(cluster);
  between.message(1, 4, 100, 0).wait(4, 0);
  const CollectiveLoad around{{.device_gbytes_per_s = 1, .node_gbytes_per_s = 4}, 10};
  EXPECT_DOUBLE_EQ(inside.run({}, around).time_us(), 4);
  EXPECT_DOUBLE_EQ(inside.run({}, around).collective_end_us(), 12);
  EXPECT_DOUBLE_EQ(between.run({}, around).time_us(), 1);  // its own limit binds
  const CollectiveLoad only_inside{{.device_gbytes_per_s = 1}, 10};
  EXPECT_DOUBLE_EQ(between.run({}, only_inside).collective_end_us(), 10);
  // Its transfers take compute like all others.
  cluster.sm_fraction = 0.5;
  Programs computing(cluster);
  computing.attention(0, 5);
  EXPECT_DOUBLE_EQ(computing.run({}, around).time_us(), 10);
  EXPECT_EQ(computing.run({}, around).inter_bytes(), 0);
}

TEST(Machine, ADeviceWaitsForItsHostOnlyIfItHasNothingLeftToDo) {
  // Device 0's host issues at 3 and 6, that of device 1 at 0, 5 and 17.
  Programs programs(plain(1, 2));
  programs.attention(0, 10).host(0, 3);  // 3 to 13
  programs.attention(0, 1).host(0, 3);   // 13 to 14
  programs.message(0, 1, 2000, 0);       // 14 to 16
  programs.wait(1, 0).host(1, 5);        // of a wait, the host's time delays what comes later
  programs.attention(1, 1).host(1, 12);  // 17 to 18
  const Machine machine = programs.run({.timeline = true});
  EXPECT_DOUBLE_EQ(machine.time_us(), 18);
  EXPECT_DOUBLE_EQ(machine.devices()[0].of(Activity::kLaunch), 3);
  EXPECT_DOUBLE_EQ(machine.devices()[0].of(Activity::kAttention), 11);
  EXPECT_DOUBLE_EQ(machine.devices()[1].of(Activity::kLaunch), 1);
  EXPECT_DOUBLE_EQ(machine.devices()[1].of(Activity::kExposed), 16);
}

TEST(Machine, MergesFollowTheirAttention) {
  Programs programs(plain(1, 1));
  programs.attention(0, 10).merge(0, 4).attention(0, 1);
  const Machine machine = programs.run();
  EXPECT_DOUBLE_EQ(machine.time_us(), 15);
  EXPECT_DOUBLE_EQ(machine.devices()[0].of(Activity::kAttention), 11);
  EXPECT_DOUBLE_EQ(machine.devices()[0].of(Activity::kMerge), 4);
}

TEST(Machine, ALaunchWithoutMessagesIsOverWhenItsTurnComes) {
  for (const LaunchOrder order : {LaunchOrder::kConcurrent, LaunchOrder::kGrouped}) {
    Cluster cluster = plain(1, 2);
    cluster.launches = order;
    Programs programs(cluster);
    programs.message(0, 1, 2000, 0).launch(0, 1, {}, {}).wait(0, 1).attention(0, 3).wait(0, 0);
    programs.wait(1, 0);
    // Grouped, the second launch waits for the first.
    EXPECT_DOUBLE_EQ(programs.time_us(), order == LaunchOrder::kGrouped ? 5 : 3);
  }
}

TEST(Machine, GroupedLaunchesMoveOneAfterAnother) {
  for (const LaunchOrder order : {LaunchOrder::kConcurrent, LaunchOrder::kGrouped}) {
    Cluster cluster = plain(1, 3);
    cluster.launches = order;
    Programs programs(cluster);
    // Device 0 receives from 1 late, from 2 early.
    programs.launch(0, 0, {}, {{Rank{1}, 1000}}).launch(0, 1, {}, {{Rank{2}, 1000}});
    programs.attention(1, 10).launch(1, 0, {{Rank{0}, 1000}}, {});
    programs.launch(2, 0, {{Rank{0}, 1000}}, {});
    programs.wait(0, 1).attention(0, 20).wait(0, 0);
    EXPECT_DOUBLE_EQ(programs.time_us(), order == LaunchOrder::kConcurrent ? 21 : 12 + 20);
  }
}

TEST(Machine, SaysThatLaunchesInACircleWaitForeverOneAfterAnother) {
  for (const LaunchOrder order : {LaunchOrder::kConcurrent, LaunchOrder::kGrouped}) {
    Cluster cluster = plain(1, 2);
    cluster.launches = order;
    Programs programs(cluster);
    // Both receive before they send.
    for (const std::int32_t d : {0, 1}) {
      programs.launch(d, 0, {}, {{Rank{1 - d}, 1000}}).launch(d, 1, {{Rank{1 - d}, 1000}}, {});
      programs.wait(d, 0).wait(d, 1);
    }
    if (order == LaunchOrder::kConcurrent) {
      EXPECT_DOUBLE_EQ(programs.time_us(), 1);
    } else {
      EXPECT_THAT(message_of<InvalidPlan>([&] { return programs.time_us(); }),
                  testing::HasSubstr("rank 0 waits forever for launch 0 (instruction 2); launches "
                                     "of this cluster move one after another"));
    }
  }
}

TEST(Machine, TransfersTakeAShareOfCompute) {
  Cluster cluster = plain(1, 2);
  cluster.sm_fraction = 0.25;
  Programs programs(cluster);
  programs.message(0, 1, 8000, 0).attention(1, 10).wait(1, 0);
  // 8 µs at three quarters of the speed leave 4 µs of work.
  EXPECT_DOUBLE_EQ(programs.time_us(), 12);
}

TEST(Machine, TransfersTakeComputeForEveryMbWhileTheyMove) {
  Cluster cluster = plain(1, 3);             // ports of 1000 bytes a µs
  cluster.transfer_compute_us_per_mb = 250;  // a quarter of the speed at the full rate of a port
  {
    Programs programs(cluster);
    programs.message(0, 1, 8000, 0).attention(1, 10).wait(1, 0);
    // 8 µs at three quarters of the speed leave 4 µs of work.
    EXPECT_DOUBLE_EQ(programs.time_us(), 12);
  }
  {
    // Two senders share the receiver's port, so each of them loses an eighth.
    Programs programs(cluster);
    programs.launch(0, 0, {{Rank{2}, 4000}}, {}).attention(0, 10).wait(0, 0);
    programs.launch(1, 0, {{Rank{2}, 4000}}, {});
    programs.launch(2, 0, {}, {{Rank{0}, 4000}, {Rank{1}, 4000}}).attention(2, 6).wait(2, 0);
    programs.wait(1, 0);
    const Machine machine = programs.run();
    EXPECT_DOUBLE_EQ(machine.devices()[0].of(Activity::kAttention), 11);
    EXPECT_DOUBLE_EQ(machine.devices()[2].of(Activity::kAttention), 8);
  }
}

TEST(Machine, ADeviceThatWaitsLosesNothingToTransfers) {
  Cluster cluster = plain(1, 2);
  cluster.transfer_compute_us_per_mb = 250;
  Programs programs(cluster);
  programs.message(0, 1, 8000, 0).wait(1, 0).attention(1, 10);
  EXPECT_DOUBLE_EQ(programs.time_us(), 18);
}

TEST(Machine, TransfersLeaveATenthOfComputeAtLeast) {
  Cluster cluster = plain(1, 2);
  cluster.transfer_compute_us_per_mb = 5000;
  Programs programs(cluster);
  programs.message(0, 1, 8000, 0).attention(1, 10).wait(1, 0);
  EXPECT_DOUBLE_EQ(programs.time_us(), 8 + 10 - 0.8);
}

TEST(Machine, DevicesShareTheSlotsOfTheirNode) {
  Cluster cluster = plain(2, 3);
  cluster.compute_slots_per_node = 2;
  Programs programs(cluster);
  // Three at two thirds of the speed until the short one is done at 3, then two at full speed.
  programs.attention(0, 2).attention(1, 6).attention(2, 6);
  programs.attention(3, 5).attention(4, 5);  // on a node of their own
  const Machine machine = programs.run();
  EXPECT_DOUBLE_EQ(machine.devices()[0].of(Activity::kAttention), 3);
  EXPECT_DOUBLE_EQ(machine.devices()[1].of(Activity::kAttention), 7);
  EXPECT_DOUBLE_EQ(machine.devices()[3].of(Activity::kAttention), 5);
  EXPECT_DOUBLE_EQ(machine.time_us(), 7);
}

TEST(Machine, DevicesThatWaitLeaveTheirSlotToOthers) {
  Cluster cluster = plain(1, 2);
  cluster.compute_slots_per_node = 1;
  Programs programs(cluster);
  programs.launch(0, 0, {}, {{Rank{1}, 8000}}).attention(0, 2).wait(0, 0).attention(0, 3);
  programs.attention(1, 6).launch(1, 0, {{Rank{0}, 8000}}, {});
  const Machine machine = programs.run();
  // Both until 4, device 1 alone until 8.
  EXPECT_DOUBLE_EQ(machine.devices()[0].of(Activity::kAttention), 4 + 3);
  EXPECT_DOUBLE_EQ(machine.devices()[1].of(Activity::kAttention), 8);
  EXPECT_DOUBLE_EQ(machine.time_us(), 8 + 8 + 3);
}

TEST(Machine, LessThanASlotSlowsASingleDevice) {
  Cluster cluster = plain(1, 1);
  cluster.compute_slots_per_node = 0.25;
  Programs programs(cluster);
  programs.attention(0, 3).attention(0, 1);
  EXPECT_DOUBLE_EQ(programs.time_us(), 16);
}

TEST(Machine, SharesAreMaxMinFair) {
  // 0 → 1 and 0 → 2 share port 0 out; 3 → 2 shares port 2 in with the latter. All get a half; when
  // the short one is done the others do not wait for each other.
  Programs programs(plain(1, 4));
  programs.launch(0, 0, {{Rank{1}, 1000}, {Rank{2}, 3000}}, {});
  programs.launch(3, 0, {{Rank{2}, 3000}}, {});
  programs.launch(1, 0, {}, {{Rank{0}, 1000}}).wait(1, 0);
  programs.launch(2, 0, {}, {{Rank{0}, 3000}, {Rank{3}, 3000}}).wait(2, 0);
  const Machine machine = programs.run();
  EXPECT_DOUBLE_EQ(machine.time_us(), 6);
  EXPECT_DOUBLE_EQ(machine.devices()[1].of(Activity::kExposed), 2);
}

TEST(Machine, ActivitiesAndIdleAddUpToTheTime) {
  Programs programs(plain(1, 3));
  programs.message(0, 1, 6000, 0).attention(1, 2).wait(1, 0).attention(1, 3).attention(2, 1);
  const Machine machine = programs.run();
  for (const DeviceTimes& times : machine.devices()) {
    EXPECT_DOUBLE_EQ(times.busy_us() + times.of(Activity::kExposed) + times.idle_us,
                     machine.time_us());
  }
}

TEST(Machine, ReportsEverySpanAndMessage) {
  Programs programs(plain(1, 2));
  programs.message(0, 1, 6000, 0).attention(1, 2).wait(1, 0);
  Machine machine = programs.run({.timeline = true});
  ASSERT_EQ(machine.messages().size(), 1U);
  EXPECT_EQ(machine.messages()[0].bytes, 6000);
  EXPECT_DOUBLE_EQ(machine.messages()[0].end_us, 6);
  ASSERT_EQ(machine.activities().size(), 2U);  // launches without a cost leave no span
  EXPECT_EQ(machine.activities()[1].activity, Activity::kExposed);
  EXPECT_DOUBLE_EQ(machine.activities()[1].start_us, 2);
}

TEST(Machine, SaysWhoWaitsForever) {
  Programs programs(plain(1, 2));
  // Each waits for the other before it sends.
  programs.launch(0, 0, {}, {{Rank{1}, 10}}).wait(0, 0).launch(0, 1, {{Rank{1}, 10}}, {});
  programs.launch(1, 0, {}, {{Rank{0}, 10}}).wait(1, 0).launch(1, 1, {{Rank{0}, 10}}, {});
  EXPECT_THROW((void)programs.run(), InvalidPlan);
}

TEST(Machine, RefusesMessagesThatDoNotMatch) {
  Programs missing(plain(1, 2));
  missing.launch(0, 0, {{Rank{1}, 10}}, {});
  EXPECT_THROW((void)missing.run(), InvalidPlan);
  Programs other(plain(1, 2));
  other.launch(0, 0, {{Rank{1}, 10}}, {}).launch(1, 0, {}, {{Rank{0}, 11}});
  EXPECT_THROW((void)other.run(), InvalidPlan);
}

TEST(Machine, ACoarseResolutionStaysClose) {
  Programs programs(plain(1, 8));
  for (std::int32_t d = 1; d < 8; ++d) programs.message(d, 0, 1000 * d, d);
  for (std::int32_t d = 1; d < 8; ++d) programs.wait(0, d);
  const double exact = programs.run({.resolution_us = 0}).time_us();
  const double coarse = programs.run({.resolution_us = 0.5}).time_us();
  EXPECT_DOUBLE_EQ(exact, 28);
  EXPECT_GE(coarse, exact - 1e-9);
  EXPECT_LE(coarse, exact + 7 * 0.5);
}

}  // namespace
}  // namespace contextile
