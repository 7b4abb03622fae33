// Tables that take many seconds at any size. They are made once each, then looked at in every form.
// The other tables' forms are tested through the program (table_command_test.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <string>
#include <variant>

#include "labs/papers/paper_table.h"
#include "report/json.h"

namespace contextile {
namespace {

// A table of a command line with as few changes as make it quick.
PaperResult result_of(const std::string& name) {
  TableOverrides overrides;
  if (name == "fcp-fig10") overrides.block_size = 32768;
  if (name == "fcp-fig9" || name == "fcp-fig11" || name == "fcp-fig13") {
    overrides.dataset = "longalign";
    overrides.batches = 1;
    overrides.block_size = 524288;
  }
  if (name == "distca-fig9") {
    overrides.dataset = "pretrain";
    overrides.batches = 2;
  }
  return find_paper_table(name).make(overrides);
}

void expect_finite(const std::string& text) {
  EXPECT_THAT(text, testing::Not(testing::ContainsRegex("(^|[ -])(inf|nan)([x%, \n]|$)")));
}

void expect_narrow(const std::string& text) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto characters = std::ranges::count_if(
        line, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
    EXPECT_LE(characters, 80) << line;
  }
}

// Each plot names columns of the table, and numbers to draw.
void expect_drawable(const PaperResult& result) {
  std::set<std::string> keys;
  std::set<std::string> numbers;
  for (std::size_t i = 0; i < result.table.columns().size(); ++i) {
    const std::string& key = result.table.columns()[i].key;
    keys.insert(key);
    for (std::size_t row = 0; row < result.table.num_rows(); ++row) {
      const Cell& cell = result.table.cells(row)[i];
      if (std::holds_alternative<double>(cell)) numbers.insert(key);
    }
  }
  EXPECT_FALSE(result.plots.empty());
  for (const TablePlot& plot : result.plots) {
    EXPECT_TRUE(keys.contains(plot.x)) << plot.x;
    EXPECT_FALSE(plot.y.empty());
    for (const std::string& key : plot.y) EXPECT_TRUE(numbers.contains(key)) << key;
    for (const auto& labels : {plot.series, plot.panels}) {
      for (const std::string& key : labels) EXPECT_TRUE(keys.contains(key)) << key;
    }
  }
}

class SlowTable : public testing::TestWithParam<const char*> {};

TEST_P(SlowTable, IsNarrowFiniteDrawableAndTheSameAsCsv) {
  const PaperResult result = result_of(GetParam());
  ASSERT_GT(result.table.num_rows(), 0U);
  expect_narrow(result.table.text());
  expect_finite(result.table.text());
  for (const Finding& finding : result.findings) expect_finite(finding.ours);
  for (const auto& [what, value] : result.setting) {
    EXPECT_LT(what.size(), 10U) << "wider than the column of labels";
    expect_finite(value);
  }
  EXPECT_EQ(result.table.json().dump().find("null"), std::string::npos) << "not a finite number";
  EXPECT_EQ(result.table.json().size(), result.table.num_rows());
  EXPECT_EQ(std::ranges::count(result.table.csv(), '\n'), 1 + std::ssize(result.table.json()));
  expect_drawable(result);
}

INSTANTIATE_TEST_SUITE_P(Papers, SlowTable,
                         testing::Values("fcp-fig9", "fcp-fig10", "fcp-fig11", "fcp-fig13",
                                         "distca-fig9"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace contextile
