// The phases of `auto`: the table is in order, walked from its first row to its last, and reported.
#include "planner/auto/search_phases.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
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
#include <utility>
#include <vector>

#include "contextile/extend/plan_build.h"
#include "contextile/planner.h"
#include "contextile/verify.h"
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

TEST(SearchPhases, TheLastPhaseRunsOnlyWithoutAPlan) {
  const auto ran = [&](const PlannedBatch& planned) { return planned.search->phases.back().ran; };
  EXPECT_FALSE(ran(planned_by("auto", {{"steps", "2000000"}})));
  const PlannedBatch other = planned_by("auto", {{"steps", "1"}});
  EXPECT_TRUE(ran(other));
  EXPECT_EQ(other.search->found_in, "any plan");
  EXPECT_NE(other.search->winner, "placement");
  const PlannedBatch own = planned_by("auto", {{"steps", "1"}, {"candidates", "own"}});
  EXPECT_TRUE(ran(own));
  EXPECT_EQ(own.search->found_in, "any plan");
  EXPECT_EQ(own.search->winner, "placement");
}

// More blocks than quick placements may have, and no other strategies.
TEST(SearchPhases, TheLastPhasePlacesTilesWhereNothingElseFoundAPlan) {
  const std::vector<std::int64_t> lengths(66'000, 1);
  const PlannedBatch planned = plan_batch(batch_of(lengths, "causal"), cluster_of("dgx-h200", 1, 4),
                                          {"auto", {{"steps", "1"}, {"candidates", "own"}}});
  EXPECT_TRUE(planned.verified.ok());
  ASSERT_TRUE(planned.search);
  EXPECT_EQ(planned.search->found_in, "any plan");
  EXPECT_EQ(planned.search->winner_options.at("of"), "tiles");
}

// A search of `auto` without some phases.
struct SearchedWithout {
  Plan plan;
  SearchReport report;
};
SearchedWithout searched_without(const std::vector<std::string>& disabled,
                                 const std::map<std::string, std::string>& options) {
  const std::vector<std::int64_t> lengths = {500, 3000, 40, 1200};
  const Workload workload = batch_of(lengths, "causal");
  const Cluster cluster = cluster_of("dgx-h200", 2, 2);
  StrategyRequest request = request_with(options);
  request.disabled_phases = disabled;
  SearchReport report;
  request.searched = [&](const SearchReport& found) { report = found; };
  const Arrangement arrangement = find_strategy("auto").arrange(workload, cluster, request);
  return {build_plan(workload, cluster, arrangement), std::move(report)};
}

TEST(DisabledPhases, EveryPhaseCanBeDisabledAlone) {
  const std::map<std::string, std::string> options = {{"steps", "100000"}};
  const SearchedWithout all = searched_without({}, options);
  for (std::size_t p = 0; p < phase_table().size(); ++p) {
    const std::string name(phase_table()[p].name);
    SCOPED_TRACE(name);
    const SearchedWithout without = searched_without({name}, options);
    EXPECT_TRUE(verify(without.plan).ok());
    ASSERT_EQ(without.report.phases.size(), phase_table().size());
    for (std::size_t other = 0; other < phase_table().size(); ++other) {
      const SearchPhase& phase = without.report.phases[other];
      const SearchPhase& as_before = all.report.phases[other];
      SCOPED_TRACE(phase.name);
      EXPECT_EQ(phase.name, as_before.name);
      EXPECT_FALSE(as_before.disabled);
      EXPECT_EQ(phase.disabled, other == p);
      if (other == p) {
        EXPECT_FALSE(phase.ran);
        EXPECT_EQ(phase.candidates, 0);
        EXPECT_FALSE(phase.improved);
      } else if (other < p || !all.report.phases[p].ran) {
        // Nothing before a phase depends on it, and nothing at all if it would not run.
        EXPECT_EQ(phase.ran, as_before.ran);
        EXPECT_EQ(phase.candidates, as_before.candidates);
        EXPECT_EQ(phase.best_us, as_before.best_us);
      }
    }
    if (!all.report.phases[p].ran) {
      EXPECT_EQ(without.plan.digest, all.plan.digest);
    }
  }
}

TEST(DisabledPhases, SeveralPhasesCanBeDisabledAndTheRestStillFindsAPlan) {
  std::vector<std::string> disabled;
  for (const PhaseRow& row : phase_table()) {
    if (row.name != "others") disabled.emplace_back(row.name);
  }
  const SearchedWithout without = searched_without(disabled, {{"steps", "2000000"}});
  EXPECT_TRUE(verify(without.plan).ok());
  EXPECT_EQ(without.report.found_in, "others");
  for (const SearchPhase& phase : without.report.phases) {
    EXPECT_EQ(phase.ran, phase.name == "others") << phase.name;
    EXPECT_EQ(phase.disabled, phase.name != "others") << phase.name;
  }
}

TEST(DisabledPhases, WithoutTheLastResortASearchThatFindsNothingSaysSo) {
  const std::map<std::string, std::string> one_step = {{"steps", "1"}};
  EXPECT_EQ(searched_without({"polish"}, one_step).report.found_in, "any plan");
  try {
    static_cast<void>(searched_without({"any plan"}, one_step));
    FAIL() << "expected no plan";
  } catch (const InvalidArgument& error) {
    EXPECT_STREQ(error.what(),
                 "auto: expected a candidate within the limits of the search, found none (without "
                 "the phases any plan)");
  }
}

// The message with which a strategy refuses the phases, from each function that reads a request.
std::set<std::string> refusals(const Strategy& strategy, const std::vector<std::string>& phases) {
  const std::vector<std::int64_t> lengths = {500, 300};
  const Workload workload = batch_of(lengths, "causal");
  const Cluster cluster = cluster_of("dgx-h200", 1, 2);
  StrategyRequest request;
  request.disabled_phases = phases;
  std::set<std::string> messages;
  const auto note = [&](const auto& call) {
    try {
      call();
      messages.insert("none");
    } catch (const InvalidArgument& error) {
      messages.insert(error.what());
    }
  };
  note([&] { static_cast<void>(strategy.arrange(workload, cluster, request)); });
  note([&] { static_cast<void>(strategy.unsupported(workload, cluster, request)); });
  note([&] { static_cast<void>(strategy.block_sizes(request)); });
  if (strategy.has_schedule()) {
    note([&] { static_cast<void>(strategy.schedule(workload, cluster, request)); });
  }
  return messages;
}

TEST(DisabledPhases, AnUnknownNameIsRefusedWithTheKnownOnes) {
  const std::set<std::string> messages = refusals(find_strategy("auto"), {"polish", "polsih"});
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_THAT(*messages.begin(), testing::StartsWith("strategy auto: disabled phases: expected"));
  EXPECT_THAT(*messages.begin(), testing::EndsWith("found 'polsih'; did you mean 'polish'?"));
  for (const PhaseRow& row : phase_table()) {
    EXPECT_THAT(*messages.begin(), testing::HasSubstr(fmt::format("'{}'", row.name)));
  }
}

TEST(DisabledPhases, AStrategyWithoutPhasesRefusesEveryName) {
  for (const Strategy* strategy : strategies()) {
    if (!strategy->search_phases().empty()) continue;
    EXPECT_EQ(refusals(*strategy, {"polish"}),
              std::set<std::string>{fmt::format(
                  "strategy {}: disabled phases: expected none, because it does not search in "
                  "phases, found 'polish'",
                  strategy->name())});
  }
}

}  // namespace
}  // namespace contextile
