// Plans on a device: the executor, its kernels and transfers over streams, recorded, checked for
// races and run late by the CPU (support/host_driver.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "contextile/advanced/oracle.h"
#include "contextile/executor.h"
#include "contextile/planner.h"
#include "runtime/cuda/device_ranks.h"
#include "support/batches.h"
#include "support/host_driver.h"

namespace contextile {
namespace {

using cuda::DeviceRanks;
using cuda::HostDriver;
using ::testing::IsEmpty;
using ::testing::Not;

AttentionShape small_shape(Dtype dtype) {
  AttentionShape shape;
  shape.q_heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = shape.value_dim = 64;
  shape.dtype = dtype;
  return shape;
}

std::shared_ptr<const Plan> plan_of(const std::string& strategy, const std::string& mask,
                                    const AttentionShape& shape) {
  const Workload workload = batch_of({300, 37, 190}, mask, shape);
  return plan_and_check(workload, cluster_of(1, 4), parse_strategies(strategy).at(0), {}).plan;
}

struct Case {
  std::string strategy;
  std::string mask;
};

class PlansOnADevice : public ::testing::TestWithParam<Case> {};

// If only streams and events order the work, it gives the same bits as ranks of the CPU one after
// another, and no thread waits for the device inside a call.
TEST_P(PlansOnADevice, RunWithoutRacesAndGiveTheBitsOfTheHost) {
  const auto& [strategy, mask] = GetParam();
  AttentionShape shape = small_shape(Dtype::kBf16);
  shape.sink = mask == "lambda:16,100";
  const std::shared_ptr<const Plan> plan = plan_of(strategy, mask, shape);
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
  const auto& [strategy, mask] = GetParam();
  const auto plan = plan_of(strategy, mask, small_shape(Dtype::kF16));
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

// The check finds what it looks for: if the streams for attention, or those for moves, do not wait,
// operations touch the same memory in no order. The CPU's kernel for f16 rounds no weights, the
// device's does, so its bound counts.
TEST(DeviceBounds, AreThoseOfTheKernelThatRan) {
  HostDriver driver(HostDriver::Mode::kAtOnce);
  DeviceRanks ranks(driver);
  RunOptions options;
  options.host = &ranks;
  const RunReport report = run_plan(plan_of("zigzag", "causal", small_shape(Dtype::kF16)), options);
  for (const RunError& error : report.masks.at(0).errors) {
    EXPECT_GE(error.bound, error.array == "lse" ? 0x1p-18 : 0x1p-10) << error.array;
    EXPECT_LE(error.error, error.bound) << error.array;
  }
}

TEST(RecordedDevice, AForgottenWaitIsARace) {
  const auto plan = plan_of("ring", "causal", small_shape(Dtype::kBf16));
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

INSTANTIATE_TEST_SUITE_P(Strategies, PlansOnADevice,
                         ::testing::Values(Case{"ring", "causal"}, Case{"zigzag", "full"},
                                           Case{"double_ring", "causal"},
                                           Case{"hybrid", "lambda:16,100"},
                                           Case{"dcp:relays=on", "causal"},
                                           Case{"fcp:block=64", "shared_question"},
                                           Case{"magi:chunk=64", "causal_blockwise:32,2,1"},
                                           Case{"distca:granularity=16", "causal"},
                                           Case{"auto:steps=20000,candidates=own", "causal"}));

}  // namespace
}  // namespace contextile
