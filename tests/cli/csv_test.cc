// --csv of commands: the numbers of --json as rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using nlohmann::json;

class Csv : public ProgramTest {
 protected:
  [[nodiscard]] std::vector<Row> rows(const std::vector<std::string>& arguments) const {
    return rows_of(output(joined(arguments, {"--csv"})));
  }
};

TEST_F(Csv, PlanHasARowForEachBatchAndDirection) {
  const std::vector<std::string> command =
      joined({"plan", "-o", path("p.plan"), "--tokens", "256", "--batches", "2"},
             small_batch(file("lengths.txt", "100\n37\n119\n200\n56\n")));
  const std::vector<Row> table = rows(command);
  ASSERT_EQ(table.size(), 4U);
  const json plans = document(command)["plans"];
  for (std::size_t i = 0; i < table.size(); ++i) {
    const std::string direction = i % 2 == 0 ? "forward" : "backward";
    EXPECT_EQ(table[i].at("direction"), direction);
    EXPECT_EQ(table[i].at("file"), path("p.plan." + std::to_string(i / 2)));
    EXPECT_EQ(table[i].at("ok"), "true");
    const json& statistics = plans[i / 2]["statistics"][direction];
    for (const char* key : {"tiles", "pairs", "intra_bytes", "inter_bytes", "peak_memory_bytes"}) {
      EXPECT_EQ(std::stoll(table[i].at(key)), statistics[key].get<std::int64_t>()) << key;
    }
  }
}

TEST_F(Csv, VerifyHasWhatMovesOrWhatIsWrong) {
  const std::string plan = small_plan("p.plan");
  const std::vector<Row> table = rows({"verify", plan});
  const json movement = document({"verify", plan})["movement"];
  ASSERT_EQ(table.size(), 2U);
  EXPECT_EQ(std::stoll(table[1].at("transfers")),
            movement["backward"]["transfers"].get<std::int64_t>());
}

TEST_F(Csv, RunHasARowForEachMaskAndDirection) {
  const std::string plan = small_plan("p.plan");
  const std::vector<Row> table = rows({"run", plan, "--seed", "1", "--predict"});
  const json mask = document({"run", plan, "--seed", "1"})["masks"][0];
  ASSERT_EQ(table.size(), 2U);
  EXPECT_EQ(std::stoll(table[0].at("sent_bytes")), mask["sent_bytes_forward"]);
  EXPECT_EQ(std::stoll(table[1].at("predicted_bytes")), mask["predicted_bytes_backward"]);
  double worst = 0;
  for (const json& error : mask["errors"]) {
    if (error["array"].get<std::string>().front() != 'd') continue;
    worst = std::max(worst, error["error"].get<double>() / error["bound"].get<double>());
  }
  EXPECT_DOUBLE_EQ(std::stod(table[1].at("error_of_bound")), worst);
  EXPECT_GT(std::stod(table[0].at("predicted_s")), 0);
  EXPECT_EQ(rows({"run", plan, "--no-compare"})[0].count("error_of_bound"), 0U);
}

TEST_F(Csv, PartitionHasOneRow) {
  const std::string hgr = file("g.hgr", "2 4\n1 2\n3 4\n");
  const std::vector<Row> table = rows({"partition", hgr, "--parts", "2"});
  ASSERT_EQ(table.size(), 1U);
  EXPECT_EQ(table[0].at("feasible"), "true");
  EXPECT_EQ(table[0].at("connectivity"), "0");
}

TEST_F(Csv, IsRefusedBesideJson) {
  const std::string plan = small_plan("p.plan");
  const std::string hgr = file("g.hgr", "2 4\n1 2\n3 4\n");
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"verify", plan},
                                             {"run", plan},
                                             {"simulate", plan},
                                             {"validate", hgr},
                                             {"profile"},
                                             {"partition", hgr, "--parts", "2"}}) {
    expect_bad_input(contextile(joined(command, {"--json", "--csv"})), {"either --json or --csv"});
  }
}

}  // namespace
}  // namespace contextile
