#include "strategy/disabled_phases.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/suggest.h"

namespace contextile {

void check_disabled_phases(const Strategy& strategy, const StrategyRequest& request) {
  if (request.disabled_phases.empty()) return;
  std::vector<std::string> known;
  for (SearchPhase& phase : strategy.search_phases()) known.push_back(std::move(phase.name));
  for (const std::string& name : request.disabled_phases) {
    CONTEXTILE_CHECK(!known.empty(),
                     "strategy {}: disabled phases: expected none, because it does not search in "
                     "phases, found '{}'",
                     strategy.name(), name);
    CONTEXTILE_CHECK(std::ranges::find(known, name) != known.end(),
                     "strategy {}: disabled phases: expected some of '{}', found '{}'{}",
                     strategy.name(), fmt::join(known, "', '"), name, did_you_mean(name, known));
  }
}

}  // namespace contextile
