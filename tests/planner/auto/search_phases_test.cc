// The phases of `auto`: the table is in order, walked from its first row to its last, and reported.
#include "planner/auto/search_phases.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/planner.h"
#include "support/batches.h"

namespace contextile {
namespace {

PlannedBatch planned_by(const std::string& strategy,
                        const std::map<std::string, std::string>& options,
                        const PlanOptions& plan_options = {}) {
  const std::vector<std::int64_t> lengths = {500, 3000, 40, 1200};
  return plan_batch(batch_of(lengths, "causal"), cluster_of("dgx-h200", 2, 2), {strategy, options},
                    plan_options);
}

TEST(SearchPhases, EveryRowHasANameWorkAndSharesThatDoNotGoBack) {
  std::set<std::string_view> names;
  double spent = 0;
  double shown = 0;
  for (const PhaseRow& row : phase_table()) {
    SCOPED_TRACE(row.name);
    EXPECT_FALSE(row.name.empty());
    EXPECT_FALSE(row.work.empty());
    EXPECT_TRUE(names.insert(row.name).second);
    EXPECT_NE(row.run, nullptr);
    EXPECT_LE(row.draft_share, row.budget_share);
    EXPECT_GE(row.budget_share, spent);
    EXPECT_GE(row.progress_share, shown);
    spent = row.budget_share;
    shown = row.progress_share;
  }
  EXPECT_EQ(spent, 1);
  EXPECT_EQ(shown, 1);
}

// The page, wherever the test is in the tree.
std::string page_of_auto() {
  std::filesystem::path folder = std::filesystem::path(__FILE__).parent_path();
  while (folder != folder.root_path() && !std::filesystem::exists(folder / "docs/auto.md")) {
    folder = folder.parent_path();
  }
  std::ifstream file(folder / "docs/auto.md");
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(SearchPhases, TheDocumentationListsThemInOrder) {
  const std::string page = page_of_auto();
  std::string table;
  for (const PhaseRow& row : phase_table()) {
    const std::string drafts =
        row.draft_share > 0 ? fmt::format("{:.0f}%, ", 100 * row.draft_share) : "";
    table += fmt::format("| {} | {}{:.0f}% | {} |\n", row.name, drafts, 100 * row.budget_share,
                         row.work);
  }
  EXPECT_NE(page.find("| phase | spent | work |\n|---|---|---|\n" + table + "\n"),
            std::string::npos)
      << "docs/auto.md, Phases: expected\n"
      << table;
}

TEST(SearchPhases, StrategiesThatSearchInPhasesSayWhichBeforeTheyRun) {
  const std::vector<SearchPhase> phases = find_strategy("auto").search_phases();
  ASSERT_EQ(phases.size(), phase_table().size());
  for (std::size_t p = 0; p < phases.size(); ++p) {
    EXPECT_EQ(phases[p].name, phase_table()[p].name);
    EXPECT_EQ(phases[p].work, phase_table()[p].work);
    EXPECT_EQ(phases[p].budget_share, phase_table()[p].budget_share);
    EXPECT_FALSE(phases[p].ran);
  }
  EXPECT_TRUE(find_strategy("zigzag").search_phases().empty());
}

TEST(SearchPhases, ASearchReportsEveryPhaseAndTheWinner) {
  const PlannedBatch planned = planned_by("auto", {{"steps", "2000000"}});
  ASSERT_TRUE(planned.search);
  const SearchReport& report = *planned.search;
  ASSERT_EQ(report.phases.size(), phase_table().size());
  std::int32_t tried = 0;
  double seconds = report.prepare_s + report.finish_s;
  std::optional<double> best_us;
  std::string found_in;
  for (std::size_t p = 0; p < report.phases.size(); ++p) {
    const SearchPhase& phase = report.phases[p];
    SCOPED_TRACE(phase.name);
    EXPECT_EQ(phase.name, phase_table()[p].name);
    EXPECT_TRUE(phase.ran || phase.candidates == 0);
    EXPECT_TRUE(!best_us || (phase.best_us && *phase.best_us <= *best_us));
    EXPECT_EQ(phase.improved, phase.best_us != best_us);
    best_us = phase.best_us;
    if (phase.improved) found_in = phase.name;
    tried += phase.candidates;
    seconds += phase.seconds;
  }
  EXPECT_EQ(report.found_in, found_in);
  EXPECT_EQ(std::to_string(tried), planned.plan->options.at("tried"));
  EXPECT_EQ(report.winner, planned.plan->options.at("chosen"));
  for (const auto& [key, value] : report.winner_options) {
    EXPECT_EQ(planned.plan->options.at("chosen." + key), value);
  }
  EXPECT_LE(seconds, planned.arrange_s);
  EXPECT_FALSE(planned_by("zigzag", {}).search);
}

TEST(SearchPhases, TheLastPhasesRunOnlyWithoutAPlan) {
  const std::set<std::string> last = {"any other", "any placement", "any tiles"};
  const auto ran = [&](const PlannedBatch& planned) {
    std::set<std::string> names;
    for (const SearchPhase& phase : planned.search->phases) {
      if (phase.ran && last.contains(phase.name)) names.insert(phase.name);
    }
    return names;
  };
  EXPECT_TRUE(ran(planned_by("auto", {{"steps", "2000000"}})).empty());
  EXPECT_EQ(ran(planned_by("auto", {{"steps", "1"}})), std::set<std::string>{"any other"});
  EXPECT_EQ(ran(planned_by("auto", {{"steps", "1"}, {"candidates", "own"}})),
            (std::set<std::string>{"any other", "any placement"}));
}

}  // namespace
}  // namespace contextile
