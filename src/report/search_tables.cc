#include "report/search_tables.h"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "report/json.h"

namespace contextile {
namespace {

Table phases_table(const SearchReport& report) {
  Table table({{"phase", "phase of the search"},
               {"budget_share", "budget spent\nby its end", Format::kPercent},
               {"seconds", "took\nms", Format::kMilliseconds},
               {"candidates", "candidates\ntried"},
               {"best_us", "best so far\nµs"},
               {"improved", "better\ncandidate"}});
  for (const SearchPhase& phase : report.phases) {
    std::vector<Cell> cells = {phase.name, phase.budget_share};
    if (phase.ran) {
      cells.insert(cells.end(), {phase.seconds, std::int64_t{phase.candidates}});
      cells.push_back(phase.best_us ? Cell{*phase.best_us} : Cell{});
      cells.push_back(phase.improved ? Cell{std::string("found")} : Cell{});
    }
    cells.resize(table.columns().size());
    if (phase.disabled) cells.back() = std::string("disabled");
    table.add_row(std::move(cells));
  }
  return table;
}

}  // namespace

std::string search_text(const SearchReport& report) {
  std::string winner = report.winner;
  std::string options;
  for (const auto& [key, value] : report.winner_options) {
    options += fmt::format("{}{}={}", options.empty() ? "" : ", ", key, value);
  }
  if (!options.empty()) winner += fmt::format(" ({})", options);
  return phases_table(report).text() +
         fmt::format("winner    {}\n", wrap(winner, kTextColumns, {.first = 10, .others = 10})) +
         fmt::format("found in  {}\n", report.found_in) +
         fmt::format("prepared in {} ms, winner arranged in {} ms\n",
                     format_number(report.prepare_s * 1e3), format_number(report.finish_s * 1e3));
}

Json search_json(const SearchReport& report) {
  Json phases = Json::array();
  for (const SearchPhase& phase : report.phases) {
    Json row = {{"phase", phase.name},
                {"work", phase.work},
                {"budget_share", phase.budget_share},
                {"ran", phase.ran},
                {"seconds", phase.seconds},
                {"candidates", phase.candidates},
                {"improved", phase.improved}};
    if (phase.disabled) row["disabled"] = true;
    if (phase.best_us) row["best_us"] = *phase.best_us;
    phases.push_back(std::move(row));
  }
  return {{"phases", std::move(phases)},
          {"prepare_s", report.prepare_s},
          {"finish_s", report.finish_s},
          {"winner", report.winner},
          {"winner_options", report.winner_options},
          {"found_in", report.found_in}};
}

}  // namespace contextile
