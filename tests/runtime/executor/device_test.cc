// Plans on a device: the executor, its kernels and transfers over streams, recorded, checked for
// races and run late by the CPU (support/host_driver.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "contextile/advanced/executor.h"
#include "contextile/advanced/oracle.h"
#include "contextile/extend/plan_build.h"
#include "contextile/planner.h"
#include "runtime/cuda/device_ranks.h"
#include "support/device_cases.h"
#include "support/host_driver.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

using cuda::DeviceRanks;
using cuda::HostDriver;
using ::testing::IsEmpty;
using ::testing::Not;

class PlansOnADevice : public ::testing::TestWithParam<DeviceCase> {};

// If only streams and events order the work, it gives the same bits as ranks of the CPU one after
// another, and no thread waits for the device inside a call.
TEST_P(PlansOnADevice, RunWithoutRacesAndGiveTheBitsOfTheHost) {
  const std::shared_ptr<const Plan> plan = plan_of_case(GetParam());
  RunOptions options;
  options.compare = false;
  const InprocOptions transport;
  HostDriver at_once(HostDriver::Mode::kAtOnce);
  DeviceRanks on_host(at_once, transport);
  options.host = &on_host;
  const std::uint64_t expected = run_plan(plan, options).masks.at(0).result_bits;
  for (std::uint64_t seed = 0; seed < 2; ++seed) {
    HostDriver driver(HostDriver::Mode::kRecorded, seed);
    DeviceRanks ranks(driver, transport);
    options.host = &ranks;
    EXPECT_EQ(run_plan(plan, options).masks.at(0).result_bits, expected) << "seed " << seed;
    EXPECT_THAT(driver.races(), IsEmpty());
    // Four ranks wait before and after two calls, and for six results, but not inside a call.
    EXPECT_EQ(driver.num_synchronizations(), 4 * (2 * 2 + 6));
    EXPECT_GT(driver.count("forward_bf16_64"), 0);
    EXPECT_GT(driver.count("copy") + driver.count("rows_copy"), 0);
  }
}

TEST_P(PlansOnADevice, StayWithinTheBoundOfTheirDtype) {
  const auto plan = plan_of_case(GetParam(), small_shape(Dtype::kF16));
  HostDriver driver(HostDriver::Mode::kRecorded);
  DeviceRanks ranks(driver);
  RunOptions options;
  options.host = &ranks;
  const RunReport report = run_plan(plan, options);
  EXPECT_TRUE(report.ok());
  for (const RunError& error : report.masks.at(0).errors) {
    EXPECT_LE(error.error, error.bound) << error.array;
  }
}

// A block may be split into fewer head groups than the round: its units then take several rows of
// an arena for each token.
TEST(DevicePlans, OfBlocksWithHeadGroupsOfTheirOwnStayWithinTheBound) {
  int found = 0;
  for (std::uint64_t seed = 1; found < 12; ++seed) {
    ASSERT_LT(seed, 400U);
    Chance chance(seed);
    RandomBatch batch = random_batch_of(chance, {.max_tokens = 40, .ranks = {2, 3, 4}});
    batch.workload.shape.head_dim = batch.workload.shape.value_dim = 64;
    batch.workload.shape.dtype = Dtype::kF16;
    const auto plan = std::make_shared<const Plan>(
        build_plan(batch.workload, batch.cluster, random_arrangement(chance, batch)));
    if (!has_block_head_groups(*plan)) continue;
    ++found;
    SCOPED_TRACE(seed);
    HostDriver driver(HostDriver::Mode::kAtOnce);
    DeviceRanks ranks(driver);
    RunOptions options;
    options.host = &ranks;
    const RunReport report = run_plan(plan, options);
    for (const MaskRun& mask : report.masks) {
      for (const RunError& error : mask.errors) EXPECT_LE(error.error, error.bound) << error.array;
    }
  }
}

// The check finds what it looks for: if the streams for attention, or those for moves, do not wait,
// operations touch the same memory in no order. The CPU's kernel for f16 rounds no weights, the
// device's does, so its bound counts.
TEST(DeviceBounds, AreThoseOfTheKernelThatRan) {
  HostDriver driver(HostDriver::Mode::kAtOnce);
  DeviceRanks ranks(driver);
  RunOptions options;
  options.host = &ranks;
  const RunReport report =
      run_plan(plan_of_case({"zigzag", "causal"}, small_shape(Dtype::kF16)), options);
  for (const RunError& error : report.masks.at(0).errors) {
    EXPECT_GE(error.bound, error.array == "lse" ? 0x1p-18 : 0x1p-10) << error.array;
    EXPECT_LE(error.error, error.bound) << error.array;
  }
}

TEST(RecordedDevice, AForgottenWaitIsARace) {
  const auto plan = plan_of_case({"ring", "causal"});
  RunOptions options;
  options.compare = false;
  for (const std::int32_t kind : {0, 1}) {  // a rank's streams are made in this order
    HostDriver driver(HostDriver::Mode::kRecorded);
    driver.forget_waits_of([=](cuda::Stream stream) { return stream.id % 2 == kind; });
    DeviceRanks ranks(driver);
    options.host = &ranks;
    static_cast<void>(run_plan(plan, options));
    EXPECT_THAT(driver.races(), Not(IsEmpty())) << kind;
  }
}

// Memory that is used after its end, or never was memory, is a fault.
TEST(RecordedDevice, MemoryThatIsGoneIsAFault) {
  HostDriver driver(HostDriver::Mode::kRecorded);
  const cuda::Stream stream = driver.create_stream();
  std::byte* memory = driver.allocate_on(stream, 64);
  driver.fill(stream, memory, 0, 64);
  EXPECT_THAT(driver.races(), IsEmpty());
  driver.fill(stream, memory, 0, 65);
  EXPECT_EQ(driver.races().size(), 1U);
  driver.free_on(stream, memory);
  driver.fill(stream, memory, 0, 64);
  EXPECT_EQ(driver.races().size(), 2U);
}

INSTANTIATE_TEST_SUITE_P(Strategies, PlansOnADevice, ::testing::ValuesIn(device_cases()));

}  // namespace
}  // namespace contextile
