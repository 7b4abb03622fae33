// The program where it cannot write, has little memory, or may start few threads: it ends with the
// documented exit code and at most one line.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using testing::AnyOf;
using testing::Eq;
using testing::HasSubstr;

const std::vector<std::string> kCommands = {
    "plan",  "verify",   "compare", "report",    "export",   "import",
    "run",   "launch",   "demo",    "serve",     "simulate", "iterate",
    "helix", "validate", "profile", "partition", "info",     "completion"};

class Environment : public ProgramTest {
 protected:
  // A script in the folder of the test, in which `contextile` is the program.
  [[nodiscard]] Outcome bash(const std::string& script) const {
    return started("bash", {"-c", fmt::format("cd '{}'\ncontextile() {{ '{}' \"$@\"; }}\n{}",
                                              path(""), CONTEXTILE_PROGRAM, script)});
  }
  static std::ptrdiff_t num_lines(const std::string& text) {
    return std::ranges::count(text, '\n');
  }
};

TEST_F(Environment, ErrorsThatCannotBePrintedKeepTheirExitCodes) {
  for (const std::string& stream : {std::string("2>/dev/full"), std::string("2>&-")}) {
    for (const std::string& command : kCommands) {
      const Outcome outcome = bash(fmt::format("contextile {} --no-such {}", command, stream));
      EXPECT_EQ(outcome.exit_code, 2) << command << ' ' << stream;
    }
    EXPECT_EQ(bash("contextile verfy " + stream).exit_code, 2) << stream;
    EXPECT_EQ(bash("contextile verify missing.plan " + stream).exit_code, 2) << stream;
  }
}

TEST_F(Environment, ResultsThatCannotBePrintedAreTheEnvironmentsFault) {
  static_cast<void>(small_plan("p.plan"));
  for (const std::string& streams :
       {std::string(">/dev/full"), std::string(">&-"), std::string(">/dev/full 2>/dev/full"),
        std::string(">/dev/full 2>&-"), std::string(">&- 2>&-")}) {
    for (const std::string& command : kCommands) {
      const Outcome outcome = bash(fmt::format("contextile {} --help {}", command, streams));
      EXPECT_EQ(outcome.exit_code, 3) << command << ' ' << streams;
    }
    for (const std::string line :
         {"info", "verify p.plan", "export p.plan", "run p.plan --json", "report p.plan"}) {
      EXPECT_EQ(bash(fmt::format("contextile {} {}", line, streams)).exit_code, 3)
          << line << ' ' << streams;
    }
  }
}

TEST_F(Environment, NoFileTakesThePlaceOfAClosedStream) {
  static_cast<void>(small_plan("p.plan"));
  const Outcome outcome = bash(
      "contextile export p.plan -o e.json >&- 2>&- <&-; echo $?\n"
      "contextile import e.json -o q.plan >/dev/null 2>&- <&-; echo $?\n"
      "contextile verify q.plan | tail -n 1");
  EXPECT_THAT(outcome.out, HasSubstr("0\nverified: ok")) << outcome.out << outcome.err;
}

// From less than the libraries need to more than the plan does. The loader of the system ends a
// process by itself with 127. On one core: each further one has a thread, whose stack takes address
// space.
TEST_F(Environment, LittleMemoryEndsInOneLine) {
  static_cast<void>(small_plan("p.plan"));
  const std::string large =
      "plan -o x --dataset prolong --tokens 1M --block-size 64 --cluster local:1x8 --strategy "
      "zigzag";
  int num_refused = 0;
  // Threads of a run end in some places only if their memory does: sizes near its border.
  std::vector<int> of_run = {96, 112, 128};
  for (int mib = 40; mib < 88; ++mib) of_run.push_back(mib);
  for (const std::string& line : {std::string("info"), std::string("run p.plan"), large}) {
    const std::vector<int> of_all = {40, 48, 56, 64, 72, 80, 96, 112, 128, 160, 200};
    for (const int mib : line == "run p.plan" ? of_run : of_all) {
      const Outcome outcome =
          bash(fmt::format("taskset -cp $(taskset -cp $$ | sed 's/.*: //; s/[,-].*//') $$ > "
                           "/dev/null; ulimit -v {}; contextile {} > /dev/null",
                           mib * 1024, line));
      const std::string what = fmt::format("{} with {} MiB: {}", line, mib, outcome.err);
      EXPECT_THAT(outcome.exit_code, AnyOf(Eq(0), Eq(3), Eq(127))) << what;
      EXPECT_EQ(num_lines(outcome.err), outcome.exit_code == 0 ? 0 : 1) << what;
      if (outcome.exit_code == 3) {
        ++num_refused;
        EXPECT_THAT(outcome.err, HasSubstr("contextile: error: ")) << what;
      }
    }
  }
  EXPECT_GT(num_refused, 0);
}

// Needs root, whose threads nothing limits, to act as a user who may have few.
TEST_F(Environment, FewThreadsEndInOneLine) {
  static_cast<void>(small_plan("p.plan"));
  std::filesystem::permissions(path(""), std::filesystem::perms::others_all,
                               std::filesystem::perm_options::add);
  const auto limited = [&](int threads, const std::string& line) {
    return bash(fmt::format(
        "exec timeout 60 setpriv --reuid 65533 --regid 65533 --clear-groups bash -c 'ulimit -u "
        "{}; exec {} {}' < p.plan > /dev/null",
        threads, CONTEXTILE_PROGRAM, line));
  };
  if (limited(1, "--version").exit_code != 0) GTEST_SKIP() << "needs root and setpriv";
  for (const std::string line :
       {"info", "verify -", "run -", "serve --port 0 --max-connections 8"}) {
    for (const int threads : {1, 2, 3, 4}) {
      const Outcome outcome = limited(threads, line);
      const std::string what = fmt::format("{} with {} threads: {}", line, threads, outcome.err);
      EXPECT_THAT(outcome.exit_code, AnyOf(Eq(0), Eq(3))) << what;
      EXPECT_EQ(num_lines(outcome.err), outcome.exit_code == 0 ? 0 : 1) << what;
    }
  }
}

}  // namespace
}  // namespace contextile
