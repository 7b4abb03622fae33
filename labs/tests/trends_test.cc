// Claims about all settings of DistCA together.
#include "labs/papers/distca/trends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace contextile {
namespace {

using testing::HasSubstr;

DistcaOutcome outcome(const std::string& dataset, std::int32_t devices, std::int64_t max_length,
                      double gain) {
  return {.model = "llama-34b",
          .dataset = dataset,
          .devices = devices,
          .max_length = max_length,
          .tokens = 1000.0 * devices,
          .wlb_us = 100 * gain,
          .distca_us = 100};
}

TEST(DistcaTrends, CountTheSettingsThatAreFaster) {
  const std::vector<DistcaOutcome> outcomes = {outcome("pretrain", 64, 1024, 1.2),
                                               outcome("pretrain", 128, 1024, 1.0),
                                               outcome("pretrain", 256, 1024, 1.1)};
  EXPECT_EQ(faster_everywhere(outcomes).ours, "in 2 of 3 settings");
  EXPECT_FALSE(faster_everywhere(outcomes).agrees);
  EXPECT_TRUE(faster_in_most(outcomes, "llama-34b").agrees);
  EXPECT_EQ(faster_in_most(outcomes, "llama-3-8b").ours, "in 0 of 0 settings");
  EXPECT_FALSE(faster_in_most(outcomes, "llama-3-8b").agrees);
}

TEST(DistcaTrends, CompareTheDatasetsOverAllSettings) {
  std::vector<DistcaOutcome> outcomes = {
      outcome("pretrain", 64, 1024, 1.3), outcome("prolong", 64, 1024, 1.1),
      outcome("pretrain", 128, 1024, 1.0), outcome("prolong", 128, 1024, 1.1)};
  const std::vector<Finding> findings = more_on_pretrain(outcomes);
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].ours, "1.15x and 1.10x on average; more in 1 of 2 settings");
  EXPECT_TRUE(findings[0].agrees);
  outcomes.pop_back();
  EXPECT_TRUE(more_on_pretrain(outcomes).empty()) << "one dataset has fewer settings";
}

TEST(DistcaTrends, NeedAnOrderOverEveryLength) {
  const std::vector<DistcaOutcome> outcomes = {
      outcome("pretrain", 64, 131072, 1.0), outcome("pretrain", 64, 262144, 1.3),
      outcome("pretrain", 64, 524288, 1.2), outcome("pretrain", 128, 524288, 1.6)};
  const Finding rises = length_finding(outcomes, {"llama-34b", LengthTrend::kRises});
  EXPECT_EQ(rises.ours, "1.00x at 128K, 1.30x at 256K, 1.40x at 512K");
  EXPECT_TRUE(rises.agrees);
  EXPECT_FALSE(length_finding(outcomes, {"llama-34b", LengthTrend::kFalls}).agrees);
  const std::vector<DistcaOutcome> first(outcomes.begin(), outcomes.begin() + 3);
  EXPECT_FALSE(length_finding(first, {"llama-34b", LengthTrend::kRises}).agrees);
}

TEST(DistcaTrends, CompareThroughputsOfADeviceOnTheMostDevicesAndTheFewest) {
  std::vector<DistcaOutcome> outcomes = {outcome("pretrain", 64, 1024, 1.2),
                                         outcome("pretrain", 256, 1024, 1.5)};
  outcomes[1].distca_us = 110;  // a device keeps 91% of its throughput; WLB's keeps 80%
  const std::vector<Finding> findings = scaling_findings(outcomes);
  ASSERT_EQ(findings.size(), 2U);
  EXPECT_THAT(findings[0].ours, HasSubstr("91% of its tokens/s"));
  EXPECT_THAT(findings[0].ours, HasSubstr("WLB's 80%"));
  EXPECT_TRUE(findings[0].agrees);
  EXPECT_TRUE(findings[1].agrees);
  outcomes[1].distca_us = 130;
  EXPECT_FALSE(scaling_findings(outcomes)[0].agrees);
  EXPECT_FALSE(scaling_findings(outcomes)[1].agrees);
  outcomes.pop_back();
  EXPECT_TRUE(scaling_findings(outcomes).empty()) << "one number of devices";
}

}  // namespace
}  // namespace contextile
