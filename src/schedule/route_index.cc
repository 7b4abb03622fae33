#include "schedule/route_index.h"

#include "base/check.h"

namespace contextile {

RouteIndex::RouteIndex(const ScheduleProblem& problem) : problem_(problem) {
  route_of_.reserve(problem.routes.size());
  for (std::size_t r = 0; r < problem.routes.size(); ++r) {
    const UnitRoute& route = problem.routes[r];
    const bool is_new =
        route_of_.emplace(key(route.kind, route.block, route.group, route.device), r).second;
    CONTEXTILE_CHECK(is_new,
                     "schedule: expected one route of {} of block {} to device {}, found two",
                     to_string(route.kind), route.block.value, route.device.value);
  }
}

std::size_t RouteIndex::find(Kind kind, BlockId block, GroupId group, Rank device) const {
  const auto it = route_of_.find(key(kind, block, group, device));
  return it == route_of_.end() ? kNoRoute : it->second;
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

RouteIndex::Key RouteIndex::key(Kind kind, BlockId block, GroupId group, Rank device) const {
  const auto unit = static_cast<Key>(block.index()) * static_cast<Key>(problem_.head_groups) +
                    static_cast<Key>(group.index());
  return (unit * static_cast<Key>(problem_.num_devices) + static_cast<Key>(device.index())) *
             kNumKinds +
         static_cast<Key>(kind);
}

}  // namespace contextile
