#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "contextile/plan.h"
#include "contextile/plan_file.h"
#include "support/plan_support.h"

namespace contextile {
namespace {

namespace fs = std::filesystem;

Plan signed_example() {
  Plan plan = example_plan();
  plan.digest = compute_digest(plan);
  return plan;
}

class PlanStorage : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              (std::string("contextile_") +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }

  fs::path folder_;
};

TEST_F(PlanStorage, LoadsWhatItSavedAndLeavesNothingElse) {
  const Plan plan = signed_example();
  save_plan(plan, path("a.plan"));
  save_plan(plan, path("a.plan"));  // replaces
  EXPECT_EQ(load_plan(path("a.plan")).digest, plan.digest);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(PlanStorage, KeepsTheOldFileWhenThePlanCannotBeWritten) {
  const Plan plan = signed_example();
  save_plan(plan, path("a.plan"));
  Plan stale = plan;
  stale.strategy = "changed after signing";
  EXPECT_THROW(save_plan(stale, path("a.plan")), InvalidPlan);
  EXPECT_EQ(load_plan(path("a.plan")).strategy, plan.strategy);
}

TEST_F(PlanStorage, NamesTheFileItCannotReachAndWhy) {
  try {
    static_cast<void>(load_plan(path("none.plan")));
    FAIL() << "expected IoError";
  } catch (const IoError& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr(path("none.plan")),
                                               ::testing::HasSubstr("No such file")));
  }
  try {
    save_plan(signed_example(), path("no/such/folder.plan"));
    FAIL() << "expected IoError";
  } catch (const IoError& error) {
    EXPECT_EQ(error.what(),
              path("no/such/folder.plan") + ": cannot write: No such file or directory");
  }
  EXPECT_THROW(save_plan(signed_example(), folder_.string()), IoError);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 0);
}

TEST_F(PlanStorage, CallsATextFileNoPlan) {
  std::ofstream(path("lengths.txt")) << "128\n256\n";
  try {
    static_cast<void>(load_plan(path("lengths.txt")));
    FAIL() << "expected InvalidPlan";
  } catch (const InvalidPlan& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("not a plan file"));
  }
}

TEST_F(PlanStorage, WritesToDevicesInsteadOfReplacingThem) {
  if (!fs::is_character_file("/dev/full")) GTEST_SKIP() << "needs /dev/full";
  EXPECT_THROW(save_plan(signed_example(), "/dev/full"), IoError);
  EXPECT_TRUE(fs::is_character_file("/dev/full"));
}

}  // namespace
}  // namespace contextile
