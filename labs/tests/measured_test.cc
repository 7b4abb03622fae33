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

TEST_F(MeasuredTable, RefusesBadInput) {
  expect_bad_input(contextile({"table", "measured", "--rows", path("missing")}),
                   {"plans.csv or kernels.csv", "missing"});
  expect_bad_input(contextile({"table", "dcp-fig7", "--rows", path("")}), {"dcp-fig7", "--rows"});
  expect_bad_input(contextile({"table", "measured", "--tokens", "4K"}), {"measured", "--tokens"});
}

}  // namespace
}  // namespace contextile
