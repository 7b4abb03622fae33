// Routes of a scheduling problem, indexed by their units and destinations.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "strategy/schedule/placed_tiles.h"

namespace contextile {

inline constexpr std::size_t kNoRoute = static_cast<std::size_t>(-1);

// Index of the routes of `problem`, which must outlive it.
class RouteIndex {
 public:
  // Throws if a unit has two routes to one device.
  explicit RouteIndex(const ScheduleProblem& problem);

  // Returns the route of a unit to (or of a result from) a device, or kNoRoute if it has none.
  [[nodiscard]] std::size_t find(Kind kind, BlockId block, GroupId group, Rank device) const;
  // The same, but throws if there is no such route.
  [[nodiscard]] std::size_t at(Kind kind, BlockId block, GroupId group, Rank device) const;
  // Returns the relay's own route of the unit that route r moves, or kNoRoute if r goes by the
  // owner. Throws if the relay has none.
  [[nodiscard]] std::size_t relay_of(std::size_t r) const;

  // Visits the routes of the inputs (or results) of the problem's tile t on its device. A unit
  // without a route is already on the device.
  template <typename Visit>
  void for_each(std::size_t t, bool results, const Visit& visit) const {
    const RoutesOfTile& all = of_tiles_[t];
    const int end = results ? all.num_inputs + all.num_results : all.num_inputs;
    for (int i = results ? all.num_inputs : 0; i < end; ++i) {
      visit(static_cast<std::size_t>(all.routes[static_cast<std::size_t>(i)]));
    }
  }
  // Throws if a tile needs a unit that its device neither owns nor has a route for.
  void require_all() const;

 private:
  // Routes of one tile, inputs first.
  struct RoutesOfTile {
    std::array<std::uint32_t, kNumKinds> routes;
    std::int8_t num_inputs = 0;
    std::int8_t num_results = 0;
  };

  void index_tiles();
  [[nodiscard]] std::size_t key(Kind kind, BlockId block, GroupId group) const;
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
  // The routes of key k are order_[first_[k], first_[k + 1]), their devices ascending.
  std::vector<std::size_t> first_;
  std::vector<std::size_t> order_;
  std::vector<Rank> devices_;
  std::vector<RoutesOfTile> of_tiles_;
  bool complete_ = true;  // every unit that a tile needs is on its device or has a route
};

// Sorts the tiles of one device, given as indices: first those that others wait for (`rank_of` 0),
// then those whose results must travel (1), then the rest (2), each by row, column and group.
template <typename RankOf>
void order_by_rank(const ScheduleProblem& problem, std::vector<std::size_t>& mine,
                   const RankOf& rank_of) {
  const auto place_of = [&](std::size_t t) {
    const PlacedTile& tile = problem.tiles[t];
    return std::tuple(tile.q_block, tile.kv_block, tile.group, t);
  };
  if (!std::ranges::is_sorted(mine, {}, place_of)) std::ranges::sort(mine, {}, place_of);
  std::array<std::vector<std::size_t>, 3> of_rank;
  for (const std::size_t t : mine) of_rank[static_cast<std::size_t>(rank_of(t))].push_back(t);
  mine.clear();
  for (const std::vector<std::size_t>& tiles : of_rank) {
    mine.insert(mine.end(), tiles.begin(), tiles.end());
  }
}

}  // namespace contextile
