#include "planner/auto/search_phases.h"

#include <array>
#include <cstdint>
#include <string>
#include <utility>

namespace contextile {
namespace {

bool is_even(const SearchParts& parts) { return !parts.quick.is_lopsided(); }
bool tiles_lead(const SearchParts& parts) { return parts.tiles.leads(); }
bool rows_are_near(const SearchParts& parts) { return parts.rows.is_near(); }
bool waits_much(const SearchParts& parts) { return parts.quick.waits_much(); }
bool waits_without_tiles(const SearchParts& parts) {
  return waits_much(parts) && !tiles_lead(parts);
}
bool lacks_plan(const SearchParts& parts) { return !parts.state.has_plan(); }
bool lacks_allowed_plan(const SearchParts& parts) { return !parts.state.has_allowed_plan(); }

// No measurement of single shares is recorded. They balance a first plan early against a better
// one late: under a short limit an early phase must leave time for the next kind of candidate. To
// judge a change, run `build/budget_bench` and `build/auto_bench --devices 32 --seed 11` (plans
// that a search of 50 ms finds).
constexpr std::array<PhaseRow, 21> kTable = {{
    {"rules", "arrange strategies that decide by rule, simulate the two most promising", 0.2, 0.4,
     0.1, is_even,
     [](SearchParts& parts, const PhaseRow& row) {
       parts.others.try_likely(row.draft_share, row.budget_share);
     }},
    {"quick", "place whole rows, or tiles where rows look slow, with few steps", 0.5, 0.8, 0.1,
     nullptr,
     [](SearchParts& parts, const PhaseRow& row) {
       parts.take(parts.quick.try_likely(row.draft_share, row.budget_share));
     }},
    {"quick uneven rows", "place rows with uneven work and few steps if the best plan waits", 0.5,
     0.8, 0.1, waits_much,
     [](SearchParts& parts, const PhaseRow& row) {
       parts.take(parts.quick.try_uneven(row.draft_share, row.budget_share));
     }},
    {"refine rows", "rebalance the best row placement and try two more schedules", 0, 0.8, 0.1,
     nullptr, [](SearchParts& parts, const PhaseRow& row) { parts.rows.refine(row.budget_share); }},
    {"refine tiles", "try the other schedules on the best tile placement", 0, 0.8, 0.1, nullptr,
     [](SearchParts& parts, const PhaseRow& row) { parts.tiles.refine(row.budget_share); }},
    {"quick tiles", "place tiles with few steps if nothing so far is fast", 0.8, 0.85, 0.1, nullptr,
     [](SearchParts& parts, const PhaseRow& row) {
       parts.take(parts.quick.try_tiles(row.draft_share, row.budget_share));
     }},
    {"probe tiles", "place tiles of up to eight head groups if the best plan waits", 0, 0.85, 0.1,
     waits_without_tiles,
     [](SearchParts& parts, const PhaseRow& row) { parts.tiles.probe(row.budget_share); }},
    {"others", "simulate every other strategy that leaves no block size open", 0, 0.9, 0.2, nullptr,
     [](SearchParts& parts, const PhaseRow& row) { parts.others.try_quick(row.budget_share); }},
    {"likely tiles", "place tiles at several block sizes and head groups if tiles lead", 0, 0.93,
     0.3, tiles_lead,
     [](SearchParts& parts, const PhaseRow& row) { parts.tiles.try_sizes(row.budget_share); }},
    {"more rows", "if rows are near the best, place them at more block sizes and seeds", 0, 0.93,
     0.3, rows_are_near,
     [](SearchParts& parts, const PhaseRow& row) { parts.rows.widen(row.budget_share); }},
    {"improve rows", "rebalance the best row placements for longer, try more schedules", 0, 0.95,
     0.5, nullptr,
     [](SearchParts& parts, const PhaseRow& row) { parts.rows.improve(row.budget_share); }},
    {"tiles", "place tiles likewise if they did not lead", 0, 0.97, 0.6, nullptr,
     [](SearchParts& parts, const PhaseRow& row) { parts.tiles.try_sizes(row.budget_share); }},
    {"far rows", "place rows likewise if they were far", 0, 0.97, 0.6, nullptr,
     [](SearchParts& parts, const PhaseRow& row) { parts.rows.widen(row.budget_share); }},
    {"partitioning", "simulate other strategies that partition, at every block size", 0, 0.98, 0.7,
     nullptr,
     [](SearchParts& parts, const PhaseRow& row) {
       parts.others.try_partitioning(row.budget_share);
     }},
    {"improve tiles", "place the best tiles with other balances, more steps and more schedules", 0,
     1, 0.9, nullptr, [](SearchParts& parts, const PhaseRow&) { parts.tiles.improve(); }},
    {"finish rows", "rebalance the best row placements once more", 0, 1, 1, nullptr,
     [](SearchParts& parts, const PhaseRow& row) { parts.rows.finish(row.budget_share); }},
    // The next two only use what the others leave, so that no limit makes their plans worse.
    {"uneven rows", "place rows with uneven work if the best plan waits", 0, 1, 1, waits_much,
     [](SearchParts& parts, const PhaseRow& row) { parts.rows.try_uneven(row.budget_share); }},
    {"polish", "improve small placements on simulated time", 0, 1, 1, nullptr,
     [](SearchParts& parts, const PhaseRow& row) { parts.polish_best(row.budget_share); }},
    // The last three run only if the limits let no candidate finish. They may exceed the limits.
    {"any other", "without a plan: the likeliest of the cheapest other strategies", 0, 1, 1,
     lacks_allowed_plan, [](SearchParts& parts, const PhaseRow&) { parts.others.try_any(); }},
    {"any placement", "still without a plan: a quick placement, whatever it takes", 1, 1, 1,
     lacks_plan,
     [](SearchParts& parts, const PhaseRow& row) {
       parts.state.any_will_do = true;
       parts.take(parts.quick.try_likely(row.draft_share, row.budget_share));
     }},
    {"any tiles", "still without a plan: tiles, whatever they take", 0, 1, 1, lacks_plan,
     [](SearchParts& parts, const PhaseRow& row) {
       parts.state.any_will_do = true;
       parts.tiles.try_sizes(row.budget_share);
     }},
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

void SearchParts::take(std::vector<Tried> quick_placements) {
  for (Tried& tried : quick_placements) {
    const bool is_of_tiles = tried.placement.choice.unit == PlacedUnit::kTiles;
    is_of_tiles ? tiles.take(std::move(tried)) : rows.take(std::move(tried));
  }
}

void SearchParts::polish_best(double share) {
  std::vector<Tried> starts;
  for (const std::vector<Tried>* tried : {&rows.tried(), &tiles.tried()}) {
    constexpr std::size_t kOfAKind = 2;
    std::size_t taken = 0;
    for (const Tried& one : *tried) {
      if (taken == kOfAKind) break;
      const auto same = [&](const Tried& other) {
        return one.placement.priced == other.placement.priced &&
               one.placement.partition.device == other.placement.partition.device;
      };
      if (std::ranges::any_of(starts, same)) continue;
      starts.push_back(one);
      ++taken;
    }
  }
  polish.run(std::move(starts), share);
}

std::span<const PhaseRow> phase_table() { return kTable; }

std::vector<SearchPhase> search_phases() {
  std::vector<SearchPhase> phases;
  for (const PhaseRow& row : kTable) phases.push_back(described(row));
  return phases;
}

std::vector<SearchPhase> run_phases(SearchParts& parts) {
  const SearchState& state = parts.state;
  std::vector<SearchPhase> phases;
  double told_share = 0;  // rows with the same progress_share share one part of the progress bar
  for (const PhaseRow& row : kTable) {
    if (row.progress_share > told_share) parts.state.progress.begin_phase(row.progress_share);
    told_share = row.progress_share;
    SearchPhase phase = described(row);
    if (row.applies == nullptr || row.applies(parts)) {
      const double began_us = state.elapsed_us();
      const std::int32_t tried_before = state.tried;
      const double cost_before_us = state.best.cost_us;
      row.run(parts, row);
      phase.ran = true;
      phase.seconds = 1e-6 * (state.elapsed_us() - began_us);
      phase.candidates = state.tried - tried_before;
      phase.improved = state.best.cost_us < cost_before_us;
    }
    if (state.has_plan()) phase.best_us = state.best.time_us;
    phases.push_back(std::move(phase));
  }
  return phases;
}

}  // namespace contextile
