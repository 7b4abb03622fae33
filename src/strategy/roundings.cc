#include "strategy/roundings.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/interrupt.h"

namespace contextile {
namespace {

std::int32_t most_roundings(const ArrangedDirection& direction) {
  // By the unit that they are about, in the order of their launches.
  std::vector<const Transfer*> results;
  for (const Transfer& transfer : direction.transfers) {
    if (is_result(transfer.kind)) results.push_back(&transfer);
  }
  const auto unit_of = [](const Transfer* t) { return std::tuple(t->kind, t->block, t->group); };
  RareInterruptCheck check;
  std::ranges::stable_sort(results, {}, [&](const Transfer* t) {
    check();
    return std::tuple_cat(unit_of(t), std::tuple(t->launch_stage));
  });
  std::int32_t most = 0;
  std::vector<std::pair<Rank, std::int32_t>> held;  // roundings of what a device has of the unit
  for (std::size_t i = 0; i < results.size(); ++i) {
    if (i == 0 || unit_of(results[i]) != unit_of(results[i - 1])) held.clear();
    const auto of = [&](Rank rank) -> std::int32_t& {
      // A chain's device is the one before it.
      const auto at = std::find_if(held.rbegin(), held.rend(),
                                   [&](const auto& entry) { return entry.first == rank; });
      return at != held.rend() ? at->second : held.emplace_back(rank, 0).second;
    };
    const std::int32_t sent = std::exchange(of(results[i]->src), 0) + 1;
    std::int32_t& merged = of(results[i]->dst);
    merged = std::max(merged, sent);
    most = std::max(most, sent);
  }
  return most;
}

}  // namespace

std::int32_t most_roundings(const Arrangement& arrangement) {
  std::int32_t most = 0;
  for (const ArrangedRound& round : arrangement.rounds) {
    for (const ArrangedMask& mask : round.programs) {
      for (const auto* direction : {&mask.forward, &mask.backward}) {
        if (*direction) most = std::max(most, most_roundings(**direction));
      }
    }
  }
  return most;
}

}  // namespace contextile
