#include "strategy/schedule/route_index.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "base/check.h"

namespace contextile {

RouteIndex::RouteIndex(const ScheduleProblem& problem)
    : problem_(problem), order_(problem.routes.size()), devices_(problem.routes.size()) {
  const std::vector<UnitRoute>& routes = problem.routes;
  const auto key_of = [&](const UnitRoute& r) { return key(r.kind, r.block, r.group); };
  first_.assign(
      problem.owners.size() * static_cast<std::size_t>(problem.head_groups) * kNumKinds + 1, 0);
  for (const UnitRoute& route : routes) ++first_[key_of(route) + 1];
  std::partial_sum(first_.begin(), first_.end(), first_.begin());
  std::vector<std::size_t> next(first_.begin(), first_.end() - 1);
  for (std::size_t r = 0; r < routes.size(); ++r) order_[next[key_of(routes[r])]++] = r;
  // The routes of a unit are sorted by device for binary search; two to one device are an error.
  const auto device_of = [&](std::size_t r) { return routes[r].device; };
  for (std::size_t k = 0; k + 1 < first_.size(); ++k) {
    const auto of_unit = std::span(order_).subspan(first_[k], first_[k + 1] - first_[k]);
    if (!std::ranges::is_sorted(of_unit, {}, device_of)) {
      std::ranges::sort(of_unit, {}, device_of);
    }
    const auto twice = std::ranges::adjacent_find(of_unit, {}, device_of);
    if (twice == of_unit.end()) continue;
    const UnitRoute& route = routes[*twice];
    fail_argument("schedule: expected one route of {} of block {} to device {}, found two",
                  to_string(route.kind), route.block.value, route.device.value);
  }
  std::ranges::transform(order_, devices_.begin(), device_of);
  index_tiles();
}

void RouteIndex::index_tiles() {
  of_tiles_.resize(problem_.tiles.size());
  for (std::size_t t = 0; t < of_tiles_.size(); ++t) {
    const PlacedTile& tile = problem_.tiles[t];
    RoutesOfTile& all = of_tiles_[t];
    for (const bool results : {false, true}) {
      for_each_unit(tile, results, [&](Kind kind, BlockId block) {
        const std::size_t r = find(kind, block, tile.group, tile.device);
        complete_ = complete_ && r != kNoRoute;
        if (r == kNoRoute) return;
        all.routes[static_cast<std::size_t>(all.num_inputs + all.num_results)] =
            static_cast<std::uint32_t>(r);
        ++(results ? all.num_results : all.num_inputs);
      });
    }
  }
}

void RouteIndex::require_all() const {
  if (complete_) return;
  for (const PlacedTile& tile : problem_.tiles) {
    for (const bool results : {false, true}) {
      for_each_unit(tile, results, [&](Kind kind, BlockId block) {
        static_cast<void>(at(kind, block, tile.group, tile.device));
      });
    }
  }
}

std::size_t RouteIndex::find(Kind kind, BlockId block, GroupId group, Rank device) const {
  const std::size_t k = key(kind, block, group);
  const auto first = devices_.begin() + static_cast<std::ptrdiff_t>(first_[k]);
  const auto end = devices_.begin() + static_cast<std::ptrdiff_t>(first_[k + 1]);
  const auto at = std::lower_bound(first, end, device);
  return at == end || *at != device ? kNoRoute
                                    : order_[static_cast<std::size_t>(at - devices_.begin())];
}

std::size_t RouteIndex::at(Kind kind, BlockId block, GroupId group, Rank device) const {
  const std::size_t r = find(kind, block, group, device);
  CONTEXTILE_CHECK(r != kNoRoute, "schedule: expected a route of {} of block {} to device {}",
                   to_string(kind), block.value, device.value);
  return r;
}

std::size_t RouteIndex::relay_of(std::size_t r) const {
  const UnitRoute& route = problem_.routes[r];
  if (route.via == problem_.owners[route.block.index()]) return kNoRoute;
  return at(route.kind, route.block, route.group, route.via);
}

std::size_t RouteIndex::key(Kind kind, BlockId block, GroupId group) const {
  const std::size_t units = problem_.owners.size() * static_cast<std::size_t>(problem_.head_groups);
  return static_cast<std::size_t>(kind) * units +
         block.index() * static_cast<std::size_t>(problem_.head_groups) + group.index();
}

}  // namespace contextile
