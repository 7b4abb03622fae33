// Parts that must not have more than a limit, and what brings them below it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "partition/grid/pins.h"

namespace contextile {

using GridPartId = Id<struct GridPartTag>;

// Consecutive parts of equally many consecutive devices: nodes, or the devices of one node.
struct DeviceParts {
  Rank first_device{0};
  std::int32_t count = 1;
  std::int32_t devices = 1;  // of each

  [[nodiscard]] IdRange<GridPartId> ids() const { return IdRange<GridPartId>(count); }
  [[nodiscard]] GridPartId of(Rank device) const {
    return GridPartId{(device.value - first_device.value) / devices};
  }
  [[nodiscard]] bool holds(Rank device) const {
    return device.value >= first_device.value &&
           device.value < first_device.value + count * devices;
  }
};

// Brings the parts to hold at most so much of the vertices' weight each. All vertices must be on
// the parts' devices and stay there.
class Rebalance {
 public:
  Rebalance(PinnedGrid& grid, std::vector<GridVertexId> vertices, const DeviceParts& parts);

  // Moves vertices out of parts above the limit into parts with room, cheapest bytes per weight
  // first, and swaps them where none fits. Ends because each step lowers what is above the limit.
  // Whether nothing is any more.
  bool bring_below(std::int64_t limit);
  // Every vertex anew, heaviest first to the part with least, cheapest bytes of equals: the fullest
  // part is longest_first_max.
  void pack_longest_first();
  // Moves and swaps that cost less and keep the last limit, parts of one device each.
  void lower_cost();
  [[nodiscard]] bool changed() const { return changed_; }  // whether anything has moved

 private:
  struct Move {
    double price = 0;
    std::int64_t cost = 0;
    GridVertexId vertex;
    Rank to{};  // invalid: none
  };
  struct Swap {
    std::int64_t removed = 0;  // 0: none
    double price = 0;
    GridVertexId out;
    GridVertexId in;
  };
  using PartLists = IdVector<GridPartId, std::vector<GridVertexId>>;

  [[nodiscard]] std::int64_t over(GridPartId part) const { return load_[part] - limit_; }
  [[nodiscard]] std::vector<GridPartId> above_limit() const;
  [[nodiscard]] PartLists by_part() const;  // lightest first
  void find_emptiest();
  void find_targets(GridVertexId v, GridPartId from);
  [[nodiscard]] Move best_move(GridVertexId v);
  template <typename Visit>
  void for_each_swap(GridPartId from, const PartLists& lists, const Visit& visit) const;
  [[nodiscard]] Swap best_swap(GridPartId from, const PartLists& lists) const;
  bool shed(GridPartId part, const std::vector<GridVertexId>& vertices);
  bool swap_out(GridPartId part, PartLists& lists);
  void relist(GridVertexId v, GridPartId from, PartLists& lists) const;
  bool move_if_cheaper(GridVertexId v);
  bool swap_if_cheaper(GridVertexId v, const PartLists& lists);
  void move(GridVertexId v, Rank to);
  [[nodiscard]] Rank cheapest_device(GridVertexId v, GridPartId part) const;

  PinnedGrid& grid_;
  std::vector<GridVertexId> vertices_;
  DeviceParts parts_;
  std::int64_t limit_ = 0;
  bool changed_ = false;
  IdVector<GridPartId, std::int64_t> load_;
  IdVector<Rank, std::int64_t> device_load_;  // from the parts' first device on
  std::vector<GridPartId> emptiest_;          // parts with least; empty: loads have changed since
  std::vector<Rank> targets_;                 // scratch: where a vertex may go
  std::vector<std::int64_t> deltas_;          // scratch: what it costs there
};

}  // namespace contextile
