// Routes of a scheduling problem by what they move and where to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "schedule/problem.h"

namespace contextile {

inline constexpr std::size_t kNoRoute = static_cast<std::size_t>(-1);

// Refers to `problem`, which must outlive it.
class RouteIndex {
 public:
  // Throws when a unit has two routes to one device.
  explicit RouteIndex(const ScheduleProblem& problem);

  // The route of a unit to (or of a result from) a device: kNoRoute if it has none.
  [[nodiscard]] std::size_t find(Kind kind, BlockId block, GroupId group, Rank device) const;
  // Throws if it has none.
  [[nodiscard]] std::size_t at(Kind kind, BlockId block, GroupId group, Rank device) const;
  // The relay's own route of the unit that route r moves, kNoRoute if r goes by its owner; throws
  // if the relay has none.
  [[nodiscard]] std::size_t relay_of(std::size_t r) const;

  // Visits the routes of a tile's inputs (or results) on its device. What has no route is at hand.
  template <typename Visit>
  void for_each(const PlacedTile& tile, bool results, const Visit& visit) const {
    for_each_unit(tile, results, [&](Kind kind, BlockId block) {
      const std::size_t r = find(kind, block, tile.group, tile.device);
      if (r != kNoRoute) visit(r);
    });
  }
  // Throws when one that the device does not own has no route.
  template <typename Visit>
  void for_each_required(const PlacedTile& tile, bool results, const Visit& visit) const {
    for_each_unit(tile, results, [&](Kind kind, BlockId block) {
      visit(at(kind, block, tile.group, tile.device));
    });
  }

 private:
  using Key = std::uint64_t;
  [[nodiscard]] Key key(Kind kind, BlockId block, GroupId group, Rank device) const;
  template <typename Visit>
  void for_each_unit(const PlacedTile& tile, bool results, const Visit& visit) const {
    for (int k = 0; k < kNumKinds; ++k) {
      const auto kind = static_cast<Kind>(k);
      if (is_result(kind) != results || !occurs_in(kind, problem_.direction)) continue;
      const BlockId block = is_of_kv(kind) ? tile.kv_block : tile.q_block;
      if (problem_.owners[block.index()] != tile.device) visit(kind, block);
    }
  }

  const ScheduleProblem& problem_;
  std::unordered_map<Key, std::size_t> route_of_;
};

}  // namespace contextile
