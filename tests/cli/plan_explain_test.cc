// `contextile plan --explain`: the phases of a search as a table and as JSON, and the cases in
// which it is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class PlanExplain : public ProgramTest {
 protected:
  [[nodiscard]] json plan_document(const std::vector<std::string>& arguments) const {
    return document(joined({"plan", "-o", path("p.plan")}, arguments)).at("plans").at(0);
  }
};

TEST_F(PlanExplain, ExplainShowsThePhasesOfTheSearchAndTheWinner) {
  const std::vector<std::string> plan =
      joined({"plan", "-o", path("p.plan"), "--explain"}, small());
  const std::string text = output(plan);
  for (const char* words :
       {"phase of the search", "refine rows", "partitioning", "winner    ", "found in  "}) {
    EXPECT_THAT(text, HasSubstr(words));
  }
  const json one = document(plan).at("plans").at(0);
  const json& search = one.at("search");
  std::int64_t tried = 0;
  bool winner_has_phase = false;
  for (const json& phase : search.at("phases")) {
    tried += phase.at("candidates").get<std::int64_t>();
    if (phase.at("phase") == search.at("found_in")) {
      winner_has_phase = phase.at("improved").get<bool>();
    }
  }
  EXPECT_TRUE(winner_has_phase);
  EXPECT_EQ(std::to_string(tried), one.at("options").at("tried"));
  EXPECT_EQ(search.at("winner"), one.at("options").at("chosen"));
  EXPECT_FALSE(plan_document(small()).contains("search"));
  EXPECT_EQ(plan_document(small()).at("digest"), one.at("digest"));
}

TEST_F(PlanExplain, ExplainIsRefusedWhereThereIsNothingToShowOrNowhereToShowIt) {
  const std::vector<std::string> plan = joined({"plan", "--explain"}, small());
  const std::vector<std::string> to_file = joined(plan, {"-o", path("p.plan")});
  expect_bad_input(contextile(joined(to_file, {"--strategy", "zigzag"})),
                   {"--explain", "searches in phases", "'zigzag'"});
  expect_bad_input(contextile(joined(to_file, {"--csv"})), {"--explain", "--json", "found --csv"});
  expect_bad_input(contextile(joined(plan, {"-o", "-"})), {"--output", "with --explain"});
}

}  // namespace
}  // namespace contextile
