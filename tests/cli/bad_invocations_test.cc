// Command lines of careless users and attackers: a table of commands with their exit codes and
// messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "cli/shell.h"

namespace contextile {
namespace {

using testing::HasSubstr;
using testing::Not;
namespace fs = std::filesystem;

struct Invocation {
  const char* name;  // of the test
  const char* script;
  int exit_code;
  const char* message;  // on stderr
};

// In a folder with good.txt and c.json (lengths, a cluster), p.plan (a plan), g.hgr,
// a link to each of good.txt and p.plan, and a sparse file of 64 GiB. Programs get 4 GiB of memory
// and 20 seconds.
constexpr Invocation kInvocations[] = {
    {"PlanOverItsLengths", "contextile plan -o good.txt --lengths good.txt --cluster c.json", 2,
     "--output: expected another file than --lengths, found 'good.txt' for both"},
    {"PlanOverItsLengthsByAnotherName",
     "contextile plan -o ./good_link.txt --lengths good.txt --cluster c.json", 2,
     "--output: expected another file than --lengths"},
    {"PlanOverItsCluster", "contextile plan -o c.json --lengths good.txt --cluster ./c.json", 2,
     "--output: expected another file than --cluster"},
    {"PlanOverItsMask",
     "echo '{\"bands\": []}' > m.json; contextile plan -o m.json --mask-file m.json --lengths "
     "good.txt",
     2, "--output: expected another file than --mask-file"},
    {"PlanOverItsLayout",
     "echo '{\"home\": []}' > h.json; contextile plan -o h.json --layout h.json --lengths good.txt",
     2, "--output: expected another file than --layout"},
    {"SecondPlanOverItsLengths",
     "cp good.txt b.1; contextile plan -o b --lengths b.1 --tokens 150 --batches 2 --cluster "
     "c.json",
     2, "--output: expected another file than the input, found 'b.1' for both"},
    {"ReportOverItsCluster", "contextile report p.plan --cluster c.json -o c.json", 2,
     "--output: expected another file than --cluster"},
    {"ReportOverItsPlanByDefault", "ln -s p.plan p.plan.html; contextile report p.plan", 2,
     "--output: expected another file than the input"},
    {"TraceOverItsPlan", "contextile simulate p.plan --trace p_link.plan", 2,
     "--trace: expected another file than PLAN"},
    {"ExportOverItsPlan", "contextile export p.plan -o p.plan", 2,
     "--output: expected another file than PLAN"},
    {"PartitionOverItsGraph", "contextile partition g.hgr -k 2 -o g.hgr", 2,
     "--output: expected another file than FILE"},
    {"PlanOverItsStandardInput",
     "contextile plan -o good.txt --lengths - --cluster c.json < good.txt", 2,
     "--output: expected another file than --lengths, found 'good.txt' for both"},
    {"TraceOverItsStandardInput", "contextile simulate - --trace p.plan < p.plan", 2,
     "--trace: expected another file than PLAN"},
    {"ReportOverItsStandardInput", "contextile report - -o p.plan < p.plan", 2,
     "--output: expected another file than PLAN"},
    {"ReportOfStandardInput", "contextile report - < p.plan", 2,
     "--output: expected a file, as the input is standard input, found none"},
    {"PartitionOfStandardInput", "contextile partition - -k 2 < g.hgr", 2,
     "--output: expected a file, as the input is standard input, found none"},
    {"PlanBehindItsLengths", "contextile plan -o - --lengths good.txt --cluster c.json >> good.txt",
     2, "--output: expected another file than --lengths"},
    {"PlanIntoACircleOfLinks", "ln -s loop loop; contextile plan -o loop --lengths good.txt", 3,
     "loop: cannot write: Too many levels of symbolic links"},
    {"ImportOfNoObject", "(echo hello; yes) | contextile import - -o x", 2,
     "standard input: expected a plan as JSON, an object, found 'h' at byte 0"},
    {"MaskOfTooManyBands",
     "echo 100000000 > l.txt; contextile plan -o x --lengths l.txt --mask chunked:1 --strategy "
     "ring --force",
     2, "mask: expected at most 8388608 bands, found more"},
    {"ClusterThatHardlyComputes",
     "echo '{\"preset\":\"local:2x2\",\"attention\":{\"q_rows\":[1],\"kv_rows\":[1],"
     "\"forward\":[5e-324],\"backward\":[5e-324]}}' > slow.json; contextile plan -o x --lengths "
     "good.txt --cluster slow.json",
     2, "forward: expected shares of the peak of 1e-06 to 2, found"},
    {"MoreHeadsThanPlansHave", "contextile plan -o x --lengths good.txt --heads 16K --kv-heads 16K",
     2, "heads: expected at most 1024 KV heads, found 16384"},
    {"PlanIntoAFolder", "contextile plan -o . --lengths good.txt --cluster c.json", 3,
     ".: cannot write: Is a directory"},
    {"PlanOntoATerminalOrJson", "contextile plan -o - --json --lengths good.txt --cluster c.json",
     2, "--output: expected a file with --json or --csv, found '-'"},
    {"EndlessPlan", "contextile verify /dev/zero", 2, "/dev/zero: not a plan file"},
    {"EndlessPlanWithTheRightStart", "(head -c 48 p.plan; cat /dev/zero) | contextile verify -", 2,
     "standard input: expected at most"},
    {"EndlessLengths", "contextile plan -o x --lengths /dev/zero", 2,
     "/dev/zero: expected lengths (one per line, JSON, JSONL, .npy or .idx), found the byte 0x00"},
    {"EndlessCluster", "contextile plan -o x --lengths good.txt --cluster /dev/zero", 2,
     "/dev/zero: expected a cluster as JSON, found the byte 0x00"},
    {"EndlessMask", "contextile plan -o x --lengths good.txt --mask-file /dev/zero", 2,
     "/dev/zero: expected a mask as JSON, found the byte 0x00"},
    {"EndlessLayout", "contextile plan -o x --lengths good.txt --layout /dev/zero", 2,
     "/dev/zero: expected a layout as JSON, found the byte 0x00"},
    {"EndlessGraph", "contextile partition /dev/zero -k 2 -o x", 2,
     "/dev/zero: expected a hypergraph in hMETIS format, found the byte 0x00"},
    {"EndlessLine", "yes 1 | tr -d '\\n' | head -c 100000 | contextile plan -o x --lengths -", 2,
     "standard input: line 1: expected at most 4096 bytes, found more"},
    {"HugeLengths", "contextile plan -o x --lengths sparse", 2,
     "sparse: expected lengths (one per line, JSON, JSONL, .npy or .idx), found the byte 0x00"},
    {"HugePlan", "contextile verify sparse", 2, "sparse: not a plan file"},
    {"HugeModel",
     "contextile iterate --model ./sparse --lengths good.txt --gpus 2 --cluster c.json", 2,
     "./sparse: expected a model as JSON, found the byte 0x00"},
    {"RateThatIsNone",
     "sed 's/450/5e-324/' c.json > d.json; contextile plan -o x --lengths good.txt --cluster "
     "./d.json",
     2, "expected 1e-09 to 1000000000000, found"},
    {"RateOfNoMachine",
     "sed 's/450/1e300/' c.json > d.json; contextile plan -o x --lengths good.txt --cluster "
     "./d.json",
     2, "intra_gbytes_per_s: expected 1e-09 to 1000000000000, found 1e+300"},
    {"SwitchWithAValue", "contextile verify p.plan --json=maybe", 2,
     "verify: --json: expected no value, found 'maybe'"},
    {"MissingArgument", "contextile verify", 2, "verify: expected PLAN, found none"},
    {"MissingOption", "contextile plan --dataset prolong", 2,
     "plan: expected --output, found none"},
    {"HelpOfNoCommand", "contextile help verfy", 2, "found 'verfy'; did you mean 'verify'?"},
    {"HelpOntoAFullDevice", "contextile --help > /dev/full", 3,
     "stdout: expected to write all results, but a write failed"},
    {"TooManyDevices", "contextile plan -o x --lengths good.txt --cluster local:100000x8", 2,
     "nodes: expected 1 to 65536, found 100000"},
    {"TilesOfATokenEach", "contextile plan -o x --dataset prolong --tokens 1M --block-size 1", 2,
     "tokens in blocks of 1); blocks of "},
    {"PairsOfDevices", "contextile plan -o x --lengths good.txt --cluster local:8192x8", 2,
     "(65536 devices); --force plans it all the same"},
    {"TooManyTokens", "contextile plan -o x --lengths good.txt --scale 1e9", 2,
     "expected at most 2147483648 tokens in a batch"},
    {"TooManyHeads", "contextile plan -o x --lengths good.txt --heads 1e9", 2, "--heads: expected"},
    {"PlanIntoAFileThatMayNotGrow",
     "ulimit -f 8; contextile plan -o x --dataset prolong --tokens 1M --cluster local:2x8 "
     "--strategy zigzag > /dev/null; s=$?; ls | grep -q '^x' && exit 9; exit $s",
     3, "x: cannot write: File too large"},
    {"JsonWithoutMemory",
     "ulimit -v 300000; (printf '{\"a\": ['; yes '1,') | contextile import - -o x", 3,
     "out of memory: expected a smaller batch or a larger machine, found no room for standard "
     "input, "},
    {"PlanWithoutMemory",
     // On one core: each further one has a thread, whose stack takes address space.
     "taskset -cp $(taskset -cp $$ | sed 's/.*: //; s/[,-].*//') $$ > /dev/null; ulimit -v 150000\n"
     "contextile plan -o x --dataset prolong --tokens 1M --block-size 64 "
     "--cluster local:1x8 "
     "--strategy zigzag",
     3, "found no room for a plan of 1048576 tokens on 8 devices, about 2.5e+06 tiles"},
    {"OrdersToATerminal", "contextile verify \"$(printf 'a\\033[31mb\\007')\"", 2,
     "a\\x1b[31mb\\x07: cannot read"},
};

class BadInvocation : public ShellTest, public testing::WithParamInterface<Invocation> {};

TEST_P(BadInvocation, IsRefusedInOneLineAndDestroysNothing) {
  const std::string plan = read(small_plan("p.plan"));
  const std::string lengths = "100\n37\n119\n400\n";
  const std::string cluster =
      R"({"name": "c", "preset": "local", "nodes": 1, "devices_per_node": 2,
          "intra_gbytes_per_s": 450})";
  file("good.txt", lengths);
  file("c.json", cluster);
  file("g.hgr", "2 4\n1 2\n3 4\n");
  fs::create_symlink("good.txt", path("good_link.txt"));
  fs::create_symlink("p.plan", path("p_link.plan"));
  fs::resize_file(file("sparse", ""), std::uintmax_t{1} << 36);
  const Invocation& invocation = GetParam();
  const Outcome outcome =
      bash(fmt::format("ulimit -v 4194304 -t 20\nset -o pipefail\n{}\n", invocation.script));
  EXPECT_EQ(outcome.exit_code, invocation.exit_code) << outcome.out << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(std::string("contextile: error: ")));
  EXPECT_THAT(outcome.err, HasSubstr(invocation.message));
  EXPECT_THAT(outcome.err, Not(HasSubstr("\x1b")));
  EXPECT_EQ(read(path("good.txt")), lengths);
  EXPECT_EQ(read(path("c.json")), cluster);
  EXPECT_EQ(read(path("p.plan")), plan);
}

INSTANTIATE_TEST_SUITE_P(Table, BadInvocation, testing::ValuesIn(kInvocations),
                         [](const auto& test) { return std::string(test.param.name); });

class GoodInvocation : public ShellTest {};

TEST_F(GoodInvocation, HelpOfACommandIsItsHelp) {
  EXPECT_EQ(output({"help", "plan"}), output({"plan", "--help"}));
  EXPECT_EQ(output({"help"}), output({"--help"}));
}

TEST_F(GoodInvocation, DashesAreStandardInputAndOutput) {
  const Outcome outcome = bash(
      "printf '100\\n37\\n' | contextile plan -o - --lengths - --cluster local:1x2 | "
      "contextile verify -");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("verified: ok"));
}

TEST_F(GoodInvocation, AnInterruptLeavesNothingBehind) {
  const Outcome outcome =
      bash(fmt::format("mkfifo forever; exec 9<> forever; mkdir out\n"
                       "'{}' simulate forever --trace out/t.json & sleep 0.5\n"
                       "ls out | wc -l; kill -TERM $!; wait $!; echo $?; ls out | wc -l",
                       CONTEXTILE_PROGRAM));
  EXPECT_EQ(outcome.out, "1\n143\n0\n") << outcome.err;
}

TEST_F(GoodInvocation, ATerminalHasColoursUnlessNoColorIsSet) {
  static_cast<void>(small_plan("p.plan"));
  const std::string verify =
      fmt::format("script -qec \"'{}' verify p.plan\" /dev/null < /dev/null", CONTEXTILE_PROGRAM);
  if (bash("command -v script").exit_code != 0) GTEST_SKIP() << "needs script(1)";
  EXPECT_THAT(bash(verify).out, HasSubstr("\x1b[32mok"));
  EXPECT_THAT(bash("export NO_COLOR=1\n" + verify).out, Not(HasSubstr("\x1b[32m")));
}

TEST_F(GoodInvocation, MaskNamesAreEscapedWhereTheyAreExecuted) {
  const Outcome outcome = bash(
      "printf '100\\n37\\n' > l.txt\n"
      "contextile plan -o p.plan --lengths l.txt --heads 2 --kv-heads 2 --head-dim 8 "
      "--strategy zigzag --cluster local:1x2 > plan.txt\n"
      "contextile export p.plan | sed 's/\"name\": *\"causal\"/\"name\": "
      "\"m\\\\u001b[31m\\\\nok\\\\u009b1m\"/; s/\"digest\": *\"[0-9a-f]*\",//' > p.json\n"
      "contextile import p.json -o evil.plan > import.txt && contextile run evil.plan && "
      "contextile run evil.plan --csv");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
  EXPECT_THAT(outcome.out, HasSubstr("waiting for transfers: m\\x1b[31m\\x0aok\\xc2\\x9b1m "));
  EXPECT_THAT(outcome.out, HasSubstr("\nm\\x1b[31m\\x0aok\\xc2\\x9b1m,forward,"));
}

TEST_F(GoodInvocation, JsonHasNoControlCodes) {
  const Outcome outcome = bash(
      "printf '100\\n37\\n' > l.txt\n"
      "contextile plan -o p.plan --lengths l.txt --strategy zigzag --cluster local:1x2 > plan.txt\n"
      "contextile export p.plan | sed 's/\"name\": *\"causal\"/\"name\": "
      "\"m\\\\u009b1m\\\\u007f\\\\u0080\\\\u00a0\"/; s/\"digest\": *\"[0-9a-f]*\",//' > p.json\n"
      "contextile import p.json -o evil.plan > import.txt && contextile export evil.plan -o e.json "
      "&&"
      "contextile simulate evil.plan --cluster local:1x2 --trace t.json > sim.txt &&"
      "contextile verify evil.plan --json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const std::string& text : {outcome.out, read(path("e.json")), read(path("t.json"))}) {
    EXPECT_THAT(text, HasSubstr("m\\u009b1m\\u007f\\u0080\u00a0"));
    EXPECT_EQ(text.find('\x7f'), std::string::npos);
    EXPECT_THAT(text, Not(HasSubstr("\u009b")));
    EXPECT_TRUE(nlohmann::json::accept(text));
  }
}

// Needs root, whose threads nothing limits, to act as a user who may have one thread.
TEST_F(GoodInvocation, AThreadThatCannotStartIsTheEnvironmentsFault) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "needs two cores";
  static_cast<void>(small_plan("p.plan"));
  const std::string as_nobody =
      "exec setpriv --reuid 65534 --regid 65534 --clear-groups bash -c 'ulimit -u 1; exec " +
      std::string(CONTEXTILE_PROGRAM) + " ";
  if (bash(as_nobody + "--version'\n").exit_code != 0) GTEST_SKIP() << "needs root and setpriv";
  const Outcome outcome = bash(as_nobody + "verify -' < p.plan\n");
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_THAT(outcome.err, HasSubstr("expected to start a thread (ulimit -u"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("internal")));
}

TEST_F(GoodInvocation, NamesFromPlansAreEscaped) {
  file("c.json",
       "{\"name\": \"evil\\u001b[31m\\nverified: ok\", \"preset\": \"local\", \"nodes\": 1, "
       "\"devices_per_node\": 2}");
  const Outcome outcome = bash(
      "printf '100\\n37\\n' > l.txt; contextile plan -o p.plan --lengths l.txt --cluster ./c.json "
      "&& contextile verify p.plan; contextile simulate p.plan --cluster ./c.json");
  EXPECT_THAT(outcome.out + outcome.err, Not(HasSubstr("\x1b")));
  EXPECT_THAT(outcome.out, HasSubstr("evil\\x1b[31m\\x0averified: ok"));
}

}  // namespace
}  // namespace contextile
