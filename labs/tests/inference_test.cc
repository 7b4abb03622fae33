// The tables of inference: the settings that the survey names, and the experiments that explain it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "cli/program.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class InferenceTables : public ProgramTest {
 protected:
  [[nodiscard]] json table(const std::string& name) const {
    const Outcome outcome = contextile({"table", name, "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return json::parse(outcome.out);
  }
};

TEST_F(InferenceTables, TheFirstTokenDependsOnTheNumberOfDevices) {
  const json rows = table("inference-ttft")["rows"];
  const auto seconds = [&](const std::string& layout) {
    for (const json& row : rows) {
      if (row["layout"] == layout) return row["ttft_s"].get<double>();
    }
    ADD_FAILURE() << layout;
    return 0.0;
  };
  EXPECT_LT(seconds("CP 8"), seconds("TP 2 x CP 4"));
  EXPECT_LT(seconds("TP 2 x CP 4"), seconds("TP 8"));
  EXPECT_NEAR(seconds("TP 8 x CP 8"), seconds("TP 8") / 8, 0.05);
}

TEST_F(InferenceTables, AnAllGatherSendsAnEqualShareOfABroadcast) {
  const json rows = table("inference-query")["rows"];
  ASSERT_EQ(rows.size(), 3U * 4);
  for (const json& row : rows) {
    EXPECT_EQ(row["broadcast_bytes"].get<double>(),
              row["devices"].get<double>() * row["all_gather_bytes"].get<double>());
  }
}

TEST_F(InferenceTables, GiveNoVerdictOnSpeedsThatTheSourceDoesNotClaim) {
  const json document = table("inference-query");
  ASSERT_EQ(document["findings"].size(), 1U);
  // 2 · 8 heads of 128 in bf16 and 80 layers are 327,680 bytes per token. There are a million
  // tokens, three quarters on other ranks, and 20 steps per second.
  EXPECT_THAT(document["findings"][0]["ours"].get<std::string>(), HasSubstr("4.9 TB/s of keys"));
  EXPECT_EQ(document["findings"][0]["agrees"], true);
  EXPECT_THAT(document["differences"].dump(), HasSubstr("claims no speed"));
}

TEST_F(InferenceTables, FixedTimesOfLayersLowerTheGainsOfHelix) {
  const json rows = table("inference-helix")["rows"];
  double before = 1e9;
  for (const json& row : rows) {
    if (row["latency_us"] != 1) continue;
    EXPECT_LT(row["r1_interactivity"], before);
    before = row["r1_interactivity"];
  }
  EXPECT_NEAR(before, 1.5, 0.01);
}

TEST_F(InferenceTables, EveryModeHasATime) {
  const json rows = table("inference-modes")["rows"];
  ASSERT_EQ(rows.size(), 3U * 2 * 4);
  for (const json& row : rows) EXPECT_GT(row["ttft_s"], row["exposed_s"]);
}

TEST_F(InferenceTables, CountWhereAnAllGatherExposesMoreThanARing) {
  const json document = table("inference-modes");
  double ring_s = 0;
  int more = 0;
  for (const json& row : document["rows"]) {
    if (row["mode"] == "pass_kv") ring_s = row["exposed_s"];
    if (row["mode"] != "all_gather") continue;
    EXPECT_GE(row["exposed_s"].get<double>(), ring_s) << row;
    if (row["exposed_s"] > ring_s) ++more;
  }
  EXPECT_EQ(document["findings"][1]["ours"],
            "it leaves more exposed in " + std::to_string(more) + " of 6 settings");
  EXPECT_EQ(document["findings"][1]["agrees"], true);
  EXPECT_EQ(document["findings"][2]["agrees"], true);
}

TEST_F(InferenceTables, FollowNoOverrides) {
  for (const char* name : {"ttft", "query", "modes", "helix"}) {
    const Outcome outcome =
        contextile({"table", std::string("inference-") + name, "--tokens", "8K"});
    EXPECT_EQ(outcome.exit_code, 2);
    EXPECT_THAT(outcome.err, HasSubstr("--tokens"));
  }
}

}  // namespace
}  // namespace contextile
