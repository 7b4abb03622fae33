#include "partition/grid/starts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

namespace contextile {
namespace {

using PlaceId = Id<struct PlaceTag>;  // one of the open places, lowest lane first

IdVector<PlaceId, Lane> places_of(const GridState& state) {
  IdVector<PlaceId, Lane> places;
  for_each_lane(state.lanes(), [&](Lane lane) { places.push_back(lane); });
  return places;
}

using TilesByRow = IdVector<BlockId, std::vector<TileId>>;

TilesByRow tiles_by_row(const GridLevel& level) {
  TilesByRow rows(level.blocks.ids());
  for (const TileId t : level.tiles.ids()) rows[level.tiles[t].row].push_back(t);
  return rows;
}

// Fills places with sequences.
class ContiguousStart {
 public:
  explicit ContiguousStart(GridState& state)
      : s_(state),
        level_(*state.level),
        places_(places_of(state)),
        rows_(tiles_by_row(level_)),
        work_(places_.ids()),
        tokens_(places_.ids()) {
    const auto count = static_cast<double>(places_.size());
    mean_work_ = std::max(1.0, static_cast<double>(level_.total_work) / count);
    mean_tokens_ = std::max(1.0, static_cast<double>(level_.total_held_tokens) / count);
  }

  void run() {
    gather_sequences();
    const IdRange<SequenceId> ids = sequences_.ids();
    std::vector<SequenceId> order(ids.begin(), ids.end());
    std::stable_sort(order.begin(), order.end(), [&](SequenceId a, SequenceId b) {
      return share(sequences_[a]) > share(sequences_[b]);
    });
    // Long sequences take consecutive places of their own; then short ones fill the gaps.
    std::size_t next = 0;
    PlaceId first_place{0};
    for (; next < order.size(); ++next) {
      const Sequence& sequence = sequences_[order[next]];
      if (share(sequence) <= 1) break;
      const std::int32_t taken = spread(sequence, first_place);
      if (taken == 0) break;
      first_place.value += taken;
    }
    for (; next < order.size(); ++next) place_whole(sequences_[order[next]]);
    s_.rebuild();
  }

 private:
  struct Sequence {
    std::vector<BlockId> blocks;
    double work = 0;
    double tokens = 0;
  };

  void gather_sequences() {
    sequences_.resize(IdRange<SequenceId>(level_.num_sequences()));
    for (const BlockId b : level_.blocks.ids()) {
      Sequence& sequence = sequences_[level_.blocks[b].sequence];
      sequence.blocks.push_back(b);
      sequence.tokens += static_cast<double>(level_.blocks[b].held_tokens);
      sequence.work += row_work(b);
    }
  }
  [[nodiscard]] double row_work(BlockId b) const {
    double work = 0;
    for (const TileId t : rows_[b]) work += tile_work(t);
    return work;
  }
  [[nodiscard]] double tile_work(TileId t) const {
    return static_cast<double>(level_.tiles[t].work);
  }
  // Returns the sequence's size relative to the fair share of one place.
  [[nodiscard]] double share(const Sequence& sequence) const {
    return std::max(sequence.work / mean_work_, sequence.tokens / mean_tokens_);
  }

  void give_block(BlockId b, PlaceId place) {
    s_.owner[b] = PackedLane(places_[place]);
    tokens_[place] += static_cast<double>(level_.blocks[b].held_tokens);
  }
  void give_tile(TileId t, PlaceId place) {
    s_.place[t] = PackedLane(places_[place]);
    work_[place] += tile_work(t);
  }

  // Spreads a sequence over consecutive places from `first`. Returns the number of places, 0 if no
  // place is left.
  std::int32_t spread(const Sequence& sequence, PlaceId first) {
    // A place is rather overfull, within the limits, than another one opened.
    const double tightness = std::min(0.94, 1 / s_.limits.work_cap);
    const double wanted = std::ceil(std::max(
        {sequence.work / (mean_work_ * s_.limits.work_cap),
         sequence.tokens / static_cast<double>(s_.limits.token_cap), share(sequence) * tightness}));
    const auto left = static_cast<double>(places_.size() - first.index());
    const auto count = static_cast<std::int32_t>(std::min(left, std::max(1.0, wanted)));
    if (count == 0) return 0;
    // A tile or block goes to the place that its middle falls into, when the sequence is cut
    // evenly.
    const auto slice = [&](double middle, double total) {
      const auto part = static_cast<std::int32_t>(middle * count / std::max(1.0, total));
      return PlaceId{first.value + std::min(count - 1, part)};
    };
    double work = 0;
    double tokens = 0;
    for (const BlockId b : sequence.blocks) {
      for (const TileId t : rows_[b]) {
        give_tile(t, slice(work + tile_work(t) / 2, sequence.work));
        work += tile_work(t);
      }
      const auto held = static_cast<double>(level_.blocks[b].held_tokens);
      give_block(b, slice(tokens + held / 2, sequence.tokens));
      tokens += held;
    }
    return count;
  }

  // Returns the place that is least full with this much more.
  [[nodiscard]] PlaceId best_place(double work, double tokens, double& fullness) const {
    PlaceId best;
    for (const PlaceId p : places_.ids()) {
      const double full =
          std::max((work_[p] + work) / mean_work_, (tokens_[p] + tokens) / mean_tokens_) /
          s_.share(places_[p]);
      if (!best.valid() || full < fullness) {
        fullness = full;
        best = p;
      }
    }
    return best;
  }

  void place_whole(const Sequence& sequence) {
    double fullness = 0;
    const PlaceId whole = best_place(sequence.work, sequence.tokens, fullness);
    const bool fits = fullness <= std::max(s_.limits.work_cap,
                                           static_cast<double>(s_.limits.token_cap) / mean_tokens_);
    for (const BlockId b : sequence.blocks) {
      const PlaceId p =
          fits ? whole
               : best_place(row_work(b), static_cast<double>(level_.blocks[b].held_tokens),
                            fullness);
      give_block(b, p);
      for (const TileId t : rows_[b]) give_tile(t, p);
    }
  }

  GridState& s_;
  const GridLevel& level_;
  IdVector<PlaceId, Lane> places_;
  TilesByRow rows_;
  IdVector<PlaceId, double> work_;
  IdVector<PlaceId, double> tokens_;
  IdVector<SequenceId, Sequence> sequences_;
  double mean_work_ = 1;
  double mean_tokens_ = 1;
};

}  // namespace

void start_contiguous(GridState& state) { ContiguousStart(state).run(); }

void start_greedy(GridState& state) {
  const GridLevel& level = *state.level;
  const IdVector<PlaceId, Lane> places = places_of(state);
  const TilesByRow rows = tiles_by_row(level);
  IdVector<BlockId, std::int64_t> row_work(level.blocks.ids());
  for (const GridLevel::LevelTile& tile : level.tiles) row_work[tile.row] += tile.work;
  const IdRange<BlockId> blocks = level.blocks.ids();
  std::vector<BlockId> order(blocks.begin(), blocks.end());
  std::stable_sort(order.begin(), order.end(),
                   [&](BlockId a, BlockId b) { return row_work[a] > row_work[b]; });
  IdVector<PlaceId, std::int64_t> work(places.ids());
  IdVector<PlaceId, std::int64_t> tokens(places.ids());
  const auto least = [](const IdVector<PlaceId, std::int64_t>& x) {
    return PlaceId{static_cast<std::int32_t>(std::min_element(x.begin(), x.end()) - x.begin())};
  };
  const auto cap =
      static_cast<std::int64_t>(state.limits.work_cap * static_cast<double>(level.total_work) /
                                static_cast<double>(places.size()));
  for (const BlockId b : order) {
    const std::int64_t held = level.blocks[b].held_tokens;
    PlaceId best;
    for (const PlaceId p : places.ids()) {
      if (tokens[p] + held > state.token_cap(places[p])) continue;
      if (!best.valid() || work[p] < work[best]) best = p;
    }
    if (!best.valid()) best = least(tokens);
    state.owner[b] = PackedLane(places[best]);
    tokens[best] += held;
    for (const TileId t : rows[b]) {
      const std::int64_t amount = level.tiles[t].work;
      if (work[best] + amount > cap) best = least(work);
      state.place[t] = PackedLane(places[best]);
      work[best] += amount;
    }
  }
  state.rebuild();
}

void start_inside_nodes(GridState& state) {
  const GridLevel& level = *state.level;
  const LaneLayout& layout = state.layout;
  IdVector<NodeId, double> work(layout.node_ids());
  IdVector<NodeId, double> tokens(layout.node_ids());
  for (const TileId t : level.tiles.ids()) {
    work[layout.node(state.place[t])] += static_cast<double>(level.tiles[t].work);
  }
  for (const BlockId b : level.blocks.ids()) {
    tokens[layout.node(state.owner[b])] += static_cast<double>(level.blocks[b].held_tokens);
  }
  const IdRange<TileId> tiles = level.tiles.ids();
  std::vector<TileId> order(tiles.begin(), tiles.end());
  std::sort(order.begin(), order.end(), [&](TileId a, TileId b) {
    const auto& x = level.tiles[a];
    const auto& y = level.tiles[b];
    return std::tuple(x.row, x.group, x.column) < std::tuple(y.row, y.group, y.column);
  });
  const auto device_at = [&](NodeId node, double middle, double total) {
    const auto device =
        static_cast<std::int32_t>(middle * layout.devices_per_node / std::max(1.0, total));
    return PackedLane(layout.lane(node, std::min(layout.devices_per_node - 1, device)));
  };
  IdVector<NodeId, double> work_so_far(layout.node_ids());
  for (const TileId t : order) {
    const NodeId node = layout.node(state.place[t]);
    const auto amount = static_cast<double>(level.tiles[t].work);
    state.place[t] = device_at(node, work_so_far[node] + amount / 2, work[node]);
    work_so_far[node] += amount;
  }
  IdVector<NodeId, double> tokens_so_far(layout.node_ids());
  for (const BlockId b : level.blocks.ids()) {
    const NodeId node = layout.node(state.owner[b]);
    const auto held = static_cast<double>(level.blocks[b].held_tokens);
    state.owner[b] = device_at(node, tokens_so_far[node] + held / 2, tokens[node]);
    tokens_so_far[node] += held;
  }
  state.rebuild();
}

}  // namespace contextile
