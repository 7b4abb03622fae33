// The line on stderr that shows a command's progress.
#include "cli/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "cli/program.h"
#include "cli/shell.h"

namespace contextile {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

TEST(ProgressText, HasABarTheShareTheStepAndTheTimeLeft) {
  EXPECT_EQ(progress_text(0.25, "2/8 fcp: verifying", 12.4),
            "[######..................]  25% 2/8 fcp: verifying, 12 s left");
  EXPECT_EQ(progress_text(0, "arranging", -1), "[........................]   0% arranging");
  EXPECT_EQ(progress_text(1, "x", 0.2), "[########################] 100% x, 1 s left");
  EXPECT_THAT(progress_text(0.5, "x", 600), HasSubstr("10 min left"));
  EXPECT_THAT(progress_text(0.5, "x", 36000), HasSubstr("10 h left"));
  EXPECT_THAT(progress_text(1.5, "x", 1), HasSubstr("100%"));
}

TEST(ProgressText, CutsLongNamesAndKeepsTheTimeLeft) {
  const std::string line = progress_text(0.5, std::string(300, 'n'), 30);
  EXPECT_EQ(line.size(), 79U);
  EXPECT_THAT(line, testing::EndsWith(", 30 s left"));
}

TEST(ProgressText, TheTimeLeftIsThatOfTheRestAtTheSamePace) {
  EXPECT_DOUBLE_EQ(seconds_left(10, 0.25), 30);
  EXPECT_LT(seconds_left(10, 0), 0);
  EXPECT_LT(seconds_left(0.5, 0.5), 0);
}

class ProgressOfCommands : public ShellTest {};

TEST_F(ProgressOfCommands, IsShownOnATerminalAndNowhereElse) {
  if (std::system("script -qec true /dev/null > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "needs script (bsdutils)";
  }
  const std::string plan = "plan -o " + path("p.plan") + " --dataset prolong --tokens 8K";
  const std::string silent = path("silent.txt");
  const std::string command = std::string(CONTEXTILE_PROGRAM) + " " + plan;
  ASSERT_EQ(std::system((command + " > /dev/null 2> " + silent).c_str()), 0);
  EXPECT_EQ(read(silent), "");
  const std::string shown = path("shown.txt");
  ASSERT_EQ(std::system(("script -qec '" + command + " > /dev/null' /dev/null > " + shown).c_str()),
            0);
  EXPECT_THAT(read(shown), AllOf(HasSubstr("[......"), testing::EndsWith("\r\x1b[K")));
}

}  // namespace
}  // namespace contextile
