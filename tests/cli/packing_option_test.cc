// --packing: its effect on batches, and the options that it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"

namespace contextile {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Steps of two batches of 10 tokens.
constexpr const char* kLengths = "8\n2\n3\n3\n4\n9\n1\n6\n4\n";
constexpr const char* kSteps = "wlb:micro_batches=2,max_tokens=14,levels=8,balance=4";

class PackingOption : public ProgramTest {
 protected:
  [[nodiscard]] Outcome plan_with(const std::string& packing, const std::string& batches) const {
    return contextile({"plan", "-o", path("p.plan"), "--lengths", file("l", kLengths), "--tokens",
                       "10", "--batches", batches, "--cluster", "local:1x2", "--packing", packing});
  }
  [[nodiscard]] std::vector<std::int64_t> lengths_of(const std::string& plan) const {
    std::vector<std::int64_t> lengths;
    for (const Range& sequence : load_plan(path(plan)).sequences)
      lengths.push_back(sequence.size());
    return lengths;
  }
};

TEST_F(PackingOption, MakesEveryMicroBatchABatch) {
  const Outcome outcome = plan_with(kSteps, "4");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(lengths_of("p.plan.0"), ElementsAre(4, 2));
  EXPECT_THAT(lengths_of("p.plan.1"), ElementsAre(3, 3));
  EXPECT_THAT(lengths_of("p.plan.2"), ElementsAre(9, 4, 1));
  EXPECT_THAT(lengths_of("p.plan.3"), ElementsAre(8, 6));
}

TEST_F(PackingOption, TakesDeferOffAndLevelsNone) {
  ASSERT_EQ(plan_with(std::string(kSteps) + ",defer=off", "2").exit_code, 0);
  EXPECT_THAT(lengths_of("p.plan.0"), ElementsAre(8));
  EXPECT_THAT(lengths_of("p.plan.1"), ElementsAre(4, 3, 3, 2));
  ASSERT_EQ(plan_with("wlb:micro_batches=2,levels=none,balance=4", "2").exit_code, 0);
  EXPECT_THAT(lengths_of("p.plan.0"), ElementsAre(8));
}

TEST_F(PackingOption, IsSequentialUnlessSaid) {
  ASSERT_EQ(plan_with("sequential", "2").exit_code, 0);
  EXPECT_THAT(lengths_of("p.plan.0"), ElementsAre(8, 2));
  EXPECT_THAT(lengths_of("p.plan.1"), ElementsAre(3, 3, 4));
}

TEST_F(PackingOption, GivesEveryStrategyOfAComparisonTheSameBatches) {
  const Outcome outcome = contextile({"compare", "--lengths", file("l", kLengths), "--tokens", "10",
                                      "--batches", "4", "--cluster", "local:1x2", "--packing",
                                      kSteps, "--strategy", "wlb,magi:chunk=4", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const auto& strategy : nlohmann::json::parse(outcome.out).at("strategies")) {
    std::vector<std::int64_t> tokens;
    for (const auto& batch : strategy.at("batches")) tokens.push_back(batch.at("tokens"));
    EXPECT_THAT(tokens, ElementsAre(6, 6, 14, 14));
  }
}

TEST_F(PackingOption, RefusesADocumentLongerThanAMicroBatch) {
  expect_bad_input(plan_with("wlb:max_tokens=7,levels=none,micro_batches=2", "1"),
                   {"packing: expected documents of 1 to 7 tokens", "document 0 of 8 tokens"});
}

TEST_F(PackingOption, RefusesLengthsThatEndInAStep) {
  expect_bad_input(plan_with(kSteps, "5"), {"expected 60 tokens for 3 steps of 2 batches of 10",
                                            "found 40 in 9 documents"});
  expect_bad_input(contextile({"plan", "-o", path("p.plan"), "--lengths", file("l", kLengths),
                               "--packing", "wlb"}),
                   {"tokens: expected 1 to", "to pack in steps, found 0"});
}

TEST_F(PackingOption, RefusesWhatItDoesNotKnow) {
  expect_bad_input(plan_with("best", "1"),
                   {"--packing: expected sequential or wlb[:key=value,...], found 'best'"});
  expect_bad_input(plan_with("sequential:defer=off", "1"), {"found 'sequential:defer=off'"});
  expect_bad_input(plan_with("wlb:level=8", "1"), {"'level'", "did you mean 'levels'?"});
  expect_bad_input(plan_with("wlb:defer", "1"), {"expected key=value, found 'defer'"});
  expect_bad_input(plan_with("wlb:", "1"), {"expected key=value, found ''"});
  expect_bad_input(plan_with("wlb:defer=maybe", "1"), {"expected on or off, found 'maybe'"});
  expect_bad_input(plan_with("wlb:balance=4,balance=4", "1"), {"every key once", "'balance'"});
  expect_bad_input(plan_with("wlb:levels=8:4", "1"), {"ascending outlier levels", "4 after 8"});
  expect_bad_input(plan_with("wlb:levels=8:", "1"), {"--packing levels", "found ''"});
  expect_bad_input(plan_with("wlb:micro_batches=0", "1"), {"--packing micro_batches", "'0'"});
}

}  // namespace
}  // namespace contextile
