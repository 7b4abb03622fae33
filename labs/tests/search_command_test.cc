// `contextile-labs search`: a search without some of its phases, and the names that it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class SearchCommand : public ProgramTest {
 protected:
  [[nodiscard]] std::vector<std::string> search(const std::vector<std::string>& more = {}) const {
    return joined(joined({"search"}, small()), more);
  }
};

TEST_F(SearchCommand, ShowsTheSearchAndThePredictedTime) {
  const std::string text = output(search());
  for (const char* words : {"phase of the search", "winner    ", "found in  ", "predicted "}) {
    EXPECT_THAT(text, HasSubstr(words));
  }
  EXPECT_THAT(text, Not(HasSubstr("disabled")));
}

TEST_F(SearchCommand, MarksThePhasesThatAreDisabledAndRunsTheOthers) {
  const std::vector<std::string> without =
      search({"--disable", "polish", "--disable", "finish rows"});
  const std::string text = output(without);
  EXPECT_THAT(text, ContainsRegex("\npolish [^\n]* disabled\n"));
  EXPECT_THAT(text, ContainsRegex("\nfinish rows [^\n]* disabled\n"));
  const json all = document(search({"--json"}));
  const json some = document(joined(without, {"--json"}));
  EXPECT_EQ(some["disabled"], json({"polish", "finish rows"}));
  EXPECT_EQ(all["disabled"], json::array());
  const json& phases = some["batches"][0]["search"]["phases"];
  ASSERT_EQ(phases.size(), all["batches"][0]["search"]["phases"].size());
  for (const json& phase : phases) {
    const bool disabled = phase["phase"] == "polish" || phase["phase"] == "finish rows";
    EXPECT_EQ(phase.value("disabled", false), disabled);
    EXPECT_FALSE(disabled && phase["ran"].get<bool>());
  }
  EXPECT_GE(some["batches"][0]["predicted_us"], all["batches"][0]["predicted_us"]);
}

TEST_F(SearchCommand, RefusesUnknownPhasesAndStrategiesWithoutPhases) {
  expect_bad_input(contextile(search({"--disable", "polsih"})),
                   {"expected some of", "'quick uneven rows'", "found 'polsih'", "did you mean"});
  expect_bad_input(contextile(search({"--strategy", "zigzag"})),
                   {"--strategy", "searches in phases", "'zigzag'"});
}

}  // namespace
}  // namespace contextile
