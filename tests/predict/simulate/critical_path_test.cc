// Critical paths and reasons of waits, of programs written by hand and of every strategy's plans.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "contextile/simulate.h"
#include "predict/simulate/programs.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

SimulatedDirection direction_of(const Programs& programs) {
  Machine machine = programs.run({.timeline = true});
  SimulatedDirection direction;
  direction.time_us = machine.time_us();
  direction.devices = machine.devices();
  SimulatedProgram& program = direction.programs.emplace_back();
  program.time_us = machine.time_us();
  program.activities = std::move(machine.activities());
  program.messages = std::move(machine.messages());
  std::ranges::stable_sort(program.activities, {}, &ActivitySpan::device);
  return direction;
}

// "attention 1 [0, 4]": what, on which device, when.
std::vector<std::string> texts_of(const std::vector<PathStep>& steps) {
  std::vector<std::string> texts;
  for (const PathStep& step : steps) {
    texts.push_back(fmt::format("{} {} [{:g}, {:g}]", to_string(step.kind), step.device.value,
                                step.start_us, step.end_us));
  }
  return texts;
}

using Texts = std::vector<std::string>;

TEST(CriticalPath, GoesThroughASlowPeerAndItsMessage) {
  Cluster cluster = plain(1, 2);
  cluster.launch_us = 1;
  cluster.intra_latency_us = 2;
  Programs programs(cluster);
  programs.attention(0, 10).launch(0, 0, {{Rank{1}, 5000}}, {});
  programs.launch(1, 0, {}, {{Rank{0}, 5000}}).attention(1, 3).wait(1, 0).attention(1, 4);
  const SimulatedDirection direction = direction_of(programs);
  EXPECT_EQ(texts_of(critical_path(direction)),
            (Texts{"attention 0 [0, 10]", "launch 0 [10, 11]", "latency 1 [11, 13]",
                   "transfer 1 [13, 18]", "attention 1 [18, 22]"}));
  const std::vector<WaitReason> waits = wait_reasons(direction.programs[0], cluster);
  ASSERT_EQ(waits.size(), 1U);
  EXPECT_EQ(waits[0].peer, Rank{0});
  EXPECT_DOUBLE_EQ(waits[0].peer_us, 7);  // from 4 to 11
  EXPECT_DOUBLE_EQ(waits[0].latency_us, 2);
  EXPECT_DOUBLE_EQ(waits[0].transfer_us, 5);
  EXPECT_DOUBLE_EQ(waits[0].peer_was_us[0], 6);
  EXPECT_DOUBLE_EQ(waits[0].peer_was_us[2], 1);
  EXPECT_EQ(texts_of({waits[0].root()}), (Texts{"attention 0 [4, 10]"}));
  EXPECT_TRUE(waits[0].sharing.empty());
}

TEST(CriticalPath, LeavesOutAMessageThatWasThereInTime) {
  Programs programs(plain(1, 2));
  programs.message(0, 1, 6000, 0).attention(1, 10).wait(1, 0).attention(1, 1);
  const SimulatedDirection direction = direction_of(programs);
  EXPECT_EQ(texts_of(critical_path(direction)),
            (Texts{"attention 1 [0, 10]", "attention 1 [10, 11]"}));
  EXPECT_TRUE(wait_reasons(direction.programs[0], plain(1, 2)).empty());
}

TEST(CriticalPath, FollowsAPeerThatWaitsItselfToTheRoot) {
  const Cluster cluster = plain(1, 3);
  Programs programs(cluster);
  programs.attention(0, 20).launch(0, 0, {{Rank{1}, 1000}}, {});
  programs.launch(1, 0, {}, {{Rank{0}, 1000}}).wait(1, 0).launch(1, 1, {{Rank{2}, 2000}}, {});
  programs.launch(2, 0, {}, {{Rank{1}, 2000}}).attention(2, 3).wait(2, 0);
  const SimulatedDirection direction = direction_of(programs);
  const std::vector<WaitReason> waits = wait_reasons(direction.programs[0], cluster);
  ASSERT_EQ(waits.size(), 2U);
  EXPECT_EQ(waits[1].peer, Rank{1});
  EXPECT_DOUBLE_EQ(waits[1].peer_us, 18);  // from 3 to 21
  EXPECT_DOUBLE_EQ(waits[1].peer_was_us[3], 18);
  EXPECT_EQ(texts_of(waits[1].chain),
            (Texts{"attention 0 [3, 20]", "transfer 1 [20, 21]", "transfer 2 [21, 23]"}));
  EXPECT_EQ(waits[1].root().device, Rank{0});
}

TEST(CriticalPath, NamesTheSlowLinkAndWhoSharesIt) {
  const Cluster cluster = plain(2, 2);  // one uplink of a node
  Programs programs(cluster);
  programs.message(0, 2, 3000, 0).message(1, 3, 3000, 0).wait(2, 0).wait(3, 0);
  const SimulatedDirection direction = direction_of(programs);
  const std::vector<WaitReason> waits = wait_reasons(direction.programs[0], cluster);
  ASSERT_EQ(waits.size(), 2U);
  for (const WaitReason& wait : waits) {
    const MessageSpan& message =
        direction.programs[0].messages[static_cast<std::size_t>(wait.message)];
    EXPECT_EQ(message.bound_by, (NetworkPort{PortKind::kNicOut, 0}));
    EXPECT_DOUBLE_EQ(wait.transfer_us, 6);
    ASSERT_EQ(wait.sharing.size(), 1U);
    EXPECT_EQ(wait.sharing[0], 1 - wait.message);
  }
}

TEST(CriticalPath, SeesThePortThatIsFullForMostOfTheTime) {
  // 0 → 1 moves together with 2 → 1, which fills the port into 1, for 4 µs; then alone for 1: the
  // rest.
  const Cluster cluster = plain(1, 3);
  Programs programs(cluster);
  programs.launch(0, 0, {{Rank{1}, 3000}}, {}).launch(2, 0, {{Rank{1}, 2000}}, {});
  programs.launch(1, 0, {}, {{Rank{0}, 3000}}).launch(1, 1, {}, {{Rank{2}, 2000}});
  programs.wait(1, 0).wait(1, 1);
  const SimulatedDirection direction = direction_of(programs);
  for (const MessageSpan& message : direction.programs[0].messages) {
    EXPECT_EQ(message.bound_by, (NetworkPort{PortKind::kDeviceIn, 1}));
  }
}

TEST(CriticalPath, GoesThroughMessagesThatOthersQueueBehind) {
  Cluster cluster = plain(1, 3);
  cluster.launches = LaunchOrder::kGrouped;
  Programs programs(cluster);
  programs.launch(0, 0, {{Rank{1}, 8000}}, {}).launch(0, 1, {{Rank{2}, 1000}}, {});
  programs.launch(1, 0, {}, {{Rank{0}, 8000}});
  programs.launch(2, 0, {}, {{Rank{0}, 1000}}).wait(2, 0).attention(2, 5);
  const SimulatedDirection direction = direction_of(programs);
  EXPECT_EQ(texts_of(critical_path(direction)),
            (Texts{"transfer 1 [0, 8]", "transfer 2 [8, 9]", "attention 2 [9, 14]"}));
  const std::vector<WaitReason> waits = wait_reasons(direction.programs[0], cluster);
  ASSERT_EQ(waits.size(), 1U);
  EXPECT_DOUBLE_EQ(waits[0].queued_us, 8);
  EXPECT_DOUBLE_EQ(waits[0].transfer_us, 1);
  EXPECT_EQ(texts_of({waits[0].root()}), (Texts{"transfer 1 [0, 8]"}));
}

TEST(CriticalPath, CrossesTheBarrierFromTheSlowestDevice) {
  SimulatedDirection direction =
      direction_of(Programs(plain(1, 2)).attention(0, 3).attention(1, 5));
  const SimulatedDirection next = direction_of(Programs(plain(1, 2)).attention(0, 4));
  direction.programs.push_back(next.programs.front());
  direction.time_us += next.time_us;
  EXPECT_EQ(texts_of(critical_path(direction)),
            (Texts{"attention 1 [0, 5]", "barrier 1 [5, 5]", "attention 0 [5, 9]"}));
}

TEST(CriticalPath, RefusesASimulationWithoutATimeline) {
  const Plan plan = example_plan();
  Cluster cluster;
  cluster.devices_per_node = 2;
  EXPECT_THROW((void)critical_path(*simulate(plan, cluster).forward), InvalidArgument);
}

// ----------------------------------------------------------------------- every strategy's plans

// True if a device's wait for the message ended with it, before an instruction of the device.
bool waits_for(const SimulatedProgram& program, Rank device, const MessageSpan& came) {
  if (device != came.src && device != came.dst) return false;
  const std::int32_t launch = device == came.src ? came.src_launch : came.dst_launch;
  return std::ranges::any_of(program.activities, [&](const ActivitySpan& wait) {
    return wait.device == device && wait.activity == Activity::kExposed && wait.launch == launch &&
           wait.end_us == came.end_us;
  });
}

// Expects that an independent reading of the simulation allows the two steps to follow each other.
void expect_depends(const SimulatedProgram& program, const PathStep& before, const PathStep& step) {
  const auto message = [&](const PathStep& of) -> const MessageSpan& {
    return program.messages[static_cast<std::size_t>(of.message)];
  };
  const auto span = [&](const PathStep& of) -> const ActivitySpan& {
    return program.activities[static_cast<std::size_t>(of.activity)];
  };
  if (before.message >= 0 && step.message == before.message) {
    EXPECT_EQ(before.kind, StepKind::kLatency);
    EXPECT_EQ(step.kind, StepKind::kTransfer);
  } else if (before.message >= 0 && step.message >= 0) {
    const MessageSpan& first = message(before);
    const MessageSpan& second = message(step);
    if (second.queued_after < 0) {  // launched, without a cost, by a device that waited
      EXPECT_TRUE(waits_for(program, second.opener, first));
    } else {  // it queued behind the other's launch, of an end that they share
      EXPECT_TRUE((first.src == second.opener && first.src_launch == second.queued_after) ||
                  (first.dst == second.opener && first.dst_launch == second.queued_after));
    }
  } else if (before.message >= 0) {
    EXPECT_TRUE(waits_for(program, step.device, message(before)));
  } else if (step.message >= 0) {
    EXPECT_EQ(message(step).opener, before.device);
    EXPECT_LT(message(step).queued_after, 0);
  } else {
    EXPECT_EQ(before.device, step.device);
    EXPECT_LT(span(before).instruction, span(step).instruction);
  }
}

void expect_path(const SimulatedDirection& simulated) {
  const std::vector<PathStep> path = critical_path(simulated);
  if (simulated.time_us == 0) return;
  ASSERT_FALSE(path.empty());
  EXPECT_EQ(path.front().start_us, 0);
  EXPECT_EQ(path.back().end_us, simulated.time_us);
  double sum_us = 0;
  for (std::size_t i = 0; i < path.size(); ++i) {
    EXPECT_GE(path[i].end_us, path[i].start_us);
    sum_us += path[i].end_us - path[i].start_us;
    if (i == 0) continue;
    EXPECT_EQ(path[i - 1].end_us, path[i].start_us);  // the same bits
    if (path[i].kind == StepKind::kBarrier || path[i - 1].kind == StepKind::kBarrier) continue;
    EXPECT_EQ(path[i - 1].program, path[i].program);
    expect_depends(simulated.programs[static_cast<std::size_t>(path[i].program)], path[i - 1],
                   path[i]);
  }
  EXPECT_NEAR(sum_us, simulated.time_us, 1e-9 * simulated.time_us);
}

void expect_waits(const SimulatedDirection& simulated, const Cluster& cluster) {
  for (const SimulatedProgram& program : simulated.programs) {
    std::size_t waits = 0;
    for (const ActivitySpan& span : program.activities) {
      waits += span.activity == Activity::kExposed ? 1 : 0;
    }
    const std::vector<WaitReason> reasons = wait_reasons(program, cluster);
    EXPECT_EQ(reasons.size(), waits);
    for (const WaitReason& reason : reasons) {
      const ActivitySpan& wait = program.activities[static_cast<std::size_t>(reason.activity)];
      const double us = wait.end_us - wait.start_us;
      const double tolerance = 1e-9 * program.time_us;
      EXPECT_NEAR(reason.peer_us + reason.queued_us + reason.latency_us + reason.transfer_us, us,
                  tolerance);
      EXPECT_NE(reason.peer, wait.device);
      double was_us = 0;
      for (const double part : reason.peer_was_us) was_us += part;
      EXPECT_NEAR(was_us, reason.peer_us, tolerance);
      ASSERT_FALSE(reason.chain.empty());
      EXPECT_EQ(reason.chain.front().start_us, wait.start_us);
      EXPECT_EQ(reason.chain.back().end_us, wait.end_us);
      for (std::size_t i = 1; i < reason.chain.size(); ++i) {
        EXPECT_EQ(reason.chain[i - 1].end_us, reason.chain[i].start_us);
        expect_depends(program, reason.chain[i - 1], reason.chain[i]);
      }
    }
  }
}

// Clusters that differ in what a path can go through.
Cluster varied(Cluster cluster, int i) {
  cluster.launches = i % 2 == 0 ? LaunchOrder::kConcurrent : LaunchOrder::kGrouped;
  if (i % 3 == 1) cluster.launch_us = cluster.intra_latency_us = cluster.inter_latency_us = 0;
  if (i % 5 == 2) cluster.sm_fraction = 0.25;
  if (i % 5 == 3) cluster.transfer_compute_us_per_mb = 3;
  if (i % 5 == 3) cluster.compute_slots_per_node = 1;
  if (i % 4 == 3) cluster.intra_gbytes_per_s = cluster.inter_gbytes_per_s_per_node = 0.1;
  cluster.rails = i % 7 == 6;
  cluster.nics_per_node = i % 3 == 2 ? cluster.devices_per_node : 1;
  if (i % 4 == 1) cluster.flow_gbytes_per_s = {{.nodes = 2, .gbytes_per_s = 0.05}};
  return cluster;
}

TEST(CriticalPath, OfEveryStrategyAddsUpAndEachStepDependsOnTheOneBefore) {
  Chance chance(5);
  std::int64_t plans = 0;
  std::int64_t steps = 0;
  for (int i = 0; i < 30; ++i) {
    const RandomBatch batch = random_batch_of(chance);
    const Cluster cluster = varied(batch.cluster, i);
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(fmt::format("{}: {}, {}", i, batch.text, named.name));
      const Simulation simulation = simulate(named.plan, cluster, {.timeline = true});
      for (const auto& [direction, simulated] : simulation.directions()) {
        expect_path(*simulated);
        expect_waits(*simulated, cluster);
        steps += static_cast<std::int64_t>(critical_path(*simulated).size());
      }
      ++plans;
    }
  }
  EXPECT_GT(plans, 200);
  EXPECT_GT(steps, 10 * plans);
}

}  // namespace
}  // namespace contextile
