// Calls that are captured as graphs and replayed: the results have the same bits as those of calls
// that run, the order is one that streams and events allow, and captures hold only what they may.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/planner.h"
#include "runtime/cuda/device_ranks.h"
#include "support/device_calls.h"
#include "support/device_cases.h"
#include "support/host_driver.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using cuda::DeviceRanks;
using cuda::HostDriver;
using cuda::Program;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ReplayedCalls : public ::testing::TestWithParam<std::tuple<Program, DeviceCase>> {};

// The first call of each direction is captured, the second is one graph. Inputs have changed in
// between, but not their places. Lists and maps of wgmma are made and uploaded inside of calls.
TEST_P(ReplayedCalls, GiveTheBitsOfCallsThatRunWithoutRaces) {
  const auto& [program, batch] = GetParam();
  const auto plan = plan_of_case(batch);
  HostDriver at_once(HostDriver::Mode::kAtOnce);
  DeviceRanks run_ranks(at_once, {}, program, Graphs::kOff);
  DeviceCalls run(run_ranks, plan);
  HostDriver driver(HostDriver::Mode::kRecorded, 3);
  DeviceRanks ranks(driver, {}, program, Graphs::kOn);
  DeviceCalls calls(ranks, plan);
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    EXPECT_TRUE(results_of(calls, seed) == results_of(run, seed)) << seed;
    for (std::size_t r = 0; r < run.stats().size(); ++r) {
      EXPECT_EQ(calls.stats()[r].sent_bytes, run.stats()[r].sent_bytes);
      EXPECT_EQ(calls.stats()[r].received_bytes, run.stats()[r].received_bytes);
    }
  }
  EXPECT_EQ(driver.count("graph end"), 4);
  EXPECT_THAT(driver.races(), IsEmpty());
}

TEST(CallGraphs, AreOfCallsThatComeAgainUnlessAllAreWanted) {
  const auto plan = plan_of_case({"hybrid", "lambda:16,100"});
  HostDriver at_once(HostDriver::Mode::kAtOnce);
  DeviceRanks ranks(at_once, {}, Program::kMma, Graphs::kAuto);
  DeviceCalls calls(ranks, plan);
  DeviceRanks run_ranks(at_once, {}, Program::kMma, Graphs::kOff);
  DeviceCalls run(run_ranks, plan);
  const std::vector<std::int64_t> graphs_so_far = {0, 2, 4};
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    EXPECT_TRUE(results_of(calls, seed) == results_of(run, seed)) << seed;
    EXPECT_EQ(at_once.num_graph_launches(), graphs_so_far[seed]);
  }
  // Tensors in another place are another call, and so is another plan.
  calls.move_tensors();
  EXPECT_TRUE(results_of(calls, 7) == results_of(run, 7));
  EXPECT_EQ(at_once.num_graph_launches(), 4);
  EXPECT_TRUE(results_of(calls, 8) == results_of(run, 8));
  EXPECT_EQ(at_once.num_graph_launches(), 6);
  calls.prepare(plan);
  EXPECT_TRUE(results_of(calls, 9) == results_of(run, 9));
  EXPECT_EQ(at_once.num_graph_launches(), 6);
}

INSTANTIATE_TEST_SUITE_P(Strategies, ReplayedCalls,
                         ::testing::Combine(::testing::Values(Program::kMma, Program::kWgmma),
                                            ::testing::ValuesIn(device_cases())));

// Whole runs keep tensors in place, so repetitions are calls that come again.
TEST(CallGraphs, RepetitionsOfARunAreReplayed) {
  const auto plan = plan_of_case({"zigzag", "causal"});
  HostDriver driver(HostDriver::Mode::kAtOnce);
  RunOptions options;
  options.compare = false;
  options.repeats = 3;
  std::vector<std::uint64_t> bits;
  for (const Graphs graphs : {Graphs::kOff, Graphs::kAuto}) {
    DeviceRanks ranks(driver, {}, Program::kMma, graphs);
    options.host = &ranks;
    const RunReport report = run_plan(plan, options);
    bits.push_back(report.masks.at(0).result_bits);
    EXPECT_EQ(report.masks[0].sent_bytes_forward, report.masks[0].predicted_bytes_forward);
  }
  EXPECT_EQ(bits[0], bits[1]);
  EXPECT_EQ(driver.num_graph_launches(), 2 * 2);
}

// The check looks into graphs: if streams forget to wait in a capture, its replay races.
TEST(CallGraphs, AForgottenWaitIsARaceInsideAGraph) {
  HostDriver driver(HostDriver::Mode::kRecorded);
  driver.forget_waits_of([](cuda::Stream stream) { return stream.id < 8 && stream.id % 2 == 0; });
  DeviceRanks ranks(driver, {}, Program::kMma, Graphs::kOn);
  DeviceCalls calls(ranks, plan_of_case({"ring", "causal"}));
  calls.set_inputs(1);
  calls.forward();
  EXPECT_THAT(driver.races(), Not(IsEmpty()));
}

// A graph runs after all work that the streams of all ranks were given, and they go on after it.
TEST(CallGraphs, OneReplayStandsBetweenWhatComesBeforeAndAfter) {
  HostDriver driver(HostDriver::Mode::kRecorded);
  DeviceRanks ranks(driver, {}, Program::kMma, Graphs::kOn);
  DeviceCalls calls(ranks, plan_of_case({"zigzag", "causal"}));
  for (std::uint64_t seed = 0; seed < 3; ++seed) {  // results are overwritten and inputs rewritten
    calls.set_inputs(seed);
    calls.forward();
  }
  EXPECT_THAT(driver.races(), IsEmpty());
  const std::int64_t before = driver.num_calls();
  calls.forward();
  // A record and a wait before and after it for each of 8 streams, except that one event serves
  // all.
  EXPECT_EQ(driver.num_calls() - before, 8 + 8 + 1 + 1 + 8);
}

// A rank that fails in a capture fails the group as always, and the capture does not stay.
TEST(CallGraphs, AFailureInACaptureEndsIt) {
  HostDriver driver(HostDriver::Mode::kAtOnce);
  DeviceRanks ranks(driver, {}, Program::kMma, Graphs::kOn);
  const auto plan = plan_of_case({"ring", "causal"});
  {
    DeviceCalls calls(ranks, plan);
    calls.set_inputs(1);
    calls.fail_at_step(2, "attention");
    EXPECT_THAT(message_of<std::runtime_error>([&] { calls.forward(); }), HasSubstr("given up"));
  }
  DeviceCalls calls(ranks, plan);
  DeviceRanks run_ranks(driver, {}, Program::kMma, Graphs::kOff);
  DeviceCalls run(run_ranks, plan);
  EXPECT_TRUE(results_of(calls, 5) == results_of(run, 5));
}

class Captures : public ::testing::TestWithParam<HostDriver::Mode> {};

TEST_P(Captures, KeepWorkOfStreamsThatJoinAndDoItAgain) {
  HostDriver driver(GetParam());
  const cuda::Stream first = driver.create_stream();
  const cuda::Stream second = driver.create_stream();
  const cuda::Event fork = driver.create_event();
  const cuda::Event join = driver.create_event();
  std::byte* const memory = driver.allocate_on(first, 2);
  driver.fill(first, memory, 0, 2);
  driver.begin_capture(first);
  const cuda::StreamMemory near(driver, first, 1);
  driver.fill(first, near.data(), 7, 1);
  driver.record(fork, first);
  driver.wait(second, fork);
  driver.copy(second, memory, near.data(), 1);
  driver.record(join, second);
  driver.wait(first, join);
  driver.copy(first, memory + 1, memory, 1);
  const cuda::Graph graph = driver.end_capture(first);
  const auto read = [&] {
    std::vector<std::byte> bytes(2);
    driver.read(first, bytes, memory);
    return bytes;
  };
  EXPECT_EQ(read(), std::vector<std::byte>(2));
  for (int turn = 0; turn < 2; ++turn) {
    driver.fill(first, memory, 0, 2);
    driver.launch_graph(first, graph);
    EXPECT_EQ(read(), std::vector<std::byte>(2, std::byte{7}));
  }
  EXPECT_THAT(driver.races(), IsEmpty());
  driver.free_graph(graph);
}

TEST_P(Captures, RefuseWhatDevicesRefuse) {
  HostDriver driver(GetParam());
  const cuda::Stream stream = driver.create_stream();
  const cuda::Stream other = driver.create_stream();
  const cuda::Event outside = driver.create_event();
  const cuda::Event inside = driver.create_event();
  const auto refusal = [](const auto& work) { return message_of<DeviceError>(work); };
  driver.record(outside, other);
  driver.begin_capture(stream);
  EXPECT_THAT(refusal([&] { driver.synchronize(stream); }), HasSubstr("synchronize in a capture"));
  EXPECT_THAT(refusal([&] { driver.wait(stream, outside); }), HasSubstr("outside of the capture"));
  EXPECT_THAT(refusal([&] { driver.begin_capture(other); }), HasSubstr("under way"));
  driver.record(inside, stream);
  EXPECT_THAT(refusal([&] { static_cast<void>(driver.is_done(inside)); }), HasSubstr("never done"));
  driver.wait(other, inside);
  EXPECT_THAT(refusal([&] { static_cast<void>(driver.end_capture(stream)); }),
              HasSubstr("without a stream that took part"));
  EXPECT_THAT(refusal([&] { driver.wait(other, inside); }), HasSubstr("capture that is over"));
}

INSTANTIATE_TEST_SUITE_P(Modes, Captures,
                         ::testing::Values(HostDriver::Mode::kAtOnce, HostDriver::Mode::kRecorded));

}  // namespace
}  // namespace contextile
