// Moves that bring parts within a limit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "partition/grid/pins.h"

namespace contextile {

using GridPartId = Id<struct GridPartTag>;

// Consecutive parts with equally many consecutive devices: nodes, or the devices of one node.
struct DeviceParts {
  Rank first_device{0};
  std::int32_t count = 1;
  std::int32_t devices = 1;  // per part

  [[nodiscard]] IdRange<GridPartId> ids() const { return IdRange<GridPartId>(count); }
  [[nodiscard]] bool holds(Rank device) const {
    return device.value >= first_device.value &&
           device.value < first_device.value + count * devices;
  }
};

// Brings parts to at most a limit of the vertices' weight each. All vertices must be on the parts'
// devices and stay there.
class Rebalance {
 public:
  Rebalance(PinnedGrid& grid, std::vector<GridVertexId> vertices, const DeviceParts& parts);

  // Moves vertices out of parts above the limit into parts with room, cheapest bytes per weight
  // first, and swaps them if none fits. It ends because each step lowers the weight above the
  // limit. Returns true if no part is above the limit.
  bool bring_below(std::int64_t limit);
  // Places every vertex again, heaviest first, in the part with the least weight; of equal parts in
  // the one that is cheapest in bytes. The fullest part then has longest_first_max.
  void pack_longest_first();
  // Makes the moves that leave every part with as many vertices of each weight as packing them
  // longest first does, cheapest first. The fullest part then has longest_first_max.
  void match_packing();
  // Makes moves and swaps that lower the cost and keep the last limit. Vertices must be tiles, and
  // parts must have one device each.
  void lower_cost();
  [[nodiscard]] bool changed() const { return changed_; }  // true if anything has moved

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
  using TileLists = IdVector<GridPartId, std::vector<PinnedGrid::TileOfNets>>;

  [[nodiscard]] GridPartId part_of(Rank device) const {
    return part_of_[Rank{device.value - parts_.first_device.value}];
  }
  [[nodiscard]] std::int64_t over(GridPartId part) const { return load_[part] - limit_; }
  [[nodiscard]] std::vector<GridPartId> above_limit() const;
  [[nodiscard]] PartLists by_part();  // lightest first
  [[nodiscard]] TileLists tiles_by_part();
  void sort_by_load();
  void change_load(GridPartId part, std::int64_t change);
  void find_targets(GridVertexId v, GridPartId from);
  [[nodiscard]] Move best_move(GridVertexId v);
  template <typename Visit>
  void for_each_swap(GridPartId from, const PartLists& lists, const Visit& visit) const;
  [[nodiscard]] Swap best_swap(GridPartId from, const PartLists& lists) const;
  bool shed(GridPartId part, const std::vector<GridVertexId>& vertices);
  bool swap_out(GridPartId part, PartLists& lists);
  void relist(GridVertexId v, GridPartId from, PartLists& lists) const;
  bool move_if_cheaper(GridVertexId v);
  bool swap_if_cheaper(GridVertexId v, const TileLists& lists);
  void move(GridVertexId v, Rank to);
  // Numbers of vertices of each weight in every part, heaviest weights first.
  using Counts = std::map<std::int64_t, IdVector<GridPartId, std::int32_t>, std::greater<>>;
  [[nodiscard]] Counts packed_counts() const;
  [[nodiscard]] Counts current_counts() const;
  [[nodiscard]] IdVector<GridPartId, GridPartId> most_alike(const Counts& packed,
                                                            const Counts& current) const;
  void move_cheapest(std::int64_t weight, IdVector<GridPartId, std::int32_t>& surplus);
  [[nodiscard]] Rank cheapest_device(GridVertexId v, GridPartId part) const;

  PinnedGrid& grid_;
  std::vector<GridVertexId> vertices_;
  DeviceParts parts_;
  std::int64_t limit_ = 0;
  bool changed_ = false;
  IdVector<GridPartId, std::int64_t> load_;
  IdVector<Rank, std::int64_t> device_load_;  // from the parts' first device on
  IdVector<Rank, GridPartId> part_of_;        // of the same devices
  std::vector<GridVertexId> lightest_first_;  // vertices_ by weight; empty: not yet sorted
  std::vector<GridPartId> by_load_;           // parts, the emptiest first; empty: not yet sorted
  std::vector<Rank> targets_;                 // scratch: devices that a vertex may move to
  std::vector<std::int64_t> deltas_;          // scratch: change of cost there
};

}  // namespace contextile
