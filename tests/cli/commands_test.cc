// The commands on good input: what they write, print and return.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "cli/program.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class Commands : public ProgramTest {
 protected:
  [[nodiscard]] json plan_document(const std::vector<std::string>& arguments) const {
    return document(joined({"plan", "-o", path("p.plan")}, arguments)).at("plans").at(0);
  }
};

TEST_F(Commands, HelpDocumentsEveryCommandAndOption) {
  const std::string help = output({"--help"});
  for (const char* command : {"plan", "verify", "run", "compare", "export", "info", "demo"}) {
    EXPECT_THAT(help, HasSubstr(command));
    EXPECT_THAT(output({command, "--help"}), HasSubstr("contextile " + std::string(command)));
  }
  const std::string plan_help = output({"plan", "--help-all"});
  for (const char* option : {"--lengths",
                             "--length-field",
                             "--dataset",
                             "--tokens",
                             "--batches",
                             "--max-length",
                             "--scale",
                             "--seed",
                             "--mask",
                             "--mask-file",
                             "--heads",
                             "--kv-heads",
                             "--head-dim",
                             "--value-dim",
                             "--dtype",
                             "--softcap",
                             "--attention-scale",
                             "--sink",
                             "--cluster",
                             "--strategy",
                             "--layout",
                             "--tp",
                             "--pp",
                             "--block-size",
                             "--wire",
                             "--token-limit",
                             "--tokens-multiple",
                             "--equal-tokens",
                             "--memory-limit",
                             "--forward-only",
                             "--explain",
                             "--json"}) {
    EXPECT_THAT(plan_help, HasSubstr(option));
  }
  EXPECT_THAT(plan_help, HasSubstr("[default: dgx-h200:4x8]"));
  EXPECT_LE(longest_line(plan_help), 80U);
  EXPECT_EQ(output({"--version"}).rfind("contextile ", 0), 0U);
}

TEST_F(Commands, PlanThenVerifyThenRunThenExport) {
  const std::string plan = small_plan("all.plan");
  EXPECT_THAT(output({"verify", plan}), HasSubstr("verified: ok (0 violations"));
  EXPECT_TRUE(document({"verify", plan}).at("ok").get<bool>());
  const std::string ran = output({"run", plan, "--seed", "3"});
  EXPECT_THAT(ran, HasSubstr("seed 3"));
  EXPECT_THAT(ran, HasSubstr("one device"));
  const json exported = json::parse(output({"export", plan, "--json"}));
  EXPECT_EQ(exported.at("format"), "contextile-plan");
  EXPECT_EQ(exported.at("rounds").at(0).at("devices").size(), 4U);
  const json one = json::parse(output({"export", plan, "--rank", "2"}));
  ASSERT_EQ(one.at("rounds").at(0).at("devices").size(), 1U);
  EXPECT_EQ(one.at("rounds").at(0).at("devices").at(0).at("rank"), 2);
  EXPECT_EQ(output({"export", plan, "-o", path("e.json")}), "");
  EXPECT_EQ(json::parse(read(path("e.json"))), exported);
}

TEST_F(Commands, PlanPrintsItsStatistics) {
  const std::string text = output(joined({"plan", "-o", path("p.plan")}, small()));
  for (const char* words : {"strategy  auto", "256 tokens, 3 sequences, longest 119",
                            "between nodes", "compute imbalance", "peak memory", "verified: ok"}) {
    EXPECT_THAT(text, HasSubstr(words));
  }
  EXPECT_LE(longest_line(text), 100U);
}

TEST_F(Commands, PlanSearchesForAboutASecondUnlessToldOtherwise) {
  const json plan = plan_document(small());
  EXPECT_EQ(plan.at("strategy"), "auto");
  EXPECT_EQ(plan.at("options").at("steps"), "600000");
  EXPECT_EQ(plan_document(small()).at("digest"), plan.at("digest"));
}

TEST_F(Commands, PlanDocumentHoldsTheStatistics) {
  const json plan = plan_document(small());
  EXPECT_EQ(plan.at("tokens"), 256);
  EXPECT_EQ(plan.at("sequences"), 3);
  EXPECT_EQ(plan.at("file"), path("p.plan"));
  EXPECT_TRUE(plan.at("verify").at("ok").get<bool>());
  const std::int64_t pairs = 100 * 101 / 2 + 37 * 38 / 2 + 119 * 120 / 2;
  EXPECT_EQ(plan.at("statistics").at("forward").at("pairs"), pairs);
  EXPECT_EQ(plan.at("statistics").at("backward").at("pairs"), pairs);
}

TEST_F(Commands, SameInputGivesTheSamePlanFile) {
  const std::string first = read(small_plan("first.plan"));
  EXPECT_EQ(read(small_plan("second.plan")), first);
}

TEST_F(Commands, LengthsComeInEveryFormat) {
  const std::string header = "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }";
  std::string npy = std::string("\x93NUMPY\x01\x00\x76\x00", 10);
  npy += header + std::string(0x76 - header.size() - 1, ' ') + "\n";
  const std::string numbers("\x64\0\0\0\x25\0\0\0\x77\0\0\0", 12);  // 100, 37, 119
  npy += numbers;
  std::string idx("MMIDIDX\0\0\1\0\0\0\0\0\0\0\4", 18);                  // version 1, int32
  idx += std::string("\3\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0", 16) + numbers;  // 3 sequences, 4 documents
  idx += std::string("\0\0\0\0\0\0\0\0\x90\1\0\0\0\0\0\0\x24\2\0\0\0\0\0\0", 24);  // byte offsets
  idx += std::string("\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0", 32);
  const std::vector<std::vector<std::string>> inputs = {
      {file("a.txt", "100\n37\n119\n")},
      {file("b.json", "[100, 37, 119]")},
      {file("c.jsonl", "{\"length\": 100}\n{\"length\": 37}\n{\"length\": 119}\n")},
      {file("d.jsonl", "{\"n\": 100}\n{\"n\": 37}\n{\"n\": 119}\n"), "--length-field", "n"},
      {file("e.npy", npy)},
      {file("f.idx", idx)}};
  for (const std::vector<std::string>& input : inputs) {
    SCOPED_TRACE(input[0]);
    const json plan =
        plan_document(joined(small_batch(input[0]), {input.begin() + 1, input.end()}));
    EXPECT_EQ(plan.at("tokens"), 256);
    EXPECT_EQ(plan.at("longest_sequence"), 119);
  }
}

TEST_F(Commands, SizesTakeSuffixes) {
  const json plan = plan_document({"--dataset", "prolong", "--tokens", "4K", "--cluster",
                                   "dgx-h200:1x4", "--max-length", "1K"});
  EXPECT_EQ(plan.at("tokens"), 4096);
  EXPECT_LE(plan.at("longest_sequence"), 1024);
}

TEST_F(Commands, SeveralBatchesMakeSeveralFiles) {
  const json document =
      this->document({"plan", "-o", path("p"), "--dataset", "longdatacollections", "--tokens", "2K",
                      "--batches", "3", "--cluster", "dgx-h200:1x2", "--seed", "5"});
  ASSERT_EQ(document.at("plans").size(), 3U);
  for (const char* name : {"p.0", "p.1", "p.2"}) EXPECT_TRUE(std::filesystem::exists(path(name)));
  EXPECT_FALSE(std::filesystem::exists(path("p")));
  EXPECT_EQ(document.at("plans").at(1).at("file"), path("p.1"));
  EXPECT_NE(document.at("plans").at(0).at("digest"), document.at("plans").at(1).at("digest"));
  EXPECT_EQ(contextile({"verify", path("p.2")}).exit_code, 0);
}

TEST_F(Commands, SeveralMasksShareOnePlan) {
  const std::string plan = small_plan(
      "masks.plan",
      {"--mask", "local=sliding_window:32@3", "--mask", "causal", "--mask", "lambda:4,16@2"});
  const json document = this->document({"run", plan});
  ASSERT_EQ(document.at("masks").size(), 3U);
  EXPECT_EQ(document.at("masks").at(0).at("mask"), "local");
  EXPECT_EQ(document.at("plan").at("masks").at(0).at("layers"), 3);
  EXPECT_TRUE(document.at("ok").get<bool>());
}

TEST_F(Commands, MaskFilesArePlannedAndRun) {
  const std::string mask =
      file("mask.json", R"({"bands": [[0, 200, 0, 50, null, null], [60, 256, 50, 256, -40, 7]]})");
  const std::string plan = small_plan("mask.plan", {"--mask-file", mask});
  EXPECT_TRUE(document({"run", plan}).at("ok").get<bool>());
}

TEST_F(Commands, TensorParallelismShrinksGroupAndHeads) {
  const std::string plan = small_plan("tp.plan", {"--tp", "2", "--strategy", "zigzag"});
  const json exported = json::parse(output({"export", plan}));
  EXPECT_EQ(exported.at("cluster").at("devices_per_node"), 1);
  EXPECT_EQ(exported.at("shape").at("q_heads"), 2);
  EXPECT_EQ(exported.at("shape").at("kv_heads"), 1);
}

TEST_F(Commands, ShapeOptionsReachThePlan) {
  const std::string plan =
      small_plan("shape.plan", {"--value-dim", "16", "--dtype", "f32", "--softcap", "20", "--sink",
                                "--attention-scale", "0.25"});
  const json shape = json::parse(output({"export", plan})).at("shape");
  EXPECT_EQ(shape.at("head_dim"), 32);
  EXPECT_EQ(shape.at("value_dim"), 16);
  EXPECT_EQ(shape.at("dtype"), "f32");
  EXPECT_EQ(shape.at("softcap"), 20);
  EXPECT_EQ(shape.at("scale"), 0.25);
  EXPECT_TRUE(shape.at("sink").get<bool>());
  EXPECT_TRUE(document({"run", plan}).at("ok").get<bool>());
}

TEST_F(Commands, ForwardOnlyPlansHaveNoBackward) {
  const json plan = plan_document(joined(small(), {"--forward-only"}));
  EXPECT_TRUE(plan.at("statistics").contains("forward"));
  EXPECT_FALSE(plan.at("statistics").contains("backward"));
  EXPECT_TRUE(document({"run", path("p.plan")}).at("ok").get<bool>());
}

TEST_F(Commands, HomeLayoutsDecideTheOwners) {
  const auto owned_tokens = [this](const std::vector<std::string>& more) {
    const std::string plan = small_plan("home.plan", more);
    EXPECT_TRUE(document({"run", plan}).at("ok").get<bool>());
    std::vector<std::int64_t> owned(4);
    const json exported = json::parse(output({"export", plan}));
    for (const json& block : exported.at("rounds").at(0).at("blocks")) {
      for (const json& range : block.at("ranges")) {
        owned[block.at("owner").get<std::size_t>()] +=
            range.at(1).get<std::int64_t>() - range.at(0).get<std::int64_t>();
      }
    }
    return owned;
  };
  EXPECT_EQ(owned_tokens({"--layout", "contiguous"}), (std::vector<std::int64_t>{64, 64, 64, 64}));
  // Chunks of 13, 5 and 15 tokens, the last one of each sequence short.
  EXPECT_EQ(owned_tokens({"--layout", "zigzag"}), (std::vector<std::int64_t>{58, 66, 66, 66}));
  const std::string home = file("home.json", R"({"home": [[0, 16, 3], [16, 256, 1]]})");
  EXPECT_EQ(owned_tokens({"--layout", home}), (std::vector<std::int64_t>{0, 240, 0, 16}));
}

TEST_F(Commands, BrokenPlansFailVerificationAndAreNotRun) {
  Plan plan = load_plan(small_plan("broken.plan"));
  std::size_t dropped = 0;
  for (Instruction& instruction : plan.rounds[0].devices[1].programs[0].forward->instructions) {
    auto* attention = std::get_if<AttentionOp>(&instruction);
    if (attention == nullptr || attention->tiles.size() < 2) continue;
    attention->tiles.pop_back();
    ++dropped;
  }
  ASSERT_GT(dropped, 0U);
  plan.digest = compute_digest(plan);
  save_plan(plan, path("broken.plan"));
  const Outcome verified = contextile({"verify", path("broken.plan")});
  EXPECT_EQ(verified.exit_code, 1) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("violation: "));
  EXPECT_THAT(verified.out, HasSubstr("verified: BROKEN"));
  const Outcome as_json = contextile({"verify", path("broken.plan"), "--json"});
  EXPECT_EQ(as_json.exit_code, 1);
  const json document = json::parse(as_json.out);
  EXPECT_FALSE(document.at("ok").get<bool>());
  EXPECT_EQ(document.at("violations").size(), document.at("num_violations"));
  const auto more = std::to_string(document.at("num_violations").get<int>() - 1);
  EXPECT_THAT(contextile({"verify", path("broken.plan"), "--max-shown", "1"}).out,
              HasSubstr("... and " + more + " more\n"));
  const Outcome ran = contextile({"run", path("broken.plan")});
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_THAT(ran.out, HasSubstr("violation: "));
}

TEST_F(Commands, RunPrintsErrorsBesideOneDevice) {
  const json document = this->document({"run", small_plan("r.plan"), "--seed", "11", "--repeats",
                                        "2", "--cluster", "p4de:2x2", "--timeout", "30"});
  EXPECT_EQ(document.at("seed"), 11);
  const json& mask = document.at("masks").at(0);
  std::vector<std::string> arrays;
  for (const json& error : mask.at("errors")) {
    arrays.push_back(error.at("array"));
    EXPECT_LE(error.at("error"), error.at("bound")) << error;
    EXPECT_GE(error.at("single_device_error"), 0);
  }
  EXPECT_THAT(arrays, testing::ElementsAre("out", "lse", "dq", "dk", "dv"));
  EXPECT_EQ(mask.at("sent_bytes_forward"), mask.at("predicted_bytes_forward"));
  EXPECT_EQ(mask.at("sent_bytes_backward"), mask.at("predicted_bytes_backward"));
  EXPECT_GT(mask.at("sent_bytes_forward"), 0);
}

TEST_F(Commands, RunWithoutComparingHasNoErrors) {
  const json document = this->document({"run", small_plan("n.plan"), "--no-compare"});
  EXPECT_TRUE(document.at("masks").at(0).at("errors").empty());
  EXPECT_TRUE(document.at("ok").get<bool>());
}

TEST_F(Commands, RandomSeedsDifferAndArePrinted) {
  const std::string plan = small_plan("s.plan");
  EXPECT_NE(document({"run", plan}).at("seed"), document({"run", plan}).at("seed"));
}

TEST_F(Commands, CompareListsEveryStrategyWithReasonsOfThoseThatDoNotApply) {
  const std::string text = output(joined({"compare", "--mask", "lambda:4,16"}, small()));
  const json document = this->document(joined({"compare", "--mask", "lambda:4,16"}, small()));
  EXPECT_LE(longest_line(text), 80U) << text;
  std::size_t applied = 0;
  for (const json& row : document.at("strategies")) {
    EXPECT_THAT(text, HasSubstr(row.at("strategy").get<std::string>()));
    if (row.contains("skipped")) continue;
    ++applied;
    EXPECT_TRUE(row.at("verified").get<bool>());
    EXPECT_GE(row.at("forward_inter_bytes"), 0);
    EXPECT_EQ(row.at("batches").size(), 1U);
  }
  EXPECT_GT(applied, 0U);
  // Four ranks, two KV heads.
  EXPECT_THAT(text, HasSubstr("skipped: "));
}

TEST_F(Commands, CompareTakesChosenStrategiesWithOptions) {
  const json rows =
      document(joined({"compare", "--strategy", "zigzag,magi:chunk=32,stages=2"}, small()))
          .at("strategies");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows.at(0).at("strategy"), "zigzag");
  EXPECT_EQ(rows.at(1).at("options").at("stages"), "2");
}

TEST_F(Commands, CompareAgreesWithPlan) {
  const json plan = plan_document(joined({"--strategy", "magi"}, small()));
  const json row =
      document(joined({"compare", "--strategy", "magi"}, small())).at("strategies").at(0);
  EXPECT_EQ(row.at("forward_inter_bytes"), plan.at("statistics").at("forward").at("inter_bytes"));
  EXPECT_EQ(row.at("backward_intra_bytes"), plan.at("statistics").at("backward").at("intra_bytes"));
  EXPECT_EQ(row.at("batches").at(0).at("digest"), plan.at("digest"));
}

TEST_F(Commands, CompareAveragesBatches) {
  const std::vector<std::string> batches = {"--dataset", "prolong",   "--tokens",     "2K",
                                            "--cluster", "local:2x2", "--block-size", "128"};
  const json row = document(joined({"compare", "--strategy", "magi", "--batches", "3"}, batches))
                       .at("strategies")
                       .at(0);
  const std::string text =
      output(joined({"compare", "--strategy", "magi", "--batches", "3"}, batches));
  EXPECT_THAT(text, HasSubstr("3 batches, 6144 tokens"));
  EXPECT_THAT(text, HasSubstr("means"));
  EXPECT_LE(longest_line(text), 80U);
  double sum = 0;
  for (const json& batch : row.at("batches")) {
    sum += batch.at("statistics").at("forward").at("inter_bytes").get<double>();
  }
  EXPECT_DOUBLE_EQ(row.at("forward_inter_bytes").get<double>(), sum / 3);
}

TEST_F(Commands, CompareAsCsvHasOneRowAStrategy) {
  const std::string csv = output(joined({"compare", "--csv"}, small()));
  const json rows = document(joined({"compare"}, small())).at("strategies");
  std::istringstream lines(csv);
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  EXPECT_EQ(line.rfind("strategy,forward_inter_bytes,forward_intra_bytes,", 0), 0U);
  for (const json& row : rows) {
    ASSERT_TRUE(std::getline(lines, line));
    EXPECT_EQ(line.rfind(row.at("strategy").get<std::string>() + ",", 0), 0U) << line;
  }
  EXPECT_FALSE(std::getline(lines, line));
}

TEST_F(Commands, CompareExecutesEveryPlan) {
  const std::vector<std::string> arguments = joined({"compare", "--run", "--seed", "4"}, small());
  EXPECT_LE(longest_line(output(arguments)), 80U);
  std::size_t executed = 0;
  const json compared = document(arguments);
  for (const json& row : compared.at("strategies")) {
    if (row.contains("skipped")) continue;
    EXPECT_TRUE(row.at("batches").at(0).at("run").at("ok").get<bool>()) << row;
    ++executed;
  }
  EXPECT_GT(executed, 1U);
}

TEST_F(Commands, InfoListsWhatIsBuiltIn) {
  const std::string text = output({"info"});
  for (const char* words :
       {"inproc", "reference", "dgx-h200", "magi", "prolong", "lambda", "not built in"}) {
    EXPECT_THAT(text, HasSubstr(words));
  }
  const json info = document({"info"});
  EXPECT_FALSE(info.at("strategies").empty());
  EXPECT_FALSE(info.at("kernels").empty());
  EXPECT_TRUE(info.at("transports").at(0).at("built_in").get<bool>());
}

TEST_F(Commands, AKernelByNameIsTheOneThatRuns) {
  const std::string plan = small_plan("k.plan", {"--dtype", "bf16"});
  const auto run = [&](const std::string& kernel) {
    return document({"run", plan, "--compare", "--kernel", kernel});
  };
  const json reference = run("reference");
  const json portable = run("simd:portable");
  const json best = run("simd");
  EXPECT_EQ(reference.at("kernel"), "reference");
  EXPECT_EQ(portable.at("kernel"), "simd:portable");
  EXPECT_EQ(best.at("kernel"), document({"info"}).at("preferred_kernels").at("bf16"));
  // The result is rounded differently: the arithmetic of the reference is fp64.
  EXPECT_NE(reference.at("masks").at(0).at("errors"), portable.at("masks").at(0).at("errors"));
}

TEST_F(Commands, OutputsThatCannotBeWrittenAreTheEnvironmentsFault) {
  const std::string plan = small_plan("w.plan");
  const Outcome planned = contextile(joined({"plan", "-o", path("no/such/folder.plan")}, small()));
  EXPECT_EQ(planned.exit_code, 3) << planned.err;
  EXPECT_THAT(planned.err, HasSubstr("no/such/folder.plan"));
  const Outcome exported = contextile({"export", plan, "-o", path("no/such/folder.json")});
  EXPECT_EQ(exported.exit_code, 3) << exported.err;
  EXPECT_EQ(contextile({"export", plan, "-o", "/dev/full"}).exit_code, 3);
  const std::string document = file("w.json", output({"export", plan}));
  EXPECT_EQ(contextile({"import", document, "-o", path("no/such/folder.plan")}).exit_code, 3);
}

TEST_F(Commands, NoCommandWritesOverItsInput) {
  const std::string plan = small_plan("p.plan");
  const std::string content = read(plan);
  const std::string hgr = file("g.hgr", "2 4\n1 2\n3 4\n");
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"report", plan, "-o", path("./p.plan")},
                                             {"simulate", plan, "--trace", plan},
                                             {"export", plan, "-o", plan},
                                             {"import", plan, "-o", plan},
                                             {"partition", hgr, "--parts", "2", "-o", hgr}}) {
    expect_bad_input(contextile(command), {"another file than", "for both"});
  }
  EXPECT_EQ(read(plan), content);
}

TEST_F(Commands, ARefusedCommandLeavesNoEmptyFile) {
  const std::string plan = path("refused.plan");
  EXPECT_EQ(
      contextile({"plan", "-o", plan, "--lengths", file("l", "100"), "--cluster", "local:1x2"})
          .exit_code,
      0);
  const std::string trace = path("new.json");
  expect_bad_input(contextile({"simulate", plan, "--cluster", "local:1x4", "--trace", trace}),
                   {"another cluster"});
  EXPECT_FALSE(std::filesystem::exists(trace));
}

TEST_F(Commands, RanksThatStallAreTheEnvironmentsFault) {
  // One rank computes for half a second, the other one waits a millisecond for it.
  const std::string plan = path("stall.plan");
  EXPECT_EQ(contextile({"plan", "-o", plan, "--strategy", "ring", "--lengths", file("l", "8000"),
                        "--heads", "8", "--kv-heads", "8", "--cluster", "local:1x2"})
                .exit_code,
            0);
  const Outcome outcome = contextile({"run", plan, "--no-compare", "--timeout", "0.001"});
  EXPECT_EQ(outcome.exit_code, 3) << outcome.out;
  EXPECT_EQ(outcome.err.rfind("contextile: error: ", 0), 0U) << outcome.err;
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("rank"));
}

TEST_F(Commands, CsvQuotesFieldsWithCommas) {
  const std::string csv =
      output(joined({"compare", "--csv", "--strategy", "magi:chunk=32,stages=2"}, small()));
  EXPECT_THAT(csv, HasSubstr("\n\"magi:chunk=32,stages=2\","));
}

TEST_F(Commands, OutputIsNotColouredUnlessOnATerminal) {
  EXPECT_EQ(output({"verify", small_plan("c.plan")}).find('\x1b'), std::string::npos);
}

}  // namespace
}  // namespace contextile
