// Every kind of bad input ends with exit code 2 and one line that says expected, found and where.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

class BadInput : public ProgramTest {
 protected:
  // Runs `plan` on a good batch with more options, which override nothing and only add.
  [[nodiscard]] Outcome plan_with(const std::vector<std::string>& more) const {
    const std::string lengths = file("good.txt", "100\n37\n119\n");
    return contextile(joined({"plan", "-o", path("p.plan"), "--lengths", lengths}, more));
  }
  [[nodiscard]] Outcome plan_lengths(std::string_view name, std::string_view content) const {
    return contextile({"plan", "-o", path("p.plan"), "--lengths", file(name, content)});
  }
};

TEST_F(BadInput, NoPredictionIsRefusedWhereNoneIsShown) {
  expect_bad_input(plan_with({"--no-prediction", "--csv"}), {"--no-prediction", "found --csv"});
  expect_bad_input(
      contextile({"plan", "-o", "-", "--no-prediction", "--lengths", file("l.txt", "64\n")}),
      {"--no-prediction", "found --output -"});
}

TEST_F(BadInput, CompareRefusesAStrategyOfNowThatIsNotComparedAndOptionsOfTables) {
  const std::string lengths = file("l.txt", "64\n");
  const std::vector<std::string> compare = {"compare",   "--lengths",  lengths,      "--cluster",
                                            "local:1x2", "--strategy", "zigzag,ring"};
  expect_bad_input(contextile(joined(compare, {"--now", "magi"})),
                   {"--now", "a compared strategy (zigzag, ring)", "found 'magi'"});
  expect_bad_input(contextile(joined(compare, {"--now", "ring", "--csv"})),
                   {"--now", "found --csv"});
  expect_bad_input(contextile(joined(compare, {"--details", "--json"})),
                   {"--details", "found --json"});
}

TEST_F(BadInput, UnknownCommandSuggestsOne) {
  expect_bad_input(contextile({"verfy"}),
                   {"expected a command", "verfy", "did you mean 'verify'?"});
  expect_bad_input(contextile({"teleport", "x"}), {"expected a command", "'teleport'"});
}

TEST_F(BadInput, UnknownOptionSuggestsOne) {
  expect_bad_input(plan_with({"--tokns", "5"}),
                   {"plan", "expected a known option", "'--tokns'", "did you mean '--tokens'?"});
  expect_bad_input(contextile({"--nonsense"}), {"'--nonsense'"});
}

TEST_F(BadInput, UnknownOptionIsNamedBeforeAMissingOne) {
  expect_bad_input(contextile({"plan", "--outptu", "x"}), {"'--outptu'", "'--output'"});
}

TEST_F(BadInput, SuperfluousArgument) {
  expect_bad_input(contextile({"verify", "a.plan", "b.plan"}),
                   {"expected no more arguments", "'b.plan'"});
}

TEST_F(BadInput, OptionWithoutItsValue) {
  expect_bad_input(contextile({"plan", "-o", path("p.plan"), "--tokens"}),
                   {"--tokens: expected a value, found none"});
}

TEST_F(BadInput, EmptyValues) {
  for (const char* option : {"--mask", "--mask-file", "--cluster", "--strategy", "--layout",
                             "--dataset", "--dtype", "--tokens"}) {
    expect_bad_input(plan_with({option, ""}),
                     {std::string(option) + ": expected a value, found ''"});
  }
  expect_bad_input(contextile({"plan", "-o", "", "--dataset", "prolong"}), {"--output"});
}

TEST_F(BadInput, RequiredOptionsAreRequired) {
  expect_bad_input(contextile({"plan", "--dataset", "prolong"}), {"expected --output, found none"});
  expect_bad_input(contextile({"verify"}), {"expected PLAN, found none"});
}

TEST_F(BadInput, OptionGivenTwice) {
  expect_bad_input(plan_with({"--heads", "4", "--heads", "8"}),
                   {"--heads: expected once, found again"});
}

TEST_F(BadInput, NumbersOfEveryOption) {
  for (const char* option : {"--tokens", "--batches", "--max-length", "--heads", "--kv-heads",
                             "--head-dim", "--value-dim", "--tp", "--pp", "--block-size",
                             "--token-limit", "--tokens-multiple", "--memory-limit"}) {
    for (const char* value : {"0", "-1", "x", "1.5", "9223372036854775808", "99999999999G"}) {
      SCOPED_TRACE(std::string(option) + "=" + value);
      expect_bad_input(plan_with({std::string(option) + "=" + value}),
                       {option, "expected a whole number of at least 1", value});
    }
  }
  expect_bad_input(plan_with({"--heads", "4G"}), {"--heads", "2147483647"});
  for (const char* option : {"--scale", "--softcap", "--attention-scale"}) {
    expect_bad_input(plan_with({option, "1e"}), {option, "expected a number", "'1e'"});
    expect_bad_input(plan_with({option, "nan"}), {option, "expected a number", "'nan'"});
  }
  expect_bad_input(plan_with({"--scale", "0"}), {"--scale", "above 0", "'0'"});
}

TEST_F(BadInput, NegativeNumbersAsSeparateArguments) {
  expect_bad_input(plan_with({"--tokens", "-5"}), {"--tokens", "'-5'"});
}

TEST_F(BadInput, LengthsThatAreEmpty) {
  expect_bad_input(plan_lengths("empty.txt", ""), {"empty.txt", "expected", "found"});
  expect_bad_input(plan_lengths("empty.json", "[]"), {"empty.json", "expected", "found"});
  expect_bad_input(plan_lengths("blank.txt", "\n \n"), {"blank.txt", "expected"});
}

TEST_F(BadInput, LengthsThatAreNotPositive) {
  expect_bad_input(plan_lengths("zero.txt", "5\n0\n7\n"), {"zero.txt", "2", "found 0"});
  expect_bad_input(plan_lengths("negative.json", "[5, 7, -3]"), {"negative.json", "2", "-3"});
}

TEST_F(BadInput, LengthsThatAreGarbage) {
  expect_bad_input(plan_lengths("words.txt", "5\nseven\n"), {"words.txt", "2", "seven"});
  expect_bad_input(plan_lengths("open.json", "[5, "), {"open.json"});
  expect_bad_input(plan_lengths("lines.jsonl", "{\"length\": 5}\n{\"size\": 7}\n"),
                   {"lines.jsonl", "2", "length"});
  expect_bad_input(plan_lengths("short.npy", "\x93NUMPY"), {"short.npy"});
  expect_bad_input(plan_lengths("short.idx", "MMIDIDX"), {"short.idx"});
  expect_bad_input(plan_lengths("binary", std::string("\0\1\2\377", 4)), {"binary"});
}

TEST_F(BadInput, LengthsThatCannotBeRead) {
  expect_bad_input(contextile({"plan", "-o", path("p"), "--lengths", path("missing.txt")}),
                   {"missing.txt", "No such file"});
  expect_bad_input(contextile({"plan", "-o", path("p"), "--lengths", path("")}),
                   {path(""), "directory"});
  if (geteuid() == 0) return;  // root reads everything
  const std::string locked = file("locked.txt", "5\n");
  std::filesystem::permissions(locked, std::filesystem::perms::none);
  expect_bad_input(contextile({"plan", "-o", path("p"), "--lengths", locked}), {"locked.txt"});
}

TEST_F(BadInput, LengthsAndDatasetExcludeEachOther) {
  expect_bad_input(plan_with({"--dataset", "prolong"}), {"--lengths", "--dataset", "found both"});
  expect_bad_input(contextile({"plan", "-o", path("p")}),
                   {"--lengths", "--dataset", "found neither"});
}

TEST_F(BadInput, DatasetsNeedAKnownNameAndTokens) {
  expect_bad_input(contextile({"plan", "-o", path("p"), "--dataset", "prolonk", "--tokens", "1K"}),
                   {"prolonk", "did you mean 'prolong'?"});
  expect_bad_input(contextile({"plan", "-o", path("p"), "--dataset", "prolong"}), {"tokens"});
}

TEST_F(BadInput, LengthsThatDoNotFillTheBatches) {
  expect_bad_input(plan_with({"--tokens", "1000"}), {"expected 1000 tokens", "256"});
  expect_bad_input(plan_with({"--batches", "2"}), {"batches"});
}

TEST_F(BadInput, HeadsThatDoNotDivide) {
  expect_bad_input(plan_with({"--heads", "32", "--kv-heads", "5"}), {"32", "5"});
  expect_bad_input(plan_with({"--tp", "16"}), {"16"});
  expect_bad_input(plan_with({"--heads", "12", "--kv-heads", "4", "--tp", "8"}),
                   {"--tp", "12 query heads", "4 KV heads", "found 8"});
  expect_bad_input(plan_with({"--cluster", "dgx-h200:2x8", "--pp", "3"}), {"3"});
}

TEST_F(BadInput, UnknownDtypes) {
  expect_bad_input(plan_with({"--dtype", "fp8"}), {"fp8", "bf16"});
  expect_bad_input(plan_with({"--wire", "fp8"}), {"fp8", "bf16"});
}

TEST_F(BadInput, UnknownClusters) {
  expect_bad_input(plan_with({"--cluster", "dgx-h20"}), {"dgx-h20", "did you mean 'dgx-h200'?"});
  expect_bad_input(plan_with({"--cluster", "dgx-h200:0x8"}), {"0"});
  expect_bad_input(plan_with({"--cluster", path("missing.json")}), {"missing.json"});
  expect_bad_input(plan_with({"--cluster", file("c.json", "{\"nodez\": 2}")}), {"c.json", "nodez"});
}

TEST_F(BadInput, UnknownStrategiesAndTheirOptions) {
  expect_bad_input(plan_with({"--strategy", "zigzak"}), {"zigzak", "did you mean 'zigzag'?"});
  expect_bad_input(plan_with({"--strategy", "magi:chnk=512"}), {"magi", "chnk", "'chunk'"});
  expect_bad_input(plan_with({"--strategy", "magi:chunk=0"}), {"chunk", "0"});
  expect_bad_input(plan_with({"--strategy", "magi,ring"}), {"expected one strategy", "found 2"});
  expect_bad_input(plan_with({"--strategy", "chunk=512"}), {"chunk=512"});
}

TEST_F(BadInput, MoreHeadParallelRanksThanKvHeads) {
  expect_bad_input(plan_with({"--strategy", "ulysses", "--cluster", "dgx-h200:2x6"}),
                   {"ulysses", "12", "8"});
}

TEST_F(BadInput, UnknownMasks) {
  expect_bad_input(plan_with({"--mask", "casual"}), {"casual", "'causal'"});
  expect_bad_input(plan_with({"--mask", "sliding_window:0"}), {"sliding_window"});
  expect_bad_input(plan_with({"--mask", "causal@0"}), {"causal@0"});
  expect_bad_input(plan_with({"--mask", "a=causal", "--mask", "a=full"}), {"'a'"});
}

TEST_F(BadInput, MaskFilesThatDoNotFitTheBatch) {
  const auto with_mask = [this](std::string_view content) {
    return plan_with({"--mask-file", file("mask.json", content)});
  };
  expect_bad_input(with_mask(R"({"bands": [[0, 9, 0, 9, null, 0], [5, 7, 3, 4, null, null]]})"),
                   {"mask.json", "0", "1"});
  expect_bad_input(with_mask(R"({"bands": [[0, 300, 0, 9, null, 0]]})"),
                   {"mask.json", "256", "300"});
  expect_bad_input(with_mask(R"({"bands": [[0, 9, 0]]})"), {"mask.json"});
  expect_bad_input(with_mask("[]"), {"mask.json"});
  expect_bad_input(plan_with({"--mask-file", path("missing.json")}), {"missing.json"});
  expect_bad_input(plan_with({"--mask", "causal", "--mask-file", file("m.json", "{}")}),
                   {"--mask", "--mask-file", "found both"});
}

TEST_F(BadInput, LayoutsThatDoNotFitTheBatch) {
  const auto with_layout = [this](std::string_view content) {
    return plan_with({"--cluster", "dgx-h200:1x2", "--layout", file("home.json", content)});
  };
  expect_bad_input(with_layout(R"({"home": [[0, 256, 2]]})"), {"home.json", "home[0]", "found 2"});
  expect_bad_input(with_layout(R"({"home": [[0, 200, 0]]})"), {"home", "200"});
  expect_bad_input(with_layout(R"({"home": [[0, 256]]})"), {"home.json", "[begin, end, rank]"});
  expect_bad_input(with_layout(R"({"house": []})"), {"home.json", "house"});
  expect_bad_input(with_layout("zigzag"), {"home.json"});
  expect_bad_input(plan_with({"--layout", "zikzak"}), {"zikzak"});
}

TEST_F(BadInput, PlanFilesThatAreNoPlans) {
  for (const char* command : {"verify", "run", "export"}) {
    SCOPED_TRACE(command);
    expect_bad_input(contextile({command, path("missing.plan")}), {"missing.plan", "No such file"});
    expect_bad_input(contextile({command, path("")}), {"directory"});
    expect_bad_input(contextile({command, file("empty.plan", "")}), {"empty.plan"});
    expect_bad_input(contextile({command, file("foreign.plan", "%PDF-1.7 and so on, and so on")}),
                     {"foreign.plan", "expected", "found"});
  }
}

TEST_F(BadInput, TruncatedAndDamagedPlans) {
  const std::string bytes = read(small_plan("whole.plan"));
  ASSERT_GT(bytes.size(), 100U);
  for (const double share : {0.01, 0.3, 0.5, 0.9, 0.999}) {
    const auto size = static_cast<std::size_t>(share * static_cast<double>(bytes.size()));
    SCOPED_TRACE(size);
    expect_bad_input(contextile({"verify", file("cut.plan", bytes.substr(0, size))}), {"cut.plan"});
  }
  std::string damaged = bytes;
  damaged[damaged.size() / 2] ^= 0x10;
  expect_bad_input(contextile({"run", file("damaged.plan", damaged)}), {"damaged.plan"});
}

TEST_F(BadInput, PlanForAnotherCluster) {
  const std::string plan = small_plan("two_by_two.plan");
  expect_bad_input(contextile({"run", plan, "--cluster", "dgx-h200:1x8"}),
                   {"a plan for another cluster", "1 x 8", "2 x 2"});
}

TEST_F(BadInput, RunSettings) {
  const std::string plan = small_plan("run.plan");
  expect_bad_input(contextile({"run", plan, "--transport", "carrier_pigeon"}),
                   {"--transport", "inproc", "carrier_pigeon"});
  expect_bad_input(contextile({"run", plan, "--kernel", "fast"}), {"fast", "reference"});
  expect_bad_input(contextile({"run", plan, "--timeout", "0"}), {"--timeout", "'0'"});
  expect_bad_input(contextile({"run", plan, "--repeats", "0"}), {"--repeats", "'0'"});
}

TEST_F(BadInput, ExportOfARankThereIsNot) {
  expect_bad_input(contextile({"export", small_plan("e.plan"), "--rank", "4"}),
                   {"--rank", "expected 0 to 3", "found 4"});
}

TEST_F(BadInput, DocumentsThatAreNoPlans) {
  const auto import = [&](const std::string& document) {
    return contextile({"import", document, "-o", path("new.plan")});
  };
  const std::string plan = small_plan("p.plan");
  expect_bad_input(import(path("missing.json")), {"missing.json", "No such file"});
  expect_bad_input(import(plan), {"p.plan", "expected a plan as JSON, found the byte 0x00 at 7"});
  expect_bad_input(import(file("a.json", "{\"format\": \"a plan\"}")),
                   {"a.json: format", "expected one of contextile-plan", "'a plan'"});
  expect_bad_input(import(file("one.json", contextile({"export", plan, "--rank", "1"}).out)),
                   {"one.json: rounds[0].devices[0].rank", "expected rank 0", "found 1"});
  EXPECT_FALSE(std::filesystem::exists(path("new.plan")));
}

TEST_F(BadInput, CompareSettings) {
  const std::string lengths = file("good.txt", "100\n37\n119\n");
  expect_bad_input(contextile({"compare", "--lengths", lengths, "--json", "--csv"}),
                   {"--json", "--csv", "found both"});
  expect_bad_input(contextile({"compare", "--lengths", lengths, "--run", "--csv"}), {"--run"});
  expect_bad_input(contextile({"compare", "--lengths", lengths, "--strategy", "zigzag,mgi"}),
                   {"mgi", "did you mean 'magi'?"});
  expect_bad_input(contextile({"compare"}), {"found neither"});
  expect_bad_input(contextile({"compare", "--lengths", lengths, "--sensitivity", "all"}),
                   {"sensitivity: expected kept or replan, found 'all'"});
  expect_bad_input(contextile({"compare", "--dataset", "prolong", "--tokens", "128K", "--run"}),
                   {"--run", "FLOPs", "131072 tokens"});
}

}  // namespace
}  // namespace contextile
