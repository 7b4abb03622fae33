#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "contextile/plan.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

TEST(Verify, TheExampleIsClean) {
  const VerifyReport report = verify(example_plan());
  EXPECT_TRUE(report.ok()) << violations_text(report);
  EXPECT_THAT(report.warnings, testing::IsEmpty());
}

TEST(Verify, PlansOfEveryStrategyAreClean) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Chance chance(seed);
    const RandomBatch batch = random_batch_of(chance, {.homes = true});
    for (const NamedPlan& named : plans_of_every_strategy(chance, batch)) {
      SCOPED_TRACE(fmt::format("seed {}: {} of {}", seed, named.name, batch.text));
      const VerifyReport report = verify(named.plan);
      ASSERT_TRUE(report.ok()) << violations_text(report);
    }
  }
}

}  // namespace
}  // namespace contextile
