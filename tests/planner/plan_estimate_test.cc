#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "contextile/mask.h"
#include "contextile/planner.h"
#include "contextile/workload.h"
#include "support/batches.h"

namespace contextile {
namespace {

using testing::HasSubstr;

TEST(PlanEstimate, IsNearTheNumberOfTilesOfEveryMask) {
  for (const char* mask : {"causal", "full", "sliding_window:300", "lambda:64,500",
                           "causal_blockwise:256,2,1", "shared_question:0.2,4", "chunked:700"}) {
    for (const std::int64_t block : {16, 128, 1024}) {
      SCOPED_TRACE(fmt::format("{} in blocks of {}", mask, block));
      const Workload workload = batch_of({9000, 300, 2500, 120, 4100, 16000, 70, 1900}, mask);
      const Blocking blocks = cut_sequences(workload, block);
      const auto tiles =
          static_cast<double>(TileIndex(workload.masks[0].mask, blocks).tiles().size());
      const double estimate = estimated_tiles(workload, block);
      EXPECT_GT(estimate, tiles / 2);
      EXPECT_LT(estimate, tiles * 2 + 50);
    }
  }
}

std::string message(const Workload& workload, const Cluster& cluster, std::int64_t block) {
  try {
    check_plan_size(workload, cluster, block);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(PlanEstimate, RefusesWhatNoMachineHoldsAndSaysWhatWouldFit) {
  const Workload million = batch_of({1 << 20});
  EXPECT_EQ(message(million, cluster_of(4, 8), 0), "");
  EXPECT_EQ(message(million, cluster_of(64, 8), 128), "");
  EXPECT_THAT(message(million, cluster_of(4, 8), 1),
              HasSubstr("found about 5.5e+11 (1048576 tokens in blocks of 1); blocks of 64 would "
                        "make 1.3e+08"));
  EXPECT_THAT(message(million, cluster_of(8192, 8), 1024),
              HasSubstr("found 4.3e+09 (65536 devices)"));
}

}  // namespace
}  // namespace contextile
