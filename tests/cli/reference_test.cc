// Help, reference and examples: they agree, and the examples work.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <string>
#include <vector>

#include "cli/shell.h"

namespace contextile {
namespace {

using testing::HasSubstr;

class Reference : public ShellTest {
 protected:
  [[nodiscard]] std::vector<std::string> commands() const {
    std::istringstream answer(output({"__complete", ""}));
    std::vector<std::string> names;
    std::string line;
    std::getline(answer, line);
    while (std::getline(answer, line)) names.push_back(line.substr(0, line.find('\t')));
    return names;
  }
  // A command's help with all its options.
  [[nodiscard]] std::string full_help(const std::string& command) const {
    const std::string help = output({command, "--help"});
    return help.find("--help-all") == std::string::npos ? help : output({command, "--help-all"});
  }
  // The examples of a command's help.
  [[nodiscard]] std::vector<std::string> examples(const std::string& command) const {
    std::istringstream lines(output({command, "--help"}));
    std::vector<std::string> found;
    for (std::string line; std::getline(lines, line);) {
      if (!found.empty() && found.back().ends_with('\\')) {
        found.back() += '\n' + line;
      } else if (line.starts_with("  contextile ")) {
        found.push_back(line);
      }
    }
    return found;
  }
};

std::size_t longest_help_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t longest = 0;
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

TEST_F(Reference, HasEveryCommandWithEveryOptionOfItsHelp) {
  const std::string reference = output({"info", "--reference"});
  for (const std::string& command : commands()) {
    SCOPED_TRACE(command);
    const std::size_t begin = reference.find(fmt::format("### contextile {}\n", command));
    ASSERT_NE(begin, std::string::npos);
    const std::string section = reference.substr(begin, reference.find("\n### ", begin) - begin);
    std::istringstream help(full_help(command));
    for (std::string line; std::getline(help, line);) {
      const std::size_t dash = line.find("--");
      const bool is_help = line.starts_with("  -h,") || line.starts_with("  --help-all");
      if (!line.starts_with("  -") || is_help) continue;
      const std::string option = line.substr(dash, line.find_first_of(" ,", dash) - dash);
      EXPECT_THAT(section, HasSubstr(option));
    }
  }
}

TEST_F(Reference, HasDefaultsAndEscapesWhatTablesAreMadeOf) {
  const std::string reference = output({"info", "--reference"});
  EXPECT_THAT(reference, HasSubstr("| `--heads N` | query heads of the model | 32 |\n"));
  EXPECT_THAT(reference, HasSubstr("| `--layout contiguous\\|zigzag\\|FILE` |"));
  EXPECT_THAT(reference, HasSubstr("| `PLAN` | plan file, - for stdin | required |\n"));
  EXPECT_THAT(reference, HasSubstr("| `-o`, `--output FILE` |"));
  EXPECT_THAT(reference, HasSubstr("| 3 | the environment failed |"));
}

TEST_F(Reference, HelpFitsTheScreen) {
  EXPECT_LE(longest_help_line(output({"--help"})), 80U);
  for (const std::string& command : commands()) {
    EXPECT_LE(longest_help_line(full_help(command)), 80U) << command;
    const std::string help = output({command, "--help"});
    EXPECT_LE(std::ranges::count(help, '\n'), 48) << help;
  }
}

TEST_F(Reference, HelpBeginsWithASentenceAndAnExample) {
  for (const std::string& command : commands()) {
    SCOPED_TRACE(command);
    std::istringstream help(output({command, "--help"}));
    std::string sentence;
    std::string blank;
    std::string example;
    std::getline(help, sentence);
    std::getline(help, blank);
    std::getline(help, example);
    EXPECT_TRUE(std::isupper(static_cast<unsigned char>(sentence.front()))) << sentence;
    EXPECT_TRUE(sentence.ends_with('.')) << sentence;
    EXPECT_EQ(blank, "");
    EXPECT_TRUE(example.starts_with("  contextile ")) << example;
  }
}

TEST_F(Reference, HelpOfManyOptionsCountsThoseItLeavesOut) {
  const std::string help = output({"plan", "--help"});
  const auto num_options = [](const std::string& text) {
    std::istringstream lines(text);
    std::size_t count = 0;
    for (std::string line; std::getline(lines, line);) count += line.starts_with("  -") ? 1 : 0;
    return count;
  };
  const std::size_t left_out = num_options(full_help("plan")) - num_options(help);
  EXPECT_GT(left_out, 0U);
  EXPECT_THAT(help,
              HasSubstr(fmt::format("\n{} more options: contextile plan --help-all\n", left_out)));
  EXPECT_THAT(output({"help"}), HasSubstr("\nPlan and look:\n"));
}

TEST_F(Reference, EveryExampleWorks) {
  file("lengths.txt", "300\n70\n190\n");
  file("graph.hgr", "3 4\n1 2\n3 4\n1 3\n");
  file("rows.csv",
       "source,split,cluster,method,strategy,lengths,mask,q_heads,kv_heads,head_dim,dtype,"
       "direction,ms\n"
       "me,judged,dgx-h100:1x2,p2p,zigzag,4K,causal,8,2,128,bf16,forward,0.2\n");
  flight_record("batch.plan.flight", "a host");
  for (const std::string& command : commands()) {
    const std::vector<std::string> lines = examples(command);
    EXPECT_FALSE(lines.empty()) << command;
    for (const std::string& line : lines) {
      // Everything `demo` does, `demo` does; its long form has a test of its own.
      if (line.starts_with("  contextile demo")) continue;
      // A server goes on until a signal stops it: tests/serving/serve_test.py.
      const bool serves = line.find(" serve ") != std::string::npos;
      if (serves && line.find("--simulate") == std::string::npos) continue;
      // Groups of ranks that profile themselves: Launch.ProfilesTheGroupOfItsRanks.
      if (line.find(" -- profile ") != std::string::npos) continue;
      const Outcome outcome = bash(line + "\n");
      EXPECT_EQ(outcome.exit_code, 0) << line << '\n' << outcome.out << outcome.err;
    }
  }
}

}  // namespace
}  // namespace contextile
