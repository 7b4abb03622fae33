#include "partition/grid/anneal.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "base/interrupt.h"

namespace contextile {
namespace {

// Returns -ln(u) of 4096 evenly spaced u: thresholds of exponential distribution.
std::array<float, 4096> exponential_table() {
  std::array<float, 4096> table{};
  for (std::size_t i = 0; i < table.size(); ++i) {
    table[i] = static_cast<float>(-std::log((static_cast<double>(i) + 0.5) / 4096.0));
  }
  return table;
}

class Annealer {
 public:
  Annealer(GridState& state, FastRandom& random)
      : s_(state),
        level_(*state.level),
        random_(random),
        row_bytes_(state.level->mean_row_bytes()) {}

  void run(const AnnealSchedule& schedule) {
    const double cooling = std::log(schedule.last_temperature / schedule.first_temperature);
    for (std::int64_t step = 0; step < schedule.steps; ++step) {
      if (step % kStepsPerTemperature == 0) {
        check_interrupt();
        temperature_ = schedule.first_temperature * std::exp(cooling * static_cast<double>(step) /
                                                             static_cast<double>(schedule.steps));
        // Good states are unlikely while it is hot, so the best is kept only in the last part.
        if (step > schedule.steps * 6 / 10) remember_if_best();
      }
      one_move();
    }
    if (best_energy_ < s_.energy() - 1) {
      s_.place = best_place_;
      s_.owner = best_owner_;
      s_.rebuild();
    }
  }

 private:
  static constexpr std::int64_t kStepsPerTemperature = 512;
  static constexpr int kOwnerTries = 24;
  static constexpr int kSwapTries = 6;

  // Numbers of moves of each kind among 32; the other 6 are compound.
  static constexpr std::uint32_t kTileMoves = 20;
  static constexpr std::uint32_t kTileSwaps = 3;
  static constexpr std::uint32_t kOwnerMoves = 3;

  void one_move() {
    const std::uint32_t bits = random_.next();
    const std::uint32_t type = bits & 31U;
    static const std::array<float, 4096> kExponential = exponential_table();
    threshold_ = temperature_ * kExponential[(bits >> 5) & 4095U];
    if (type < kTileMoves) {
      try_tile();
    } else if (type < kTileMoves + kTileSwaps) {
      try_tile_swap();
    } else if (type < kTileMoves + kTileSwaps + kOwnerMoves) {
      try_owner(bits >> 17);
    } else {
      try_compound(bits >> 17);
    }
  }

  void remember_if_best() {
    const double energy = s_.energy();
    if (energy >= best_energy_) return;
    best_energy_ = energy;
    best_place_ = s_.place;
    best_owner_ = s_.owner;
  }

  // ------------------------------------------------------------------------- choosing places

  [[nodiscard]] const GridLevel::LevelTile& tile(TileId t) const { return level_.tiles[t]; }
  [[nodiscard]] Lane place(TileId t) const { return s_.place[t]; }
  [[nodiscard]] Lane owner(BlockId b) const { return s_.owner[b]; }

  [[nodiscard]] TileId random_tile() { return TileId{random_.below(level_.num_tiles())}; }
  [[nodiscard]] BlockId random_block() { return BlockId{random_.below(level_.num_blocks())}; }

  [[nodiscard]] Lane pick_lane(LaneMask mask) {
    for (std::int32_t skip = random_.below(std::popcount(mask)); skip > 0; --skip) mask &= mask - 1;
    return lowest_lane(mask);
  }

  // Returns mostly a lane that the tile's row or column spans already, preferably both.
  [[nodiscard]] Lane pick_place(TileId t) {
    const Lane from = place(t);
    const LaneMask reach = s_.reachable(from) & ~lane_bit(from);
    const LaneMask row = s_.span(tile(t).row_net) & reach;
    const LaneMask column = s_.span(tile(t).column_net) & reach;
    const std::int32_t dice = random_.below(64);
    if (dice == 0) return pick_lane(s_.reachable(from));
    if (dice < 28 && (row & column) != 0) return pick_lane(row & column);
    if (dice < 50 && row != 0) return pick_lane(row);
    if (column != 0) return pick_lane(column);
    if (row != 0) return pick_lane(row);
    return pick_lane(s_.reachable(from));
  }

  // Returns an invalid block if a few tries found none.
  [[nodiscard]] BlockId random_block_of(Lane lane) {
    for (int i = 0; i < kOwnerTries; ++i) {
      const BlockId b = random_block();
      if (owner(b) == lane) return b;
    }
    return kInvalidBlock;
  }

  [[nodiscard]] double load_delta(Lane from, Lane to, std::int64_t work) const {
    return s_.work_penalty_delta(from, to, work);
  }
  [[nodiscard]] double token_delta(Lane from, Lane to, std::int64_t held) const {
    return s_.token_penalty_delta(from, to, held);
  }

  // ------------------------------------------------------------------------------ small moves

  void try_tile() {
    const TileId t = random_tile();
    const Lane from = place(t);
    const Lane to = pick_place(t);
    if (to == from) return;
    double delta = static_cast<double>(s_.tile_delta(t, to));
    // The traffic term is known only after the move, so a move that passes so far is made, and
    // taken back if it fails.
    if (delta > threshold_) return;
    delta += load_delta(from, to, tile(t).work);
    if (delta > threshold_) return;
    const double traffic_before = s_.traffic_cost;
    s_.move_tile(t, to);
    if (delta + s_.traffic_cost - traffic_before > threshold_) s_.move_tile(t, from);
  }

  void try_tile_swap() {
    const TileId t = random_tile();
    const Lane from = place(t);
    const Lane to = pick_place(t);
    if (to == from) return;
    TileId other;
    for (int i = 0; i < kSwapTries && !other.valid(); ++i) {
      const Side side = i % 2 == 0 ? Side::kColumn : Side::kRow;
      const TileId candidate = random_.pick(level_.tiles_of(tile(t).net(side)));
      if (place(candidate) == to) other = candidate;
    }
    if (!other.valid()) return;
    // The two moves depend on each other. This cheap bound rejects most pairs before both are made.
    if (static_cast<double>(s_.tile_delta(t, to)) > threshold_ + 4 * row_bytes_) return;
    const double before = s_.energy_without_penalties();
    const double delta_load = load_delta(from, to, tile(t).work - tile(other).work);
    s_.move_tile(t, to);
    s_.move_tile(other, from);
    if (s_.energy_without_penalties() - before + delta_load > threshold_) {
      s_.move_tile(other, to);
      s_.move_tile(t, from);
    }
  }

  void try_owner(std::uint32_t dice) {
    const BlockId b = random_block();
    const Lane from = owner(b);
    const GroupId group{random_.below(level_.num_groups)};
    const GridNetId net = level_.net((dice & 3U) != 0 ? Side::kRow : Side::kColumn, group, b);
    const LaneMask candidates = s_.span(net) & s_.reachable(from) & ~lane_bit(from);
    if (candidates == 0) return;
    const Lane to = pick_lane(candidates);
    const std::int64_t held = held_tokens(b);
    if (s_.has_token_room(from, to, held) || (dice & 28U) == 0) {
      move_owner_if_good(b, from, to, held);
    } else {
      swap_owners_if_good(b, from, to);
    }
  }

  void move_owner_if_good(BlockId b, Lane from, Lane to, std::int64_t held) {
    double delta = static_cast<double>(s_.owner_delta(b, to));
    if (delta > threshold_) return;
    delta += token_delta(from, to, held);
    if (delta > threshold_) return;
    const double traffic_before = s_.traffic_cost;
    s_.move_owner(b, to);
    if (delta + s_.traffic_cost - traffic_before > threshold_) s_.move_owner(b, from);
  }

  void swap_owners_if_good(BlockId b, Lane from, Lane to) {
    const BlockId other = random_block_of(to);
    if (!other.valid()) return;
    double delta = static_cast<double>(s_.owner_delta(b, to) + s_.owner_delta(other, from));
    if (delta > threshold_) return;
    delta += token_delta(from, to, held_tokens(b) - held_tokens(other));
    if (delta > threshold_) return;
    const double traffic_before = s_.traffic_cost;
    s_.move_owner(b, to);
    s_.move_owner(other, from);
    if (delta + s_.traffic_cost - traffic_before > threshold_) {
      s_.move_owner(other, to);
      s_.move_owner(b, from);
    }
  }

  // --------------------------------------------------------------------------- compound moves

  // The place of a tile, or else of a block's ownership, before a move.
  struct Undo {
    TileId tile{};
    BlockId block{};
    Lane lane{};
  };

  void journal_tile(TileId t, Lane to) {
    journal_.push_back({t, kInvalidBlock, place(t)});
    s_.move_tile(t, to);
  }
  void journal_owner(BlockId b, Lane to) {
    journal_.push_back({TileId{}, b, owner(b)});
    s_.move_owner(b, to);
  }
  void undo() {
    for (auto it = journal_.rbegin(); it != journal_.rend(); ++it) {
      if (it->tile.valid()) {
        s_.move_tile(it->tile, it->lane);
      } else {
        s_.move_owner(it->block, it->lane);
      }
    }
  }

  static constexpr GroupId kAllGroups = kInvalidGroup;
  [[nodiscard]] static bool covers_group(GroupId chosen, GroupId g) {
    return chosen == kAllGroups || chosen == g;
  }

  // A set that moves together: the tiles on one device of a block's row or column nets, in one or
  // all groups, and the block's ownership.
  struct Segment {
    BlockId block{0};
    GroupId group{kAllGroups};
    Side side = Side::kRow;
    bool with_owner = false;

    [[nodiscard]] bool covers(GroupId g) const { return covers_group(group, g); }
  };

  // Drawn as two bits, so the order matters.
  enum class Compound : std::uint8_t { kColumn, kRowOfOneGroup, kRow, kBlockSwap };

  void try_compound(std::uint32_t dice) {
    const TileId t = random_tile();
    const Lane from = place(t);
    const Lane to = (dice & 3U) != 0 ? pick_place(t) : pick_lane(s_.reachable(from));
    if (to == from) return;
    journal_.clear();
    const auto kind = static_cast<Compound>((dice >> 2) & 3U);
    const GroupId group = kind == Compound::kRowOfOneGroup ? tile(t).group : kAllGroups;
    if ((dice >> 4 & 7U) == 0) {
      try_pull(t, (dice >> 7 & 1U) != 0 ? Side::kRow : Side::kColumn, group, (dice >> 8 & 1U) != 0);
      return;
    }
    const Side side = kind == Compound::kColumn ? Side::kColumn : Side::kRow;
    const BlockId block = tile(t).block(side);
    const Segment segment{block, group, side, owner(block) == from && (dice >> 9 & 3U) != 0};
    if (kind == Compound::kBlockSwap) {
      try_block_swap(segment, from, to);
    } else {
      try_segment(segment, from, to);
    }
  }

  void try_segment(const Segment& segment, Lane from, Lane to) {
    std::int64_t work = 0;
    double delta = static_cast<double>(segment_delta(segment, from, to, work));
    if (delta > threshold_) return;
    delta += load_delta(from, to, work);
    if (segment.with_owner) delta += token_delta(from, to, held_tokens(segment.block));
    if (delta > threshold_) return;
    const double traffic_before = s_.traffic_cost;
    move_segment(segment, from, to);
    if (delta + s_.traffic_cost - traffic_before > threshold_) undo();
  }

  void try_block_swap(const Segment& segment, Lane from, Lane to) {
    const BlockId other = random_block_of(to);
    if (!other.valid() || other == segment.block) return;
    const Segment returning{other, kAllGroups, Side::kRow, true};
    std::int64_t work = 0;
    std::int64_t returned_work = 0;
    const std::int64_t estimate =
        segment_delta(segment, from, to, work) + segment_delta(returning, to, from, returned_work);
    const std::int64_t held =
        (segment.with_owner ? held_tokens(segment.block) : 0) - held_tokens(other);
    const double penalty = load_delta(from, to, work - returned_work) + token_delta(from, to, held);
    // The two deltas ignore each other; the nets that they share are few.
    if (static_cast<double>(estimate) + penalty > threshold_ + 2 * row_bytes_) return;
    const double before = s_.energy_without_penalties();
    collect(returning, to, returning_);
    move_segment(segment, from, to);
    for (const TileId back : returning_) journal_tile(back, from);
    journal_owner(other, from);
    if (s_.energy_without_penalties() - before + penalty > threshold_) undo();
  }

  [[nodiscard]] std::int64_t held_tokens(BlockId block) const {
    return level_.blocks[block].held_tokens;
  }
  [[nodiscard]] std::int64_t span_delta(GridNetId net, LaneMask after) const {
    const LaneMask before = s_.span(net);
    if (after == before) return 0;
    return level_.net_bytes[net] * (s_.weight_of(after) - s_.weight_of(before));
  }

  // Returns the change of cost if the segment moved, without moving it, and adds up the work of its
  // tiles.
  [[nodiscard]] std::int64_t segment_delta(const Segment& segment, Lane from, Lane to,
                                           std::int64_t& work) const {
    std::int64_t delta = 0;
    for (const GroupId g : level_.groups()) {
      const bool covered = segment.covers(g);
      if (!covered && !segment.with_owner) continue;
      const GridNetId net = level_.net(segment.side, g, segment.block);
      std::int32_t on_diagonal = 0;
      if (covered && s_.count(net, from) > 0) {
        delta += far_side_delta(segment, net, from, to, work, on_diagonal);
      }
      const bool leaves = covered ? s_.count(net, from) > 0 : false;
      if (leaves || segment.with_owner) {
        LaneMask after = s_.span(net) | lane_bit(to);
        const std::int32_t staying = covered ? 0 : s_.count(net, from);
        if (staying == 0 && (segment.with_owner || owner(segment.block) != from)) {
          after &= ~lane_bit(from);
        }
        delta += span_delta(net, after);
      }
      if (segment.with_owner) {
        const GridNetId other_net = level_.net(other_side(segment.side), g, segment.block);
        LaneMask after = s_.span(other_net) | lane_bit(to);
        if (s_.count(other_net, from) - on_diagonal == 0) after &= ~lane_bit(from);
        delta += span_delta(other_net, after);
      }
    }
    return delta;
  }

  // Returns the change on the nets that cross `net` at its tiles on `from`. The caller counts the
  // block's own other net when its owner moves too.
  [[nodiscard]] std::int64_t far_side_delta(const Segment& segment, GridNetId net, Lane from,
                                            Lane to, std::int64_t& work,
                                            std::int32_t& on_diagonal) const {
    const Side far = other_side(segment.side);
    std::int64_t delta = 0;
    s_.for_each_tile(net, from, [&](TileId t) {
      work += tile(t).work;
      const GridNetId far_net = tile(t).net(far);
      const BlockId far_block = tile(t).block(far);
      if (far_block == segment.block) {
        on_diagonal = 1;
        if (segment.with_owner) return;
      }
      LaneMask after = s_.span(far_net) | lane_bit(to);
      if (s_.count(far_net, from) == 1 && owner(far_block) != from) after &= ~lane_bit(from);
      delta += span_delta(far_net, after);
    });
    return delta;
  }

  void collect(const Segment& segment, Lane from, std::vector<TileId>& out) const {
    out.clear();
    for (const GroupId g : level_.groups()) {
      if (!segment.covers(g)) continue;
      s_.for_each_tile(level_.net(segment.side, g, segment.block), from,
                       [&](TileId t) { out.push_back(t); });
    }
  }

  void move_segment(const Segment& segment, Lane from, Lane to) {
    collect(segment, from, segment_);
    for (const TileId t : segment_) journal_tile(t, to);
    if (segment.with_owner) journal_owner(segment.block, to);
  }

  // Moves a row's tiles to the owners of their columns (or a column's to the owners of their rows):
  // those owned where tile t's other side is owned, or anywhere in that node.
  void try_pull(TileId t, Side side, GroupId group, bool whole_node) {
    const Side far = other_side(side);
    const Lane target = owner(tile(t).block(far));
    const Lane from = place(t);
    if (target == from) return;
    const BlockId block = tile(t).block(side);
    const double before = s_.energy();
    for (const GroupId g : level_.groups()) {
      if (!covers_group(group, g)) continue;
      for (const TileId other : level_.tiles_of(level_.net(side, g, block))) {
        const Lane at = place(other);
        const Lane to = owner(tile(other).block(far));
        if (to == at || (s_.reachable(at) & lane_bit(to)) == 0) continue;
        const bool chosen =
            whole_node ? s_.layout.node(to) == s_.layout.node(target) : at == from && to == target;
        if (chosen) journal_tile(other, to);
      }
    }
    if (s_.energy() - before > threshold_) undo();
  }

  GridState& s_;
  const GridLevel& level_;
  FastRandom& random_;
  double row_bytes_;
  double temperature_ = 1;
  double threshold_ = 0;
  double best_energy_ = std::numeric_limits<double>::infinity();
  IdVector<TileId, PackedLane> best_place_;
  IdVector<BlockId, PackedLane> best_owner_;
  std::vector<Undo> journal_;
  std::vector<TileId> segment_;
  std::vector<TileId> returning_;
};

}  // namespace

void anneal(GridState& state, const AnnealSchedule& schedule, FastRandom& random) {
  if (state.level->tiles.empty() || schedule.steps <= 0) return;
  Annealer(state, random).run(schedule);
}

}  // namespace contextile
