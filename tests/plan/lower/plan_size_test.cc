#include "plan/lower/plan_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <variant>
#include <vector>

#include "base/out_of_memory.h"
#include "contextile/cluster.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/planner.h"
#include "contextile/workload.h"

namespace contextile {
namespace {

// Counts what a built plan has.
PlanSize counted(const Plan& plan) {
  PlanSize size;
  for (const PlanRound& round : plan.rounds) {
    for (const DeviceProgram& device : round.devices) {
      for (const ProgramPair& pair : device.programs) {
        for (const Direction direction : kDirections) {
          if (!pair.of(direction)) continue;
          for (const Instruction& instruction : pair.of(direction)->instructions) {
            if (const auto* attention = std::get_if<AttentionOp>(&instruction)) {
              ++size.calls;
              size.tiles += std::ssize(attention->tiles);
            } else if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
              ++size.launches;
              size.transfers += std::ssize(launch->sends);
            }
          }
        }
      }
    }
  }
  return size;
}

class PlanSizes : public testing::TestWithParam<const char*> {
 protected:
  const MaskUse causal_ = parse_mask_use("causal");
  const std::vector<std::int64_t> lengths_ = {16384, 3000};
  const Workload workload_ = make_workload(lengths_, {}, {&causal_, 1});
  const Cluster cluster_ = load_cluster("dgx-h200:2x4");
  const Arrangement arrangement_ =
      find_strategy(GetParam()).arrange(workload_, cluster_, StrategyRequest{});
};

TEST_P(PlanSizes, AreThoseOfThePlan) {
  const PlanSize expected = counted(build_plan(workload_, cluster_, arrangement_));
  const PlanSize found = size_of_plan(arrangement_, cluster_.num_devices());
  EXPECT_EQ(found.tiles, expected.tiles);
  EXPECT_EQ(found.calls, expected.calls);
  EXPECT_EQ(found.transfers, expected.transfers);
  EXPECT_LE(found.launches, expected.launches);
  EXPECT_GE(2 * found.launches, expected.launches);
}

TEST_P(PlanSizes, AreRefusedOnlyIfTheyDoNotFit) {
  const std::int64_t least = size_of_plan(arrangement_, cluster_.num_devices()).least_bytes();
  EXPECT_NO_THROW(check_memory_for_plan(arrangement_, cluster_.num_devices(), least));
  EXPECT_NO_THROW(check_memory_for_plan(arrangement_, cluster_.num_devices(),
                                        std::numeric_limits<std::int64_t>::max()));
  try {
    check_memory_for_plan(arrangement_, cluster_.num_devices(), least - 1);
    FAIL() << "expected OutOfMemory";
  } catch (const OutOfMemory& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("launches on 8 devices: it takes at least"));
  }
}

INSTANTIATE_TEST_SUITE_P(All, PlanSizes, testing::Values("zigzag", "magi", "dcp"));

}  // namespace
}  // namespace contextile
