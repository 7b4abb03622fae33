// DCP's communication schedule (Jiang et al., SOSP 2025, Listing 3): tiles in divisions, so that
// what a division needs travels under the one before.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/arrangement.h"
#include "contextile/mask.h"
#include "contextile/workload.h"

namespace contextile {

// How one unit reaches a device that does not own it, or a result leaves it: through `via`, the
// owner itself or another device with a route of its own for the unit (a relay).
struct UnitRoute {
  Kind kind = Kind::kKv;
  BlockId block;
  GroupId group;
  Rank device;
  Rank via;
};

enum class ResultTiming : std::uint8_t {
  kAfter,  // when all attention is done, as the listing has it
  kEarly,  // as soon as a device has computed its last tile of the unit
};

struct DivisionOptions {
  std::int32_t divisions = 4;  // T, at least 2
  ResultTiming results = ResultTiming::kAfter;
};

struct DivisionProblem {
  const Blocking* blocks = nullptr;
  std::span<const Rank> owners;
  std::int32_t head_groups = 1;
  std::int32_t num_devices = 1;
  std::int32_t devices_per_node = 1;
  Direction direction = Direction::kForward;
  AttentionShape shape;
  std::span<const PlacedTile> tiles;  // stages are what is decided here
  std::span<const UnitRoute> routes;  // one for each (unit, device) that is not the owner
};

// The first division has the tiles that need nothing from elsewhere. Each next one fills the least
// loaded device first (FLOPs in the division; ties by rank) with its tiles in (query, key, group)
// order while no ordered pair of devices has moved its share, 1/T of all it will move; the last has
// the rest. Where the listing leaves a choice we overlap more: a pair may pass its share by the
// unit that reaches it. A unit that comes through a relay is used from the second division on,
// because its two hops take two. O(tiles · T + routes).
[[nodiscard]] ArrangedDirection schedule_divisions(const DivisionProblem& problem,
                                                   const DivisionOptions& options);

}  // namespace contextile
