#include "partition/grid/rebalance.h"

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "base/interrupt.h"

namespace contextile {
namespace {

// With more devices than this, a vertex considers those that its nets reach and the emptiest parts.
constexpr std::int32_t kFewDevices = 64;
constexpr std::size_t kEmptiestParts = 16;
// Most vertices of a part that are compared as partners of a swap.
constexpr int kSwapsOfPart = 8;

// Returns a price by which gains come first, then the cheapest cost per weight removed above the
// limit.
double price_of(std::int64_t cost, std::int64_t removed) {
  const auto bytes = static_cast<double>(cost);
  return cost > 0 ? bytes / static_cast<double>(removed) : bytes;
}

}  // namespace

Rebalance::Rebalance(PinnedGrid& grid, std::vector<GridVertexId> vertices, const DeviceParts& parts)
    : grid_(grid),
      vertices_(std::move(vertices)),
      parts_(parts),
      load_(parts.ids()),
      device_load_(IdRange<Rank>(parts.count * parts.devices)) {
  for (const Rank device : device_load_.ids()) {
    part_of_.push_back(GridPartId{device.value / parts.devices});
  }
  for (const GridVertexId v : vertices_) {
    const Rank device = grid_.device(v);
    load_[part_of(device)] += grid_.weight(v);
    device_load_[Rank{device.value - parts_.first_device.value}] += grid_.weight(v);
  }
}

bool Rebalance::bring_below(std::int64_t limit) {
  limit_ = limit;
  while (true) {
    const std::vector<GridPartId> above = above_limit();
    if (above.empty()) return true;
    PartLists lists = by_part();
    bool progress = false;
    for (const GridPartId part : above) progress = shed(part, lists[part]) || progress;
    if (progress) continue;
    for (const GridPartId part : above) progress = swap_out(part, lists) || progress;
    if (!progress) return false;
  }
}

std::vector<GridPartId> Rebalance::above_limit() const {
  std::vector<GridPartId> above;
  for (const GridPartId p : parts_.ids()) {
    if (over(p) > 0) above.push_back(p);
  }
  std::ranges::stable_sort(above, std::ranges::greater{}, [this](GridPartId p) { return over(p); });
  return above;
}

Rebalance::PartLists Rebalance::by_part() {
  if (lightest_first_.empty()) {
    std::vector<std::pair<std::int64_t, GridVertexId>> weighed;
    weighed.reserve(vertices_.size());
    for (const GridVertexId v : vertices_) weighed.emplace_back(grid_.weight(v), v);
    std::ranges::stable_sort(weighed, {}, [](const auto& one) { return one.first; });
    for (const auto& [weight, v] : weighed) lightest_first_.push_back(v);
  }
  PartLists lists(parts_.ids());
  for (const GridVertexId v : lightest_first_) lists[part_of(grid_.device(v))].push_back(v);
  return lists;
}

void Rebalance::move(GridVertexId v, Rank to) {
  const std::int64_t weight = grid_.weight(v);
  const std::int32_t first = parts_.first_device.value;
  const Rank from = grid_.device(v);
  change_load(part_of(from), -weight);
  change_load(part_of(to), weight);
  device_load_[Rank{from.value - first}] -= weight;
  device_load_[Rank{to.value - first}] += weight;
  grid_.move(v, to);
  changed_ = true;
}

// Keeps by_load_ sorted: a part moves past few others.
void Rebalance::change_load(GridPartId part, std::int64_t change) {
  load_[part] += change;
  if (by_load_.empty()) return;
  const auto order = [this](GridPartId p) { return std::pair(load_[p], p); };
  auto at = std::ranges::find(by_load_, part);
  for (; at != by_load_.begin() && order(*at) < order(at[-1]); --at) std::iter_swap(at, at - 1);
  for (; at + 1 != by_load_.end() && order(at[1]) < order(*at); ++at) std::iter_swap(at, at + 1);
}

// ------------------------------------------------------------------------------------- moves

void Rebalance::sort_by_load() {
  if (!by_load_.empty()) return;
  by_load_.assign(parts_.ids().begin(), parts_.ids().end());
  std::ranges::sort(by_load_, {}, [this](GridPartId p) { return std::pair(load_[p], p); });
}

// Finds the devices of other parts that have room.
void Rebalance::find_targets(GridVertexId v, GridPartId from) {
  targets_.clear();
  const std::int64_t most = limit_ - grid_.weight(v);
  const auto has_room = [&](GridPartId part) { return part != from && load_[part] <= most; };
  const auto append_part = [&](GridPartId part) {
    if (!has_room(part)) return;
    for (std::int32_t d = 0; d < parts_.devices; ++d) {
      targets_.emplace_back(parts_.first_device.value + part.value * parts_.devices + d);
    }
  };
  if (parts_.count * parts_.devices <= kFewDevices) {
    for (const GridPartId p : parts_.ids()) append_part(p);
    return;
  }
  grid_.for_each_device(v, [&](Rank device) {
    if (parts_.holds(device) && has_room(part_of(device))) targets_.push_back(device);
  });
  sort_by_load();
  for (const GridPartId p : std::span(by_load_).first(std::min(kEmptiestParts, by_load_.size()))) {
    append_part(p);
  }
}

Rebalance::Move Rebalance::best_move(GridVertexId v) {
  const GridPartId from = part_of(grid_.device(v));
  Move best{.vertex = v};
  find_targets(v, from);
  grid_.find_deltas(v, targets_, deltas_);
  std::tuple<std::int64_t, std::int64_t, std::int64_t, Rank> least;
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    const Rank to = targets_[i];
    const std::tuple candidate(deltas_[i], load_[part_of(to)],
                               device_load_[Rank{to.value - parts_.first_device.value}], to);
    if (best.to.valid() && candidate >= least) continue;
    least = candidate;
    best.to = to;
  }
  if (!best.to.valid()) return best;
  best.cost = std::get<0>(least);
  best.price = price_of(best.cost, std::min(grid_.weight(v), over(from)));
  return best;
}

// Sorts the best moves of all vertices by price, then makes them until the part is within the
// limit.
bool Rebalance::shed(GridPartId part, const std::vector<GridVertexId>& vertices) {
  std::vector<Move> moves;
  for (const GridVertexId v : vertices) {
    check_interrupt();
    const Move move = grid_.weight(v) > 0 ? best_move(v) : Move{};
    if (move.to.valid()) moves.push_back(move);
  }
  std::ranges::sort(moves, {}, [](const Move& m) { return std::pair(m.price, m.vertex); });
  bool progress = false;
  for (const Move& planned : moves) {
    if (over(part) <= 0) break;
    const Move now = best_move(planned.vertex);  // earlier moves may have filled the target
    if (!now.to.valid()) continue;
    move(now.vertex, now.to);
    progress = true;
  }
  return progress;
}

// ------------------------------------------------------------------------------------- swaps

// Calls visit for swaps with a lighter vertex of another part that has room for the difference.
template <typename Visit>
void Rebalance::for_each_swap(GridPartId from, const PartLists& lists, const Visit& visit) const {
  const auto weight = [this](GridVertexId v) { return grid_.weight(v); };
  for (const GridVertexId out : lists[from]) {
    check_interrupt();
    for (const GridPartId p : parts_.ids()) {
      const std::int64_t room = limit_ - load_[p];
      if (p == from || room <= 0) continue;
      auto in = std::ranges::lower_bound(lists[p], weight(out) - room, {}, weight);
      for (int i = 0; i < kSwapsOfPart && in != lists[p].end(); ++i, ++in) {
        if (weight(*in) >= weight(out)) break;
        visit(Swap{std::min(weight(out) - weight(*in), over(from)), 0, out, *in});
      }
    }
  }
}

// Returns the cheapest of the swaps that remove at least half as much above the limit as the best
// one.
Rebalance::Swap Rebalance::best_swap(GridPartId from, const PartLists& lists) const {
  std::int64_t most = 0;
  for_each_swap(from, lists, [&](const Swap& swap) { most = std::max(most, swap.removed); });
  Swap best;
  for_each_swap(from, lists, [&](Swap swap) {
    if (2 * swap.removed < most) return;
    swap.price = price_of(
        grid_.delta(swap.out, grid_.device(swap.in)) + grid_.delta(swap.in, grid_.device(swap.out)),
        swap.removed);
    if (best.removed == 0 || swap.price < best.price) best = swap;
  });
  return best;
}

bool Rebalance::swap_out(GridPartId part, PartLists& lists) {
  bool progress = false;
  while (over(part) > 0) {
    const Swap swap = best_swap(part, lists);
    if (swap.removed == 0) break;
    const Rank from = grid_.device(swap.out);
    const Rank to = grid_.device(swap.in);
    move(swap.out, to);
    move(swap.in, from);
    relist(swap.out, part, lists);
    relist(swap.in, part_of(to), lists);
    progress = true;
  }
  return progress;
}

// Updates the lists after the vertex has moved out of a part. The order is that of by_part,
// provided that vertices_ ascend.
void Rebalance::relist(GridVertexId v, GridPartId from, PartLists& lists) const {
  const auto order = [this](GridVertexId u) { return std::pair(grid_.weight(u), u); };
  std::vector<GridVertexId>& left = lists[from];
  left.erase(std::ranges::lower_bound(left, order(v), {}, order));
  std::vector<GridVertexId>& joined = lists[part_of(grid_.device(v))];
  joined.insert(std::ranges::lower_bound(joined, order(v), {}, order), v);
}

// ------------------------------------------------------------------------------------- polish

Rebalance::TileLists Rebalance::tiles_by_part() {
  const PartLists lists = by_part();
  TileLists tiles(parts_.ids());
  for (const GridPartId p : parts_.ids()) {
    tiles[p].reserve(lists[p].size());
    for (const GridVertexId v : lists[p]) tiles[p].push_back(grid_.with_nets(v));
  }
  return tiles;
}

void Rebalance::lower_cost() {
  constexpr int kPasses = 6;
  bool progress = true;
  for (int pass = 0; pass < kPasses && progress; ++pass) {
    progress = false;
    for (const GridVertexId v : vertices_) progress = move_if_cheaper(v) || progress;
    const TileLists lists = tiles_by_part();
    for (const GridVertexId v : vertices_) progress = swap_if_cheaper(v, lists) || progress;
  }
}

bool Rebalance::move_if_cheaper(GridVertexId v) {
  if (!grid_.can_gain(v)) return false;
  const Move best = best_move(v);
  if (!best.to.valid() || best.cost >= 0) return false;
  move(v, best.to);
  return true;
}

// Swaps the vertex with one of a part in which it costs less. Returns false if no swap lowers the
// cost.
bool Rebalance::swap_if_cheaper(GridVertexId v, const TileLists& lists) {
  if (!grid_.can_gain(v)) return false;
  const Rank from = grid_.device(v);
  const std::int64_t weight = grid_.weight(v);
  targets_.clear();
  for (const GridPartId p : parts_.ids()) {
    targets_.emplace_back(parts_.first_device.value + p.value * parts_.devices);
  }
  grid_.find_deltas(v, targets_, deltas_);
  for (const GridPartId p : parts_.ids()) {
    const Rank to = targets_[p.index()];
    const std::int64_t gain = deltas_[p.index()];
    if (to == from || gain >= 0) continue;
    for (const PinnedGrid::TileOfNets& other : lists[p]) {
      // Most candidates cost too much. They are on `to` unless they have moved since the lists.
      if (gain + grid_.delta(other, to, from) >= 0) continue;
      const std::int64_t more = weight - other.weight;
      if (grid_.device(other.vertex) != to || load_[p] + more > limit_ ||
          load_[part_of(from)] - more > limit_) {
        continue;
      }
      move(v, to);
      move(other.vertex, from);
      return true;
    }
  }
  return false;
}

// ------------------------------------------------------------------------------------- packing

Rank Rebalance::cheapest_device(GridVertexId v, GridPartId part) const {
  const std::int32_t first = parts_.first_device.value + part.value * parts_.devices;
  Rank best{first};
  for (const Rank in_part : IdRange<Rank>(parts_.devices)) {
    const Rank device{first + in_part.value};
    if (grid_.delta(v, device) < grid_.delta(v, best)) best = device;
  }
  return best;
}

void Rebalance::pack_longest_first() {
  std::ranges::stable_sort(vertices_, std::ranges::greater{},
                           [this](GridVertexId v) { return grid_.weight(v); });
  lightest_first_.clear();
  IdVector<GridPartId, std::int64_t> packed(parts_.ids());
  for (const GridVertexId v : vertices_) {
    const std::int64_t least = *std::ranges::min_element(packed);
    Rank best;
    for (const GridPartId p : parts_.ids()) {
      if (packed[p] != least) continue;
      const Rank device = cheapest_device(v, p);
      if (!best.valid() || grid_.delta(v, device) < grid_.delta(v, best)) best = device;
    }
    packed[part_of(best)] += grid_.weight(v);
    move(v, best);
  }
}

Rebalance::Counts Rebalance::packed_counts() const {
  std::vector<std::int64_t> weights;
  for (const GridVertexId v : vertices_) weights.push_back(grid_.weight(v));
  std::ranges::sort(weights, std::ranges::greater{});
  Counts counts;
  IdVector<GridPartId, std::int64_t> packed(parts_.ids());
  for (const std::int64_t weight : weights) {
    const auto least = std::ranges::min_element(packed) - packed.begin();
    const GridPartId part{static_cast<std::int32_t>(least)};
    packed[part] += weight;
    ++counts.try_emplace(weight, parts_.ids()).first->second[part];
  }
  return counts;
}

Rebalance::Counts Rebalance::current_counts() const {
  Counts counts;
  for (const GridVertexId v : vertices_) {
    ++counts.try_emplace(grid_.weight(v), parts_.ids()).first->second[part_of(grid_.device(v))];
  }
  return counts;
}

// Returns for every part of the packing a part of its own that has most of its weights already.
IdVector<GridPartId, GridPartId> Rebalance::most_alike(const Counts& packed,
                                                       const Counts& current) const {
  IdVector<GridPartId, GridPartId> alike(parts_.ids());
  IdVector<GridPartId, bool> taken(parts_.ids());
  for (const GridPartId p : parts_.ids()) {
    std::int64_t most = -1;
    for (const GridPartId q : parts_.ids()) {
      if (taken[q]) continue;
      std::int64_t common = 0;
      for (const auto& [weight, counts] : packed) {
        common += weight * std::min(counts[p], current.at(weight)[q]);
      }
      if (common <= most) continue;
      most = common;
      alike[p] = q;
    }
    taken[alike[p]] = true;
  }
  return alike;
}

// Moves vertices of a weight from parts with a surplus to parts with a deficit.
void Rebalance::move_cheapest(std::int64_t weight, IdVector<GridPartId, std::int32_t>& surplus) {
  while (true) {
    Move best;
    for (const GridVertexId v : vertices_) {
      if (grid_.weight(v) != weight || surplus[part_of(grid_.device(v))] <= 0) continue;
      for (const GridPartId p : parts_.ids()) {
        if (surplus[p] >= 0) continue;
        const Rank to = cheapest_device(v, p);
        const std::int64_t cost = grid_.delta(v, to);
        if (!best.to.valid() || cost < best.cost) best = {0, cost, v, to};
      }
    }
    if (!best.to.valid()) return;
    --surplus[part_of(grid_.device(best.vertex))];
    ++surplus[part_of(best.to)];
    move(best.vertex, best.to);
  }
}

void Rebalance::match_packing() {
  const Counts packed = packed_counts();
  const Counts current = current_counts();
  const IdVector<GridPartId, GridPartId> alike = most_alike(packed, current);
  for (const auto& [weight, counts] : packed) {
    IdVector<GridPartId, std::int32_t> surplus = current.at(weight);
    for (const GridPartId p : parts_.ids()) surplus[alike[p]] -= counts[p];
    move_cheapest(weight, surplus);
  }
}

}  // namespace contextile
