// Completion: the program's answers, and their use by the scripts in a shell.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <vector>

#include "cli/shell.h"

namespace contextile {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::IsSupersetOf;
using testing::Not;
using testing::StartsWith;

class Completion : public ShellTest {
 protected:
  struct Answer {
    std::string kind;
    std::vector<std::string> words;
  };
  // The program's answer to a line whose last word is being typed.
  [[nodiscard]] Answer answer(std::vector<std::string> words) const {
    words.insert(words.begin(), "__complete");
    const Outcome outcome = contextile(words);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<std::string> lines = lines_of(outcome.out);
    if (lines.empty()) return {};
    Answer answer{lines.front(), {}};
    for (std::size_t i = 1; i < lines.size(); ++i) {
      answer.words.push_back(lines[i].substr(0, lines[i].find('\t')));
    }
    return answer;
  }
  [[nodiscard]] std::vector<std::string> words(std::vector<std::string> typed) const {
    return answer(std::move(typed)).words;
  }

  // COMPREPLY of bash for `line` with the cursor at its end, which bash has split into `pieces`.
  [[nodiscard]] std::vector<std::string> in_bash(const std::string& line,
                                                 const std::vector<std::string>& pieces) const {
    std::string quoted;
    for (const std::string& piece : pieces) quoted += fmt::format(" '{}'", piece);
    const Outcome outcome =
        bash(fmt::format("source <(contextile completion bash) || exit 1\n"
                         "complete -p contextile > /dev/null || exit 1\n"
                         "COMP_LINE='{}'; COMP_POINT=${{#COMP_LINE}}\n"
                         "COMP_WORDS=({}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
                         "_contextile contextile \"${{COMP_WORDS[COMP_CWORD]}}\" '' || exit 1\n"
                         "for word in \"${{COMPREPLY[@]}}\"; do echo \"$word\"; done\n",
                         line, quoted));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "");
    return lines_of(outcome.out);
  }
};

TEST_F(Completion, CommandsComeFirst) {
  EXPECT_THAT(words({""}), IsSupersetOf({"plan", "verify", "run", "completion"}));
  EXPECT_THAT(words({"pl"}), ElementsAre("plan"));
  EXPECT_THAT(words({"--v"}), ElementsAre("--version"));
  EXPECT_THAT(words({}), IsEmpty());
}

TEST_F(Completion, OptionsOfTheCommandAreOfferedOnceEach) {
  EXPECT_THAT(words({"plan", "--kv"}), ElementsAre("--kv-heads"));
  EXPECT_THAT(words({"plan", "--json", "--js"}), IsEmpty());
  EXPECT_THAT(words({"plan", "--mask", "causal", "--mask"}), Contains("--mask"));
  EXPECT_THAT(words({"run", "p.plan", "--no"}), ElementsAre("--no-compare"));
  EXPECT_THAT(words({"plan", ""}), IsSupersetOf({"--output", "--dataset", "--strategy"}));
}

TEST_F(Completion, ValuesAreOfferedBehindTheirOption) {
  EXPECT_THAT(words({"plan", "--dataset", "pro"}), ElementsAre("prolong"));
  EXPECT_THAT(words({"plan", "--dataset=pro"}), ElementsAre("--dataset=prolong"));
  EXPECT_THAT(words({"compare", "--cluster", "dgx"}), ElementsAre("dgx-h100", "dgx-h200"));
  EXPECT_THAT(words({"iterate", "--model", "gpt"}), ElementsAre("gpt-8b"));
  EXPECT_THAT(words({"iterate", "--schedule", ""}),
              ElementsAre("1f1b", "interleaved", "same_phase"));
  EXPECT_THAT(words({"iterate", "--gradient-overlap", ""}), ElementsAre("on", "off"));
  EXPECT_THAT(words({"plan", "--wire", ""}), ElementsAre("f32", "bf16", "f16", "original"));
  EXPECT_THAT(words({"plan", "--block-size", ""}), ElementsAre("auto"));
  EXPECT_THAT(words({"run", "p.plan", "--kernel", "ref"}), ElementsAre("reference"));
  EXPECT_THAT(words({"completion", ""}), ElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(words({"plan", "--tokens", ""}), IsEmpty());
}

TEST_F(Completion, MasksEndWhereTheirParametersBegin) {
  EXPECT_THAT(words({"plan", "--mask", "la"}), ElementsAre("lambda:"));
  EXPECT_THAT(words({"plan", "--mask", "ca"}), ElementsAre("causal", "causal_blockwise:"));
  EXPECT_THAT(words({"plan", "--mask", "local=sl"}), ElementsAre("local=sliding_window:"));
}

TEST_F(Completion, StrategiesComeWithTheirOptionsAndInLists) {
  EXPECT_THAT(words({"plan", "--strategy", "mag"}), ElementsAre("magi"));
  EXPECT_THAT(words({"plan", "--strategy", "magi:ch"}), ElementsAre("magi:chunk="));
  EXPECT_THAT(words({"compare", "--strategy", "ring,zig"}), ElementsAre("ring,zigzag"));
  EXPECT_THAT(words({"compare", "--strategy", "ring,magi:chunk=64,st"}),
              ElementsAre("ring,magi:chunk=64,stages="));
  EXPECT_THAT(words({"compare", "--strategy", "magi:chunk=64,ring,st"}), IsEmpty());
  EXPECT_THAT(words({"compare", "--strategy", "nothing:"}), IsEmpty());
}

TEST_F(Completion, ChoicesOfAStrategysOptionAreOffered) {
  EXPECT_THAT(words({"plan", "--strategy", "dcp:partitioner="}),
              ElementsAre("dcp:partitioner=grid", "dcp:partitioner=hypergraph"));
  EXPECT_THAT(words({"plan", "--strategy", "ring,dcp:relays=off,partitioner=h"}),
              ElementsAre("ring,dcp:relays=off,partitioner=hypergraph"));
  EXPECT_THAT(words({"plan", "--strategy", "dcp:divisions="}), IsEmpty());
}

TEST_F(Completion, NoPathsStandBehindTheParametersOfAName) {
  EXPECT_EQ(answer({"plan", "--cluster", "dgx-h200:"}).kind, "words");
  EXPECT_EQ(answer({"plan", "--cluster", "folder/"}).kind, "files");
}

TEST_F(Completion, PathsAreLeftToTheShell) {
  EXPECT_EQ(answer({"verify", ""}).kind, "files");
  EXPECT_EQ(answer({"plan", "--output", ""}).kind, "files");
  EXPECT_EQ(answer({"plan", "--layout", ""}).kind, "files");
  EXPECT_THAT(words({"plan", "--layout", ""}), ElementsAre("contiguous", "zigzag"));
  EXPECT_EQ(answer({"plan", "--dataset", ""}).kind, "words");
  EXPECT_EQ(answer({"plan", ""}).kind, "words");
}

TEST_F(Completion, NonsenseHasNoCandidatesAndIsNoError) {
  EXPECT_THAT(words({"nothing", ""}), IsEmpty());
  EXPECT_THAT(words({"plan", "--nothing=", ""}), Not(IsEmpty()));
  EXPECT_THAT(words({"plan", "--nothing="}), IsEmpty());
  EXPECT_THAT(words({"plan", "-"}), Each(StartsWith("--")));
}

TEST_F(Completion, AnUnknownShellIsBadInput) {
  expect_bad_input(contextile({"completion", "bsh"}), {"bash, zsh or fish", "'bsh'", "'bash'?"});
  expect_bad_input(contextile({"completion"}), {"SHELL", "found none"});
}

TEST_F(Completion, BashCompletesCommandsOptionsAndValues) {
  EXPECT_THAT(in_bash("contextile sim", {"contextile", "sim"}), ElementsAre("simulate"));
  EXPECT_THAT(in_bash("contextile plan --kv", {"contextile", "plan", "--kv"}),
              ElementsAre("--kv-heads"));
  EXPECT_THAT(in_bash("contextile  plan  --dataset pr", {"contextile", "plan", "--dataset", "pr"}),
              ElementsAre("prolong", "pretrain"));
  EXPECT_THAT(in_bash("contextile plan --mask ", {"contextile", "plan", "--mask", ""}),
              IsSupersetOf({"full", "causal", "lambda:"}));
}

TEST_F(Completion, BashGetsOnlyThePartBehindItsWordBreaks) {
  EXPECT_THAT(
      in_bash("contextile plan --dataset=pro", {"contextile", "plan", "--dataset", "=", "pro"}),
      ElementsAre("prolong"));
  EXPECT_THAT(in_bash("contextile plan --dataset=", {"contextile", "plan", "--dataset", "="}),
              Contains("prolong"));
  EXPECT_THAT(in_bash("contextile plan --strategy magi:ch",
                      {"contextile", "plan", "--strategy", "magi", ":", "ch"}),
              ElementsAre("chunk="));
  EXPECT_THAT(in_bash("contextile plan --strategy magi:chunk=64,st",
                      {"contextile", "plan", "--strategy", "magi", ":", "chunk", "=", "64,st"}),
              ElementsAre("64,stages="));
  EXPECT_THAT(in_bash("contextile run p --kernel simd:por",
                      {"contextile", "run", "p", "--kernel", "simd", ":", "por"}),
              ElementsAre("portable"));
}

TEST_F(Completion, BashCompletesPaths) {
  file("batch.plan", "");
  file("my batch.plan", "");
  EXPECT_THAT(in_bash("contextile verify ba", {"contextile", "verify", "ba"}),
              ElementsAre("batch.plan"));
  EXPECT_THAT(in_bash("contextile verify my", {"contextile", "verify", "my"}),
              ElementsAre("my batch.plan"));
  EXPECT_THAT(
      in_bash("contextile plan --lengths=ba", {"contextile", "plan", "--lengths", "=", "ba"}),
      ElementsAre("batch.plan"));
}

TEST_F(Completion, BashWithoutColonAsWordBreakGetsWholeWords) {
  const Outcome outcome = bash(
      "COMP_WORDBREAKS=' '\n"
      "source <(contextile completion bash)\n"
      "COMP_LINE='contextile plan --strategy magi:ch'; COMP_POINT=${#COMP_LINE}\n"
      "COMP_WORDS=(contextile plan --strategy magi:ch); COMP_CWORD=3\n"
      "_contextile contextile\n"
      "echo \"${COMPREPLY[@]}\"\n");
  EXPECT_EQ(outcome.out, "magi:chunk=\n") << outcome.err;
}

}  // namespace
}  // namespace contextile
