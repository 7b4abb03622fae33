// Programs on the chunk network, with times worked out by hand.
#include "labs/network/chunk_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace contextile {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t kMb = 1'000'000;
// A tenth of a MB, so that numbers stay round.
constexpr ChunkOptions kTenths = {.chunk_bytes = kMb / 10};

// 1 GB/s inside and between nodes: 1 MB takes 1000 µs. There are no latencies.
Cluster plain_cluster(std::int32_t nodes, std::int32_t devices_per_node) {
  Cluster cluster;
  cluster.nodes = nodes;
  cluster.devices_per_node = devices_per_node;
  cluster.intra_gbytes_per_s = 1;
  cluster.inter_gbytes_per_s_per_node = 1;
  cluster.intra_latency_us = cluster.inter_latency_us = 0;
  return cluster;
}

// Builds programs step by step. A launch is named by a number, which is the same at both ends.
class Steps {
 public:
  explicit Steps(const Cluster& cluster) : cluster_(cluster) {
    program_.devices.resize(static_cast<std::size_t>(cluster.num_devices()));
  }

  Steps& compute(std::int32_t d, double us, double host_us = 0) {
    steps(d).push_back({.duration_us = us, .host_us = host_us});
    return *this;
  }
  // Both ends launch one message.
  Steps& message(std::int32_t src, std::int32_t dst, std::int64_t bytes, std::int32_t name,
                 double launch_us = 0) {
    program_.messages.push_back(
        {Rank{src}, Rank{dst}, launch(src, name, launch_us), launch(dst, name, launch_us), bytes});
    return *this;
  }
  // The number of the device's launch of that name, which is made unless it exists.
  std::int32_t launch(std::int32_t d, std::int32_t name, double launch_us = 0) {
    const auto number = static_cast<std::int32_t>(launches_[d].size());
    const auto [place, is_new] = launches_[d].try_emplace(name, number);
    if (is_new) {
      steps(d).push_back(
          {.kind = NetworkStepKind::kLaunch, .duration_us = launch_us, .launch = number});
    }
    return place->second;
  }
  Steps& wait(std::int32_t d, std::int32_t name) {
    steps(d).push_back({.kind = NetworkStepKind::kWait, .launch = launches_[d].at(name)});
    return *this;
  }

  [[nodiscard]] double time_us(const ChunkOptions& options = kTenths) const {
    return chunk_time_us(program_, cluster_, options);
  }

 private:
  std::vector<NetworkStep>& steps(std::int32_t d) {
    return program_.devices[static_cast<std::size_t>(d)];
  }

  const Cluster& cluster_;
  NetworkProgram program_;
  std::map<std::int32_t, std::map<std::int32_t, std::int32_t>> launches_;
};

TEST(ChunkMachine, AMessageAloneTakesLaunchLatencyAndBytesInAnyChunks) {
  Cluster cluster = plain_cluster(1, 2);
  cluster.intra_latency_us = 7;
  const Steps steps = Steps(cluster).message(0, 1, kMb, 1, 3).wait(1, 1);
  for (const std::int64_t chunk : {std::int64_t{1000}, std::int64_t{262'144}, 10 * kMb}) {
    for (const std::int32_t window : {1, 8}) {
      EXPECT_NEAR(steps.time_us({.chunk_bytes = chunk, .window = window}), 3 + 7 + 1000, 1e-6);
    }
  }
}

TEST(ChunkMachine, AnEmptyMessageTakesItsLatency) {
  Cluster cluster = plain_cluster(1, 2);
  cluster.intra_latency_us = 7;
  EXPECT_EQ(Steps(cluster).message(0, 1, 0, 1).wait(1, 1).time_us(), 7);
}

TEST(ChunkMachine, BothEndsMustHaveLaunched) {
  const Cluster cluster = plain_cluster(1, 2);
  const Steps steps = Steps(cluster).compute(1, 500).message(0, 1, kMb, 1).wait(1, 1);
  EXPECT_NEAR(steps.time_us(), 500 + 1000, 1e-6);
}

TEST(ChunkMachine, MessagesThatShareAPortAreServedInTurn) {
  const Cluster cluster = plain_cluster(1, 3);
  Steps steps(cluster);
  steps.message(0, 2, kMb, 1).message(1, 2, kMb / 2, 2);
  EXPECT_NEAR(Steps(steps).wait(2, 1).time_us(), 1500, 1e-6);
  // The fifth chunk of the message that was launched second is the tenth of all.
  EXPECT_NEAR(Steps(steps).wait(2, 2).compute(2, 5000).time_us(), 1000 + 5000, 1e-6);
}

TEST(ChunkMachine, AMessageThatCannotMoveLeavesItsSendersPortToOthers) {
  // Three senders share the port into device 3. Device 0 also sends to device 1, whose port
  // is free, so that message gets what the first one cannot use.
  const Cluster cluster = plain_cluster(1, 4);
  Steps steps(cluster);
  steps.message(0, 3, kMb, 1).message(1, 3, kMb, 2).message(2, 3, kMb, 3).message(0, 1, kMb, 4);
  const Steps waits = Steps(steps).wait(1, 4).compute(1, 5000);
  // Max-min fair: two thirds of the rate.
  EXPECT_NEAR(waits.time_us({.chunk_bytes = kMb / 1000, .window = 2}), 1500 + 5000, 10);
  EXPECT_NEAR(Steps(steps).wait(3, 1).wait(3, 2).wait(3, 3).time_us(), 3000, 1e-6);
}

TEST(ChunkMachine, FirstComeFirstServedFavorsTheMessageWhoseChunksComeFaster) {
  // Two messages share the port out of device 0, and the third has that of device 1 alone.
  const Cluster cluster = plain_cluster(1, 3);
  Steps steps(cluster);
  steps.message(0, 2, kMb, 1).message(0, 2, kMb, 2).message(1, 2, kMb, 3).wait(2, 3);
  steps.compute(2, 5000);
  ChunkOptions options = {.chunk_bytes = kMb / 100, .window = 1000};
  EXPECT_NEAR(steps.time_us(options), 3000 + 5000, 30);  // a third of the port into device 2
  options.queue = ChunkQueue::kFifo;
  EXPECT_NEAR(steps.time_us(options), 2000 + 5000, 30);  // half of it
}

TEST(ChunkMachine, AChainCrossesNics) {
  Cluster cluster = plain_cluster(2, 2);
  cluster.inter_gbytes_per_s_per_node = 0.5;
  cluster.inter_latency_us = 12;
  const Steps steps =
      Steps(cluster).message(0, 2, kMb, 1).wait(2, 1).message(2, 1, kMb, 2).wait(1, 2);
  EXPECT_NEAR(steps.time_us(), 2 * (12 + 2000), 1e-6);
}

TEST(ChunkMachine, DevicesShareAnUplinkOrHaveNicsOfTheirOwn) {
  Cluster cluster = plain_cluster(2, 2);
  const auto exchange_us = [&] {
    return Steps(cluster)
        .message(0, 2, kMb, 1)
        .message(1, 3, kMb, 2)
        .wait(2, 1)
        .wait(3, 2)
        .time_us();
  };
  EXPECT_NEAR(exchange_us(), 2000, 1e-6);
  cluster.nics_per_node = 2;  // each has half of the rate
  EXPECT_NEAR(exchange_us(), 2000, 1e-6);
  cluster.inter_gbytes_per_s_per_node = 2;
  EXPECT_NEAR(exchange_us(), 1000, 1e-6);
}

TEST(ChunkMachine, AnotherRailIsReachedThroughTheSendersNode) {
  Cluster cluster = plain_cluster(2, 2);
  cluster.nics_per_node = 2;
  cluster.rails = true;
  cluster.inter_gbytes_per_s_per_node = 8;
  // The message from 0 to 3 passes device 1, so it shares two ports with that from 0 to 1.
  EXPECT_NEAR(Steps(cluster).message(0, 3, kMb, 1).wait(3, 1).time_us(), 1000, 1e-6);
  const Steps both =
      Steps(cluster).message(0, 3, kMb, 1).message(0, 1, kMb, 2).wait(1, 2).wait(3, 1);
  EXPECT_NEAR(both.time_us(), 2000, 1e-6);
  cluster.rails = false;
  EXPECT_NEAR(both.time_us(), 1000, 1e-6);
}

TEST(ChunkMachine, GroupedLaunchesMoveOneAfterAnother) {
  Cluster cluster = plain_cluster(1, 3);
  const Steps steps = Steps(cluster)
                          .message(0, 1, kMb, 1)
                          .message(0, 2, kMb, 2)
                          .wait(1, 1)
                          .compute(1, 5000)
                          .wait(2, 2);
  EXPECT_NEAR(steps.time_us(), 1900 + 5000, 1e-6);  // in turn, the nearer receiver first
  cluster.launches = LaunchOrder::kGrouped;
  EXPECT_NEAR(steps.time_us(), 1000 + 5000, 1e-6);
}

TEST(ChunkMachine, ALaunchWithoutMessagesEndsWhenItsTurnHasCome) {
  Cluster cluster = plain_cluster(1, 2);
  cluster.launches = LaunchOrder::kGrouped;
  Steps steps(cluster);
  steps.message(0, 1, kMb, 1).launch(0, 2);
  steps.wait(0, 2).compute(0, 10);
  EXPECT_NEAR(steps.time_us(), 1000 + 10, 1e-6);
}

TEST(ChunkMachine, AFlowBetweenNodesHasALimitOfItsOwn) {
  Cluster cluster = plain_cluster(2, 3);
  cluster.flow_gbytes_per_s = {{2, 0.4}};
  EXPECT_NEAR(Steps(cluster).message(0, 3, kMb, 1).wait(3, 1).time_us(), 2500, 1e-6);
  EXPECT_NEAR(Steps(cluster).message(0, 1, kMb, 1).wait(1, 1).time_us(), 1000, 1e-6);
  // Two flows are below the NIC's rate. The second one's chunk waits for that of the first at the
  // end, because both come at the same time.
  Steps two(cluster);
  two.message(0, 3, kMb, 1).message(1, 4, kMb, 2).wait(3, 1).wait(4, 2);
  EXPECT_NEAR(two.time_us(), 2500 + 100, 1e-6);
  // Three flows fill it, from the moment on at which their first chunks can cut through.
  const Steps three = Steps(two).message(2, 5, kMb, 3).wait(5, 3);
  EXPECT_NEAR(three.time_us(), 150 + 3000, 1e-6);
  // Two messages of one flow share its limit.
  const Steps one =
      Steps(cluster).message(0, 3, kMb, 1).message(0, 3, kMb, 2).wait(3, 1).wait(3, 2);
  EXPECT_NEAR(one.time_us(), 5000, 1e-6);
}

TEST(ChunkMachine, ADeviceWaitsForItsHostOnlyIfItHasNothingLeftToDo) {
  const Cluster cluster = plain_cluster(1, 1);
  EXPECT_EQ(Steps(cluster).compute(0, 1, 5).compute(0, 1, 5).time_us(), 11);
  EXPECT_EQ(Steps(cluster).compute(0, 8, 5).compute(0, 1, 5).time_us(), 14);
}

TEST(ChunkMachine, HostsIssueTheRoundsOfACallAhead) {
  const Cluster cluster = plain_cluster(1, 1);
  NetworkProgram round = {.devices = {{{.duration_us = 20, .host_us = 5}}}};
  EXPECT_EQ(chunk_time_us({round, round}, cluster), 5 + 20 + 20);
  NetworkProgram other = round;
  other.call = 1;
  EXPECT_EQ(chunk_time_us({round, other}, cluster), 2 * (5 + 20));
}

TEST(ChunkMachine, SaysWhoWaitsForever) {
  Cluster cluster = plain_cluster(1, 2);
  cluster.launches = LaunchOrder::kGrouped;
  // Each device moves first what the other moves last.
  Steps steps(cluster);
  steps.launch(0, 1);
  steps.message(0, 1, kMb, 2).message(0, 1, kMb, 1).wait(1, 1);
  EXPECT_THAT([&] { static_cast<void>(steps.time_us()); },
              ThrowsMessage<InvalidPlan>(HasSubstr("rank 1 waits forever at instruction 2")));
}

TEST(ChunkMachine, RefusesClustersWhoseTransfersChangeCompute) {
  for (double Cluster::*constant : {&Cluster::sm_fraction, &Cluster::transfer_compute_us_per_mb,
                                    &Cluster::compute_slots_per_node}) {
    Cluster cluster = plain_cluster(1, 2);
    cluster.*constant = 0.5;
    const std::string name = constant == &Cluster::sm_fraction                  ? "sm_fraction"
                             : constant == &Cluster::transfer_compute_us_per_mb ? "transfer_compute"
                                                                                : "compute_slots";
    EXPECT_THAT([&] { static_cast<void>(Steps(cluster).time_us()); },
                ThrowsMessage<InvalidArgument>(HasSubstr(name)));
  }
}

TEST(ChunkMachine, RefusesChunksAndWindowsThatHoldNothing) {
  const Cluster cluster = plain_cluster(1, 2);
  EXPECT_THROW(static_cast<void>(Steps(cluster).time_us({.chunk_bytes = 0})), InvalidArgument);
  EXPECT_THROW(static_cast<void>(Steps(cluster).time_us({.window = 0})), InvalidArgument);
}

}  // namespace
}  // namespace contextile
