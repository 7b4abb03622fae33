// The first output that a newcomer sees: help, a predicted time, one table of strategies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class FirstMinutes : public ProgramTest {
 protected:
  [[nodiscard]] json plan_document(const std::vector<std::string>& arguments) const {
    return document(joined({"plan", "-o", path("p.plan")}, arguments)).at("plans").at(0);
  }
};

TEST_F(FirstMinutes, CompareSortsOneTableByTheTimeOfALayerAndSaysHowFastTheBestIs) {
  const std::vector<std::string> compare =
      joined({"compare", "--strategy", "ring,zigzag,magi:chunk=32"}, small());
  const std::string text = output(compare);
  EXPECT_LE(longest_line(text), 80U) << text;
  const json document = this->document(compare);
  EXPECT_EQ(document.at("now"), "zigzag");
  std::vector<std::pair<double, std::string>> by_time;
  double now_s = 0;
  for (const json& row : document.at("strategies")) {
    by_time.emplace_back(row.at("predicted_layer_s"), row.at("strategy"));
    if (row.at("strategy") == "zigzag") now_s = row.at("predicted_layer_s");
  }
  for (const json& row : document.at("strategies")) {
    EXPECT_DOUBLE_EQ(row.at("predicted_speed_of_now").get<double>(),
                     now_s / row.at("predicted_layer_s").get<double>());
  }
  std::ranges::sort(by_time);
  const std::string table = text.substr(0, text.find(" is predicted"));
  std::size_t place = 0;
  for (const auto& [time_s, name] : by_time) {
    const std::size_t found = table.find('\n' + name + ' ');
    ASSERT_NE(found, std::string::npos) << name << '\n' << text;
    EXPECT_GT(found, place) << name << '\n' << text;
    EXPECT_EQ(table.find('\n' + name + ' ', found + 1), std::string::npos) << text;
    place = found;
  }
  EXPECT_THAT(text, HasSubstr("x speed"));
  EXPECT_THAT(text, HasSubstr("is predicted"));
  // Against the fastest, and with the other tables.
  const std::string best = by_time.front().second;
  EXPECT_THAT(output(joined(compare, {"--now", best})),
              HasSubstr(best + " is predicted the fastest of these, and "));
  EXPECT_THAT(output(joined(compare, {"--details"})), HasSubstr("uneven: the part"));
}

TEST_F(FirstMinutes, PlanTellsItsPredictedTimeAndThatOfAnotherMethod) {
  const std::vector<std::string> plan =
      joined({"plan", "-o", path("p.plan"), "--strategy", "ring"}, small());
  const json one = document(plan).at("plans").at(0).at("prediction");
  const json simulated = document({"simulate", path("p.plan")});
  EXPECT_EQ(one.at("other"), "zigzag");
  EXPECT_GT(one.at("other_s"), 0);
  EXPECT_GE(one.at("waiting"), 0);
  EXPECT_LT(one.at("waiting"), 1);
  const std::string text = output(plan);
  EXPECT_THAT(text, HasSubstr("\npredicted "));
  EXPECT_THAT(text, HasSubstr("% of it\n"));
  EXPECT_THAT(text, HasSubstr("          zigzag: predicted "));
  EXPECT_LE(longest_line(text), 80U) << text;
  EXPECT_THAT(output(joined(plan, {"--no-prediction"})), Not(HasSubstr("predicted ")));
  // A search has simulated other methods.
  const json searched = plan_document(small()).at("prediction");
  EXPECT_TRUE(searched.contains("time_s"));
  const json zigzag = plan_document(joined({"--strategy", "zigzag"}, small())).at("prediction");
  EXPECT_FALSE(zigzag.contains("other"));
  EXPECT_NEAR(one.at("time_s").get<double>(), simulated.at("time_s").get<double>(), 1e-12);
}

TEST_F(FirstMinutes, NoCommandPrintsTheHelp) {
  const Outcome outcome = contextile({});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.out, output({"--help"}));
}

}  // namespace
}  // namespace contextile
