// compare --sensitivity: the constants that a ranking depends on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "cli/program.h"

namespace contextile {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class CompareSensitivity : public ProgramTest {};

TEST_F(CompareSensitivity, IsOneInTextJsonAndCsv) {
  const std::vector<std::string> arguments =
      joined({"compare", "--strategy", "zigzag,magi:chunk=32,auto:steps=1000"}, small());
  const std::string text = output(joined(arguments, {"--sensitivity"}));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80U) << line;
  EXPECT_THAT(text, HasSubstr("made for the cluster as it is"));
  const json compared = document(joined(arguments, {"--sensitivity"}));
  const json& kept = compared.at("sensitivity");
  EXPECT_EQ(kept.at("plans"), "kept");
  for (std::size_t s = 0; s < compared.at("strategies").size(); ++s) {
    const json& strategy = compared.at("strategies").at(s);
    EXPECT_DOUBLE_EQ(strategy.at("predicted_total_s").get<double>(),
                     kept.at("clusters").at(0).at("strategies").at(s).at("predicted_s"));
  }
  const json replan = document(joined(arguments, {"--sensitivity", "replan"})).at("sensitivity");
  EXPECT_EQ(replan.at("plans"), "replan");
  ASSERT_EQ(replan.at("clusters").size(), kept.at("clusters").size());
  // On the cluster as it is, both are the same.
  EXPECT_EQ(replan.at("clusters").at(0), kept.at("clusters").at(0));
  EXPECT_THAT(output(joined(arguments, {"--sensitivity=replan"})), HasSubstr("every plan made"));

  const std::string csv = output(joined(arguments, {"--csv", "--sensitivity"}));
  EXPECT_EQ(csv.rfind("constant,was,is,fastest,", 0), 0U) << csv;
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count(csv, '\n')),
            kept.at("clusters").size() + 1);
  EXPECT_FALSE(document(arguments).contains("sensitivity"));
}

}  // namespace
}  // namespace contextile
