// `contextile-labs table measured` on rows of small plans.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kRowColumns =
    "source,split,cluster,method,strategy,lengths,mask,q_heads,kv_heads,head_dim,dtype,"
    "direction,ms\n";

constexpr const char* kCollectiveColumns = "source,split,cluster,op,devices,nodes,bytes,us\n";

class MeasuredTable : public ProgramTest {
 protected:
  // A folder with these rows of plans and of kernels, those that are not empty.
  [[nodiscard]] std::string folder(const std::string& plans, const std::string& kernels) const {
    std::filesystem::create_directory(path("rows"));
    if (!plans.empty()) static_cast<void>(file("rows/plans.csv", kRowColumns + plans));
    if (!kernels.empty()) static_cast<void>(file("rows/kernels.csv", kRowColumns + kernels));
    return path("rows");
  }
};

TEST_F(MeasuredTable, HoldsJudgedRowsAgainstTheAims) {
  // Measured times that no prediction is near: all aims on plans are missed.
  const std::string rows = folder(
      "me,judged,dgx-h100:1x2,p2p,zigzag,8K,causal,8,2,128,bf16,forward,1000\n"
      "me,judged,dgx-h100:1x2,plain,ring,8K,causal,8,2,128,bf16,forward,900\n"
      "me,fitted,dgx-h100:1x2,p2p,zigzag,4K,causal,8,2,128,bf16,forward,1000\n",
      "me,judged,dgx-h100:1x1,fa,ring,8K,causal,8,2,128,bf16,forward,1000\n");
  const json document = this->document({"table", "measured", "--rows", rows, "--json"});
  ASSERT_EQ(document["rows"].size(), 5U);  // three methods, an order, a group of kernels
  for (const json& row : document["rows"]) {
    EXPECT_EQ(row.contains("met"), row["split"] == "judged") << "only judged rows have verdicts";
    if (row.contains("met")) {
      EXPECT_EQ(row["met"], false) << row;
    }
  }
  EXPECT_EQ(document["rows"][3]["part"], "order");
  EXPECT_EQ(document["rows"][3]["tau"], -1.0);
  EXPECT_EQ(document["rows"][4]["part"], "kernels");
  EXPECT_THAT(document["rows"][4]["name"].get<std::string>(), HasSubstr("above 4K"));
  ASSERT_EQ(document["findings"].size(), 4U);
  for (const json& finding : document["findings"]) EXPECT_EQ(finding["agrees"], false) << finding;
  const std::string text = output({"table", "measured", "--rows", rows});
  EXPECT_THAT(text, AllOf(HasSubstr("aim "), HasSubstr("MISSED"), HasSubstr("about these rows"),
                          HasSubstr("1 judged row of me, p2p")))
      << text;
}

TEST_F(MeasuredTable, ReadsOneFileAlone) {
  const std::string rows =
      folder("", "me,judged,dgx-h100:1x1,fa,ring,8*512,causal,8,2,128,bf16,forward,1\n");
  const json document = this->document({"table", "measured", "--rows", rows, "--json"});
  ASSERT_EQ(document["rows"].size(), 1U);
  EXPECT_THAT(document["rows"][0]["name"].get<std::string>(), HasSubstr("below 1K"));
  EXPECT_EQ(document["findings"].size(), 1U);
}

TEST_F(MeasuredTable, HoldsCollectivesAgainstPresets) {
  std::filesystem::create_directory(path("rows"));
  // dgx-h100, 8 devices, 1 MB: 10.5 + 5.3 + 1000 / 431 us.
  static_cast<void>(
      file("rows/collectives.csv", std::string(kCollectiveColumns) +
                                       "me,judged,dgx-h100,all_gather,8,1,1000000,18.12\n"
                                       "me,judged,dgx-h100,all_gather,8,1,1000000,9.06\n"
                                       "me,judged,dgx-h100,all_gather,8,1,1000000,36.24\n"
                                       "me,fitted,dgx-h100,all_gather,8,1,1000000,1\n"
                                       "me,judged,p4de,all_reduce,16,2,1000000,1\n"
                                       "me,judged,p4de,all_gather,16,2,1000000,1\n"));
  const json document = this->document({"table", "measured", "--rows", path("rows"), "--json"});
  ASSERT_EQ(document["rows"].size(), 3U);
  EXPECT_EQ(document["rows"][0]["split"], "fitted");
  const json& judged = document["rows"][1];
  EXPECT_EQ(judged["name"], "dgx-h100, all_gather");
  EXPECT_EQ(judged["rows"], 3);
  EXPECT_NEAR(judged["median_ratio"].get<double>(), 1, 1e-3);
  EXPECT_NEAR(judged["furthest_ratio"].get<double>(), 2, 1e-2);
  EXPECT_EQ(judged["met"], true);
  EXPECT_EQ(document["rows"][2]["name"], "p4de, all_reduce between nodes");
  EXPECT_EQ(document["rows"][2]["met"], false);
  EXPECT_THAT(output({"table", "measured", "--rows", path("rows")}),
              AllOf(HasSubstr("within a factor of 1.15"), HasSubstr("1 of 2 groups"),
                    HasSubstr("1 row of collectives not predicted")));
}

TEST_F(MeasuredTable, HoldsTrainingStepsInGroupsOfTheirOwn) {
  std::filesystem::create_directory(path("rows"));
  const auto rows = [&](const std::string& ms) {
    const std::string head = "me,judged,dgx-h100:1x8,p2p,zigzag,16K,";
    static_cast<void>(file("rows/steps.csv",
                           "source,split,cluster,method,strategy,lengths,mask,q_heads,kv_heads,"
                           "head_dim,dtype,direction,ms,model,tp\n" +
                               head + "causal,,,,,step," + ms + ",gpt-8b,4\n" + head +
                               "full,,,,,step," + ms + ",gpt-8b,4\n"));
    return document({"table", "measured", "--rows", path("rows"), "--json"});
  };
  const json far = rows("1");
  ASSERT_EQ(far["rows"].size(), 2U) << "one for each mask";
  EXPECT_EQ(far["rows"][0]["part"], "steps");
  EXPECT_EQ(far["rows"][0]["name"], "me, p2p, causal");
  EXPECT_EQ(far["rows"][0]["met"], false);
  ASSERT_EQ(far["findings"].size(), 1U);
  EXPECT_EQ(far["findings"][0]["claim"],
            "steps: median ratio of each group within a factor of 1.1");
  // A measured time of 1 ms makes the ratio the predicted time.
  const double predicted_ms = far["rows"][0]["median_ratio"].get<double>();
  const json near = rows(std::to_string(predicted_ms / 1.05));
  EXPECT_NEAR(near["rows"][0]["median_ratio"].get<double>(), 1.05, 1e-6);
  EXPECT_EQ(near["rows"][0]["met"], true);
  EXPECT_THAT(output({"table", "measured", "--rows", path("rows")}),
              HasSubstr("2 rows of steps.csv"));
}

TEST_F(MeasuredTable, RefusesBadCollectives) {
  std::filesystem::create_directory(path("rows"));
  const auto expect = [&](const std::string& text, const std::vector<std::string>& parts) {
    static_cast<void>(file("rows/collectives.csv", text));
    expect_bad_input(contextile({"table", "measured", "--rows", path("rows")}), parts);
  };
  const std::string columns = kCollectiveColumns;
  expect("", {"collectives.csv", "expected the columns source"});
  expect("source,split\n", {"expected the columns source", "found source, split"});
  expect(columns + "me,judged\n", {"line 2", "expected 8 fields, found 2"});
  expect(columns + "me,unseen,p4de,all_gather,2,1,8,1\n", {"line 2, split", "unseen"});
  expect(columns + "me,judged,local,all_gather,2,1,8,1\n", {"line 2", "local"});
  expect(columns + "me,judged,p4de,gather,2,1,8,1\n", {"line 2, op", "gather"});
  expect(columns + "me,judged,p4de,all_gather,0,1,8,1\n", {"line 2, devices"});
  expect(columns + "me,judged,p4de,all_gather,2,1,8,0\n", {"line 2, us", "above 0"});
}

TEST_F(MeasuredTable, RefusesBadInput) {
  expect_bad_input(contextile({"table", "measured", "--rows", path("missing")}),
                   {"plans.csv, kernels.csv, collectives.csv or steps.csv", "missing"});
  expect_bad_input(contextile({"table", "dcp-fig7", "--rows", path("")}), {"dcp-fig7", "--rows"});
  expect_bad_input(contextile({"table", "measured", "--tokens", "4K"}), {"measured", "--tokens"});
}

}  // namespace
}  // namespace contextile
