// `contextile validate`, end to end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kMeasuredRows =
    "source,split,cluster,method,strategy,lengths,mask,q_heads,kv_heads,head_dim,dtype,"
    "direction,ms,note\n"
    "me,judged,dgx-h100:1x2,p2p,zigzag,8K,causal,8,2,128,bf16,forward,0.1,\n"
    "me,judged,dgx-h100:1x2,plain,ring,8K,causal,8,2,128,bf16,forward,0.2,\n"
    "me,fitted,dgx-h100:1x2,p2p,zigzag,8K,causal,8,2,128,bf16,backward,0.3,\n"
    "me,judged,dgx-h100:1x2,stripe,,8K,causal,8,2,128,bf16,forward,0.1,striped tokens\n";

class ValidateCommand : public ProgramTest {};

TEST_F(ValidateCommand, PrintsRowsSummariesAndWhatItCannotPredict) {
  const std::string text = output({"validate", file("rows.csv", kMeasuredRows)});
  EXPECT_THAT(text, AllOf(HasSubstr("me, judged: 8/2 heads of 128, bf16"),
                          HasSubstr("me, fitted: 8/2 heads of 128, bf16"), HasSubstr("measured"),
                          HasSubstr("predicted"), HasSubstr("tau"),
                          HasSubstr("1 row not predicted"), HasSubstr("striped tokens")));
}

TEST_F(ValidateCommand, PrintsTheSameAsJson) {
  const std::string path = file("rows.csv", kMeasuredRows);
  const json document = this->document({"validate", path, "--json"});
  EXPECT_EQ(document["command"], "validate");
  EXPECT_EQ(document["file"], path);
  ASSERT_EQ(document["rows"].size(), 4U);
  const json& row = document["rows"][0];
  EXPECT_EQ(row["line"], 2);
  EXPECT_EQ(row["split"], "judged");
  EXPECT_EQ(row["strategy"], "zigzag");
  EXPECT_DOUBLE_EQ(row["measured_s"].get<double>(), 1e-4);
  EXPECT_NEAR(row["ratio"].get<double>(), row["predicted_s"].get<double>() / 1e-4, 1e-9);
  EXPECT_FALSE(document["rows"][3].contains("predicted_s"));
  EXPECT_THAT(document["rows"][3]["reason"].get<std::string>(), HasSubstr("striped tokens"));
  EXPECT_EQ(document["methods"].size(), 4U);  // p2p twice, by split
  ASSERT_EQ(document["experiments"].size(), 1U);
  EXPECT_EQ(document["experiments"][0]["pairs"], 1);
  EXPECT_EQ(document["experiments"][0]["tau"], 1.0);
  ASSERT_EQ(document["unpredicted"].size(), 1U);
  EXPECT_EQ(document["unpredicted"][0]["line"], 5);
  EXPECT_EQ(document["unpredicted"][0]["method"], "stripe");
}

TEST_F(ValidateCommand, PrintsTheRowsAsCsv) {
  const std::vector<Row> rows =
      rows_of(output({"validate", file("rows.csv", kMeasuredRows), "--csv"}));
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[1].at("method"), "plain");
  EXPECT_EQ(rows[3].at("predicted_s"), "");
}

constexpr const char* kMeasuredSteps =
    "source,split,cluster,method,strategy,lengths,mask,q_heads,kv_heads,head_dim,dtype,direction,"
    "ms,model,tp\n"
    "me,judged,dgx-h100:1x8,p2p,zigzag,16K,causal,,,,,step,900,mine.json,4\n"
    "me,judged,dgx-h100:1x8,p2p,zigzag,16K,causal,4,4,64,bf16,forward,0.1,,\n";

TEST_F(ValidateCommand, PredictsStepsOfModelsBesideTheRows) {
  static_cast<void>(file("mine.json",
                         R"({"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 8, "head_dim": 64,
                             "ffn": 2048, "vocabulary": 32000})"));
  const std::string path = file("steps.csv", kMeasuredSteps);
  const json document = this->document({"validate", path, "--json"});
  const json& row = document["rows"][0];
  EXPECT_EQ(row["direction"], "step");
  EXPECT_EQ(row["model"], "mine.json");
  EXPECT_EQ(row["cp"], 2);
  EXPECT_EQ(row["q_heads"], 2);
  ASSERT_EQ(document["methods"].size(), 2U);
  EXPECT_EQ(document["methods"][0]["kind"], "step");
  EXPECT_EQ(document["methods"][1]["kind"], "attention");
  const json step =
      this->document({"iterate", "--model", this->path("mine.json"), "--cluster", "dgx-h100:1x8",
                      "--tp", "4", "--strategy", "zigzag", "--lengths", file("one.txt", "16384\n"),
                      "--wire", "original", "--json"});
  EXPECT_DOUBLE_EQ(row["predicted_s"].get<double>(), step["steps"][0]["time_s"].get<double>());
  const std::vector<Row> rows = rows_of(output({"validate", path, "--csv"}));
  EXPECT_EQ(rows[0].at("gradient_overlap"), "on");
  EXPECT_EQ(rows[1].at("model"), "");
  EXPECT_THAT(output({"validate", path}), HasSubstr("me, p2p, steps "));
}

TEST_F(ValidateCommand, ReadsClusterFilesBesideTheRows) {
  static_cast<void>(file("mine.json", R"({"preset": "dgx-h100:1x2", "name": "mine"})"));
  std::string rows = kMeasuredRows;
  rows.replace(rows.find("dgx-h100:1x2"), 12, "mine.json");
  const json document = this->document({"validate", file("rows.csv", rows), "--json"});
  EXPECT_EQ(document["rows"][0]["cluster"], "mine.json");
  EXPECT_TRUE(document["rows"][0].contains("ratio"));
}

TEST_F(ValidateCommand, PredictsOnAnotherMachine) {
  const json document = this->document(
      {"validate", file("rows.csv", kMeasuredRows), "--cluster", "p4de:1x4", "--json"});
  EXPECT_EQ(document["unpredicted"].size(), 4U);
  EXPECT_THAT(document["unpredicted"][0]["reason"].get<std::string>(),
              HasSubstr("the given cluster has 1 x 4"));
}

TEST_F(ValidateCommand, RefusesBadRows) {
  std::string rows = kMeasuredRows;
  rows.replace(rows.find("zigzag"), 6, "zigzga");
  expect_bad_input(contextile({"validate", file("bad.csv", rows)}),
                   {"bad.csv: line 2, strategy: ", "did you mean 'zigzag'?"});
  expect_bad_input(contextile({"validate", file("empty.csv", "")}), {"empty.csv", "found nothing"});
  expect_bad_input(contextile({"validate", path("missing.csv")}), {"missing.csv", "cannot read"});
  expect_bad_input(contextile({"validate", file("nul.csv", std::string("a\0b\n", 4))}), {"0x00"});
  expect_bad_input(contextile({"validate"}), {"FILE"});
  expect_bad_input(contextile({"validate", file("rows.csv", kMeasuredRows), "--cluster", "dgx"}),
                   {"dgx-h100"});
}

}  // namespace
}  // namespace contextile
