// contextile demo: one screen, everything with --all, and next steps that can be pasted.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/shell.h"

namespace contextile {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

class Demo : public ShellTest {
 protected:
  // A batch that is planned faster than the default one.
  [[nodiscard]] std::string demo(const std::vector<std::string>& more = {}) const {
    const Outcome outcome =
        contextile(joined({"demo", "--dataset", "prolong", "--tokens", "16K"}, more));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
    return outcome.out;
  }
};

constexpr const char* kVerdict =
    "every plan verified, every result within its bound, every byte as predicted\n";

TEST_F(Demo, FitsOneScreenAndEndsWithTheVerdictAndNextStepsThatWork) {
  const std::string text = demo();
  const std::vector<std::string> lines = lines_of(text);
  EXPECT_LE(lines.size(), 45U) << text;
  const std::size_t verdict = text.find(kVerdict);
  ASSERT_NE(verdict, std::string::npos) << text;
  for (const std::string& line : lines_of(text.substr(0, verdict))) {
    EXPECT_LE(line.size(), 80U) << line;
  }
  for (const char* words : {"planned   16384 tokens", "cluster   dgx-h200, 4 nodes x 8",
                            "more take", "exact: 15 strategies"}) {
    EXPECT_THAT(text, HasSubstr(words));
  }

  // The commands, from a folder that is not the program's.
  const std::size_t next = text.find("\nnext: ", verdict);
  ASSERT_NE(next, std::string::npos) << text;
  std::string commands = text.substr(text.find('\n', next + 1) + 1);
  const std::size_t all = commands.find("demo --all");
  ASSERT_NE(all, std::string::npos) << commands;  // it has a test of its own
  commands = commands.substr(0, commands.rfind("  /", all));
  EXPECT_GE(lines_of(commands).size(), 3U) << commands;
  const Outcome pasted = bash("set -e\n" + commands);
  EXPECT_EQ(pasted.exit_code, 0) << commands << pasted.out << pasted.err;
  EXPECT_THAT(read(path("batch.plan.html")), HasSubstr("<html"));
}

TEST_F(Demo, WritesThePageOfTheFastestPlanBesideZigzags) {
  const std::string page = path("first.html");
  const std::string text = demo({"-o", page});
  EXPECT_THAT(text, EndsWith(" next to zigzag as a page, open it in a browser\n"));
  EXPECT_THAT(text, HasSubstr("\n" + page + ": "));
  const std::string html = read(page);
  EXPECT_THAT(html, HasSubstr("<html"));
  EXPECT_THAT(html, HasSubstr("zigzag"));

  // It has the time that a comparison predicts.
  const nlohmann::json compared =
      nlohmann::json::parse(output({"compare", "--dataset", "prolong", "--tokens", "16K", "--seed",
                                    "1", "--strategy", "zigzag", "--json"}));
  const double time_s = compared.at("strategies").at(0).at("predicted_total_s").get<double>();
  EXPECT_THAT(html, HasSubstr(fmt::format(">{:#.4g} ms</data>", 1e3 * time_s)));
}

TEST_F(Demo, APageThatCannotBeWrittenEndsItBeforeAnythingIsPlanned) {
  const Outcome outcome = contextile({"demo", "-o", path("no-such-folder/first.html")});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  EXPECT_THAT(outcome.err, HasSubstr("no-such-folder"));
  expect_bad_input(contextile({"demo", "--all", "-o", path("first.html")}), {"--output", "--all"});
}

TEST_F(Demo, AllShowsEveryStrategyUnderBothMasks) {
  const std::string text = demo({"--all"});
  for (const char* title : {"== planned: causal", "== planned: lambda:64,4096",
                            "== executed: causal", "== executed: lambda:16,128"}) {
    EXPECT_THAT(text, HasSubstr(title));
  }
  for (const char* strategy : {"ring", "zigzag", "ulysses", "megatron_packed", "distca", "auto"}) {
    EXPECT_THAT(text, HasSubstr(std::string("\n") + strategy + ' '));
  }
  EXPECT_THAT(text, HasSubstr("rank correlation"));
  EXPECT_THAT(text, EndsWith(kVerdict));
}

TEST_F(Demo, ABatchThatCannotBeIsBadInput) {
  expect_bad_input(contextile({"demo", "--dataset", "nothing"}), {"'nothing'"});
}

}  // namespace
}  // namespace contextile
