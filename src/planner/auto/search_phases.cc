#include "planner/auto/search_phases.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "planner/auto/tuning.h"

namespace contextile {
namespace {

bool is_even(const SearchParts& parts) { return !parts.quick.is_lopsided(); }
bool rows_are_near(const SearchParts& parts) { return parts.rows.is_near(); }
bool waits_much(const SearchParts& parts) { return parts.quick.waits_much(); }
bool lacks_allowed_plan(const SearchParts& parts) { return !parts.state.has_allowed_plan(); }

void run_rules(SearchParts& parts, const PhaseRow& row) {
  parts.others.try_likely(row.draft_share, row.budget_share);
}
void run_quick(SearchParts& parts, const PhaseRow& row) {
  parts.add_tried(parts.quick.try_likely(row.draft_share, row.budget_share));
  parts.add_tried(parts.quick.try_tiles(row.draft_share, row.budget_share));
}
void run_quick_uneven_rows(SearchParts& parts, const PhaseRow& row) {
  parts.add_tried(parts.quick.try_uneven(row.draft_share, row.budget_share));
}
void run_tiles(SearchParts& parts, const PhaseRow& row) {
  parts.tiles.try_sizes(row.budget_share);
  parts.tiles.improve(row.budget_share);
}
void run_finish_rows(SearchParts& parts, const PhaseRow& row) {
  parts.rows.finish(row.budget_share);
  if (parts.quick.waits_much()) parts.rows.try_uneven(row.budget_share);
}
// Runs only if the limits let no candidate finish, and may exceed them. Each kind of candidate is
// tried only if those before it gave no plan: none may be left, or all may need too much memory.
void run_any_plan(SearchParts& parts, const PhaseRow& row) {
  parts.others.try_any();
  if (parts.state.has_plan()) return;
  parts.state.any_will_do = true;
  parts.add_tried(parts.quick.try_likely(row.draft_share, row.budget_share));
  if (!parts.state.has_plan()) parts.tiles.try_sizes(row.budget_share);
}

// No measurement of single shares is recorded. They balance a first plan early against a better
// one late: under a short limit an early phase must leave time for the next kind of candidate. To
// judge a change, run `build/budget_bench` and `build/auto_bench --devices 32 --seed 11` (plans
// that a search of 50 ms finds).
constexpr std::array<PhaseRow, 12> kTable = {{
    {
        .name = "rules",
        .work = "arrange strategies that decide by rule, simulate the two most promising",
        .draft_share = 0.2,
        .budget_share = 0.4,
        .progress_share = 0.1,
        .applies = is_even,
        .run = run_rules,
    },
    {
        .name = "quick",
        .work = "place whole rows, and tiles where rows are slow, with few steps",
        .draft_share = 0.5,
        .budget_share = 0.8,
        .progress_share = 0.1,
        .run = run_quick,
    },
    {
        .name = "quick uneven rows",
        .work = "place rows with uneven work and few steps if the best plan waits",
        .draft_share = 0.5,
        .budget_share = 0.8,
        .progress_share = 0.1,
        .applies = waits_much,
        .run = run_quick_uneven_rows,
    },
    {
        .name = "refine rows",
        .work = "rebalance the best row placement and try two more schedules",
        .budget_share = 0.8,
        .progress_share = 0.1,
        .run = [](auto& parts, auto& row) { parts.rows.refine(row.budget_share); },
    },
    {
        .name = "others",
        .work = "simulate every other strategy that leaves no block size open",
        .budget_share = 0.9,
        .progress_share = 0.2,
        .run = [](auto& parts, auto& row) { parts.others.try_quick(row.budget_share); },
    },
    {
        .name = "more rows",
        .work = "if rows are near the best, place them at more block sizes and seeds",
        .budget_share = 0.93,
        .progress_share = 0.3,
        .applies = rows_are_near,
        .run = [](auto& parts, auto& row) { parts.rows.try_sizes(row.budget_share); },
    },
    {
        .name = "improve rows",
        .work = "rebalance the best row placements for longer, try more schedules",
        .budget_share = 0.95,
        .progress_share = 0.5,
        .run = [](auto& parts, auto& row) { parts.rows.improve(row.budget_share); },
    },
    {
        .name = "tiles",
        .work = "place tiles at several block sizes and head groups, then the best again",
        .budget_share = 0.97,
        .progress_share = 0.7,
        .run = run_tiles,
    },
    {
        .name = "partitioning",
        .work = "simulate other strategies that partition, at every block size",
        .budget_share = 0.98,
        .progress_share = 0.9,
        .run = [](auto& parts, auto& row) { parts.others.try_partitioning(row.budget_share); },
    },
    {
        .name = "finish rows",
        .work = "rebalance the best rows once more, place uneven ones if the plan waits",
        .budget_share = 1,
        .progress_share = 1,
        .run = run_finish_rows,
    },
    // Only uses what the others leave, so that no limit makes their plans worse.
    {
        .name = "polish",
        .work = "improve small placements on simulated time",
        .budget_share = 1,
        .progress_share = 1,
        .run = [](auto& parts, auto& row) { parts.polish_best(row.budget_share); },
    },
    {
        .name = "any plan",
        .work = "without a plan: another strategy, else a placement, whatever it takes",
        .draft_share = 1,
        .budget_share = 1,
        .progress_share = 1,
        .applies = lacks_allowed_plan,
        .run = run_any_plan,
    },
}};

SearchPhase described(const PhaseRow& row) {
  return {.name = std::string(row.name),
          .work = std::string(row.work),
          .budget_share = row.budget_share};
}

}  // namespace

SearchParts::SearchParts(SearchState& the_state, bool retain)
    : state(the_state),
      rows(the_state, retain),
      tiles(the_state, retain),
      others(the_state, the_state.options.candidates),
      quick(the_state, retain),
      polish(the_state, retain) {}

void SearchParts::add_tried(std::vector<Tried> quick_placements) {
  for (Tried& tried : quick_placements) {
    const bool is_of_tiles = tried.placement.choice.unit == PlacedUnit::kTiles;
    is_of_tiles ? tiles.add_tried(std::move(tried)) : rows.add_tried(std::move(tried));
  }
}

void SearchParts::polish_best(double share) {
  std::vector<Tried> starts;
  for (const std::vector<Tried>* tried : {&rows.tried(), &tiles.tried()}) {
    std::size_t of_kind = 0;
    for (const Tried& one : *tried) {
      if (of_kind == tuning::kPolishStartsOfKind) break;
      const auto same = [&](const Tried& other) {
        const Placement& placement = one.placement.arranged();
        return placement.priced == other.placement.priced &&
               placement.partition.device == other.placement.partition.device;
      };
      if (std::ranges::any_of(starts, same)) continue;
      starts.push_back(one);
      starts.back().placement = one.placement.arranged();
      ++of_kind;
    }
  }
  polish.run(std::move(starts), share);
}

std::span<const PhaseRow> phase_table() { return kTable; }

std::vector<SearchPhase> search_phases() {
  std::vector<SearchPhase> phases;
  phases.reserve(kTable.size());
  for (const PhaseRow& row : kTable) phases.push_back(described(row));
  return phases;
}

std::vector<SearchPhase> run_phases(SearchParts& parts) {
  const SearchState& state = parts.state;
  const std::vector<std::string>& disabled = state.request.disabled_phases;
  std::vector<SearchPhase> phases;
  double told_share = 0;  // rows with the same progress_share share one part of the progress bar
  for (const PhaseRow& row : kTable) {
    if (row.progress_share > told_share) parts.state.progress.begin_phase(row.progress_share);
    told_share = row.progress_share;
    SearchPhase phase = described(row);
    phase.disabled = std::ranges::find(disabled, row.name) != disabled.end();
    if (!phase.disabled && (row.applies == nullptr || row.applies(parts))) {
      const double began_us = state.elapsed_us();
      const std::int32_t tried_before = state.tried;
      const double cost_before_us = state.best.cost_us;
      row.run(parts, row);
      phase.ran = true;
      phase.seconds = 1e-6 * (state.elapsed_us() - began_us);
      phase.candidates = state.tried - tried_before;
      phase.improved = state.best.cost_us < cost_before_us;
    }
    if (state.has_plan()) phase.best_us = state.objective_us();
    phases.push_back(std::move(phase));
  }
  return phases;
}

}  // namespace contextile
