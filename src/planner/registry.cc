#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/suggest.h"
#include "contextile/planner.h"
#include "planner/auto/auto_strategy.h"
#include "strategy/published.h"

namespace contextile {

std::span<const Strategy* const> strategies() {
  static const std::vector<const Strategy*> kStrategies = [] {
    const std::span<const Strategy* const> published = published_strategies();
    std::vector<const Strategy*> all(published.begin(), published.end());
    all.push_back(&auto_strategy());  // ours: all of them and its own placements, by predicted time
    return all;
  }();
  return kStrategies;
}

const Strategy& find_strategy(std::string_view name) {
  std::vector<std::string> names;
  for (const Strategy* strategy : strategies()) {
    if (strategy->name() == name) return *strategy;
    names.emplace_back(strategy->name());
  }
  fail_argument("strategy: expected one of {}, found '{}'{}", fmt::join(names, ", "), name,
                did_you_mean(name, names));
}

std::vector<StrategyChoice> parse_strategies(std::string_view text) {
  std::vector<StrategyChoice> choices;
  const auto add_option = [&](std::string_view item) {
    const std::size_t equals = item.find('=');
    const std::string key(item.substr(0, equals));
    CONTEXTILE_CHECK(!choices.empty() && !key.empty(),
                     "strategies: expected NAME[:key=value,…] before an option, found '{}'", item);
    const bool is_new = choices.back().options.emplace(key, item.substr(equals + 1)).second;
    CONTEXTILE_CHECK(is_new, "strategy {}: expected every option once, found '{}' twice",
                     choices.back().name, key);
  };
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view item = text.substr(begin, end - begin);
    begin = end + 1;
    CONTEXTILE_CHECK(!item.empty(), "strategies: expected names separated by commas, found '{}'",
                     text);
    const std::size_t colon = item.find(':');
    const std::size_t equals = item.find('=');
    if (equals != std::string_view::npos && (colon == std::string_view::npos || equals < colon)) {
      add_option(item);
    } else if (item == "all") {
      for (const Strategy* strategy : strategies()) {
        choices.push_back({std::string(strategy->name()), {}});
      }
    } else {
      choices.push_back({std::string(item.substr(0, colon)), {}});
      if (colon != std::string_view::npos && colon + 1 < item.size()) {
        CONTEXTILE_CHECK(equals != std::string_view::npos,
                         "strategy {}: expected key=value after ':', found '{}'",
                         choices.back().name, item.substr(colon + 1));
        add_option(item.substr(colon + 1));
      }
    }
  }
  return choices;
}

std::string choice_text(const StrategyChoice& choice) {
  std::string text = choice.name;
  char separator = ':';
  for (const auto& [key, value] : choice.options) {
    text += fmt::format("{}{}={}", separator, key, value);
    separator = ',';
  }
  return text;
}

}  // namespace contextile
