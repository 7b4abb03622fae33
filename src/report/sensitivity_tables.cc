#include "report/sensitivity_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "contextile/planner.h"
#include "report/json.h"

namespace contextile {
namespace {

constexpr std::size_t kWidestConstant = 19;  // memory_gbytes_per_s; longer ones break there

std::string name_of_fastest(const Sensitivity& sensitivity, const Standing& standing) {
  if (standing.fastest.empty()) return "";
  const StrategyChoice& first = sensitivity.choices[standing.fastest.front()];
  const auto alike = std::ranges::count(sensitivity.choices, first.name, &StrategyChoice::name);
  const std::string name = alike == 1 ? first.name : choice_text(first);
  const std::size_t others = standing.fastest.size() - 1;
  return others == 0 ? name : fmt::format("{} +{}", name, others);
}

std::vector<std::string> names_of(const Sensitivity& sensitivity,
                                  const std::vector<std::size_t>& choices) {
  std::vector<std::string> names;
  names.reserve(choices.size());
  for (const std::size_t i : choices) names.push_back(choice_text(sensitivity.choices[i]));
  return names;
}

Cell optional_cell(const std::optional<double>& value) { return value ? Cell(*value) : Cell(); }

Cell seconds_of(const std::optional<double>& time_us) {
  return time_us ? Cell(1e-6 * *time_us) : Cell();
}

// The constants of a cluster file that a changed constant stands for.
std::vector<std::string_view> file_keys(std::string_view constant) {
  if (constant == "latencies_us") return {"intra_latency_us", "inter_latency_us"};
  for (const std::string_view part : {"call_us", "row_keys", "call_pairs", "kernel_tile_rows",
                                      "backward_share", "kernel_overheads"}) {
    if (constant == part) return {"attention"};
  }
  return {constant};
}

// True if the cluster's preset says that the constant is assumed.
bool is_assumed(const Sensitivity& sensitivity, const ChangedConstant& changed) {
  const Cluster& cluster = sensitivity.clusters.front().cluster;
  const std::vector<std::string_view> keys = file_keys(changed.constant);
  return std::ranges::any_of(constant_sources(cluster), [&](const ConstantSource& source) {
    return source.assumed && std::ranges::find(keys, source.key) != keys.end();
  });
}

std::string change_text(const Sensitivity& sensitivity, const ChangedConstant& changed) {
  return fmt::format("{} {}{}", changed.constant, changed.is,
                     is_assumed(sensitivity, changed) ? " (assumed)" : "");
}

std::string heading_text(const Sensitivity& sensitivity) {
  std::string text =
      sensitivity.plans == SensitivityPlans::kKept
          ? "what the ranking hangs on: the plans above, made for the cluster as it is, on\n"
            "clusters with one constant changed\n"
          : "what the ranking hangs on: clusters with one constant changed, every plan made\n"
            "again for each\n";
  text +=
      "behind: how much longer the next time takes, and the best of auto; +N: so many\n"
      "others take the same time\n\n";
  return text;
}

std::string turned_text(const Sensitivity& sensitivity) {
  const Standing as_is = standing(sensitivity, 0);
  if (as_is.fastest.empty()) return "";
  const std::string fastest = name_of_fastest(sensitivity, as_is);
  std::vector<std::string> turning;
  for (std::size_t i = 1; i < sensitivity.clusters.size(); ++i) {
    const Standing here = standing(sensitivity, i);
    if (!here.same_fastest) turning.push_back(change_text(sensitivity, sensitivity.clusters[i]));
  }
  const std::size_t changes = sensitivity.clusters.size() - 1;
  if (turning.empty())
    return fmt::format("{} stays fastest under all {} changes", fastest, changes);
  return fmt::format("{} stays fastest under {} of {} changes, not under {}", fastest,
                     changes - turning.size(), changes, fmt::join(turning, "; "));
}

}  // namespace

Table sensitivity_table(const Sensitivity& sensitivity) {
  Table table({{"constant", "constant"},
               {"was", ""},
               {"is", "is"},
               {"fastest", ""},
               {"first_fastest", "fastest"},
               {"predicted_s", "time\nms", Format::kMilliseconds},
               {"second", ""},
               {"second_slower_by", "next\nbehind", Format::kPercent},
               {"auto_slower_by", "auto\nbehind", Format::kPercent},
               {"same_fastest", ""},
               {"turned_pairs", ""},
               {"pairs", ""},
               {"assumed", ""}},
              kWidestConstant);
  for (std::size_t i = 0; i < sensitivity.clusters.size(); ++i) {
    const ChangedConstant& changed = sensitivity.clusters[i];
    const Standing here = standing(sensitivity, i);
    const auto text_or_none = [](const std::string& text) {
      return text.empty() ? Cell() : Cell(text);
    };
    std::vector<Cell> cells = {
        changed.constant.empty() ? "(as it is)" : changed.constant,
        text_or_none(changed.was),
        text_or_none(changed.is),
        fmt::format("{}", fmt::join(names_of(sensitivity, here.fastest), " = ")),
        name_of_fastest(sensitivity, here),
        seconds_of(here.time_us),
        here.second ? Cell(choice_text(sensitivity.choices[*here.second])) : Cell(),
        optional_cell(here.second_slower_by),
        optional_cell(here.auto_slower_by),
        here.same_fastest,
        here.turned_pairs,
        here.pairs,
        is_assumed(sensitivity, changed)};
    table.add_row(std::move(cells),
                  here.fastest.empty() ? "no strategy has a plan that ends here" : "");
  }
  return table;
}

Json sensitivity_json(const Sensitivity& sensitivity) {
  Json rows = sensitivity_table(sensitivity).json();
  for (std::size_t i = 0; i < sensitivity.clusters.size(); ++i) {
    rows[i].erase("first_fastest");  // a short form of the list, for text
    rows[i]["fastest"] = names_of(sensitivity, standing(sensitivity, i).fastest);
    Json& strategies = rows[i]["strategies"] = Json::array();
    for (std::size_t s = 0; s < sensitivity.choices.size(); ++s) {
      Json row = {{"strategy", choice_text(sensitivity.choices[s])}};
      const std::optional<double>& time_us = sensitivity.times_us[i][s];
      if (time_us) row["predicted_s"] = 1e-6 * *time_us;
      strategies.push_back(std::move(row));
    }
  }
  return {{"plans", to_string(sensitivity.plans)}, {"clusters", std::move(rows)}};
}

std::string sensitivity_text(const Sensitivity& sensitivity, bool colour) {
  std::string text = heading_text(sensitivity) + sensitivity_table(sensitivity).text(colour);
  const std::string turned = turned_text(sensitivity);
  return turned.empty() ? text : text + '\n' + wrap(turned, kTextColumns) + '\n';
}

}  // namespace contextile
