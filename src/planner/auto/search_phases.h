// The phases of a search as a table: each row has a name, its work and its share of the limits. A
// search walks the table from the first row to the last.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "contextile/extend/strategy.h"
#include "planner/auto/other_strategies.h"
#include "planner/auto/polish.h"
#include "planner/auto/quick_search.h"
#include "planner/auto/row_search.h"
#include "planner/auto/search_state.h"
#include "planner/auto/tile_search.h"

namespace contextile {

// The sources of candidates that the phases of one search share.
struct SearchParts {
  SearchParts(SearchState& the_state, bool retain);

  // Adds quick placements to the searches of their kind, which go on from them.
  void add_tried(std::vector<Tried> quick_placements);
  // Polishes the best placements of rows and of tiles.
  void polish_best(double share);

  SearchState& state;
  RowSearch rows;
  TileSearch tiles;
  OtherStrategies others;
  QuickSearch quick;
  Polish polish;
};

// A row of the table.
struct PhaseRow {
  std::string_view name;
  std::string_view work;
  double draft_share = 0;     // of the limits, spent when candidates are drafted; 0: no drafts
  double budget_share = 0;    // of the limits, spent when the phase ends
  double progress_share = 0;  // of the progress bar, shown when the phase ends
  bool (*applies)(const SearchParts& parts) = nullptr;  // null: always
  void (*run)(SearchParts& parts, const PhaseRow& row) = nullptr;
};
[[nodiscard]] std::span<const PhaseRow> phase_table();

// The table as Strategy::search_phases returns it.
[[nodiscard]] std::vector<SearchPhase> search_phases();

// Walks the table without the phases that the request disables. Returns one element per row, with
// its result.
[[nodiscard]] std::vector<SearchPhase> run_phases(SearchParts& parts);

}  // namespace contextile
