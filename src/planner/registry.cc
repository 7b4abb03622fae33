#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/suggest.h"
#include "contextile/planner.h"
#include "planner/auto/auto_strategy.h"
#include "strategy/axp/axp_presets.h"
#include "strategy/dcp.h"
#include "strategy/distca/distca.h"
#include "strategy/fcp/fcp.h"
#include "strategy/groups/bytescale.h"
#include "strategy/groups/megatron.h"
#include "strategy/magi/magi.h"
#include "strategy/wlb.h"

namespace contextile {

std::span<const Strategy* const> strategies() {
  // In the order tables list them. A new strategy is one line here and what "Adding a strategy" in
  // docs/strategies.md says; every test over all strategies takes it in.
  static const std::array kStrategies = {
      &ring_strategy(),              // KV round the ring, contiguous slices
      &zigzag_strategy(),            // the same, balanced for causal masks
      &ulysses_strategy(),           // heads split by all-to-all
      &hybrid_strategy(),            // heads inside, a ring across
      &all_gather_strategy(),        // all KV first
      &double_ring_strategy(),       // rings inside a ring
      &wlb_strategy(),               // shards by estimated time, all KV gathered
      &bytescale_strategy(),         // ranks by document length, in waves
      &megatron_dynamic_strategy(),  // groups by document length
      &megatron_packed_strategy(),   // the same, documents packed
      &magi_strategy(),              // equal areas, only needed KV
      &dcp_strategy(),               // tiles as a hypergraph, divisions
      &fcp_strategy(),               // fixed-size blocks, matched rounds
      &distca_strategy(),            // attention on servers
      &auto_strategy(),              // ours: all of them and own placements, by predicted time
  };
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
