#include "partition/anneal.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace contextile {
namespace {

// -ln(u) of 4096 evenly spaced u: thresholds of exponential distribution.
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
        temperature_ = schedule.first_temperature * std::exp(cooling * static_cast<double>(step) /
                                                             static_cast<double>(schedule.steps));
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

  // Out of 32 moves 20 are of tiles, 3 swap tiles, 3 move owners, 6 are compound.
  void one_move() {
    const std::uint32_t bits = random_.next();
    const std::uint32_t type = bits & 31U;
    static const std::array<float, 4096> exponential = exponential_table();
    threshold_ = temperature_ * exponential[(bits >> 5) & 4095U];
    if (type < 20) {
      try_tile();
    } else if (type < 23) {
      try_tile_swap();
    } else if (type < 26) {
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

  [[nodiscard]] const GridLevel::LevelTile& tile(std::int32_t t) const {
    return level_.tiles[static_cast<std::size_t>(t)];
  }
  [[nodiscard]] Lane place(std::int32_t t) const { return s_.place[static_cast<std::size_t>(t)]; }
  [[nodiscard]] Lane owner(std::int32_t b) const { return s_.owner[static_cast<std::size_t>(b)]; }
  [[nodiscard]] std::int64_t load(Lane lane) const {
    return s_.load[static_cast<std::size_t>(lane)];
  }
  [[nodiscard]] std::int64_t tokens(Lane lane) const {
    return s_.tokens[static_cast<std::size_t>(lane)];
  }

  [[nodiscard]] Lane pick_lane(LaneMask mask) {
    for (std::int32_t skip = random_.below(std::popcount(mask)); skip > 0; --skip) mask &= mask - 1;
    return lowest_lane(mask);
  }

  // Mostly a lane that the tile's row or column spans already, best both.
  [[nodiscard]] Lane pick_place(std::int32_t t) {
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

  // -1 if a few tries found none.
  [[nodiscard]] std::int32_t random_block_of(Lane lane) {
    for (int i = 0; i < kOwnerTries; ++i) {
      const std::int32_t b = random_.below(level_.num_blocks());
      if (owner(b) == lane) return b;
    }
    return -1;
  }

  [[nodiscard]] double load_delta(Lane from, Lane to, std::int64_t work) const {
    return s_.work_penalty(from, load(from) - work) - s_.work_penalty(from, load(from)) +
           s_.work_penalty(to, load(to) + work) - s_.work_penalty(to, load(to));
  }
  [[nodiscard]] double token_delta(Lane from, Lane to, std::int64_t held) const {
    return s_.token_penalty(from, tokens(from) - held) - s_.token_penalty(from, tokens(from)) +
           s_.token_penalty(to, tokens(to) + held) - s_.token_penalty(to, tokens(to));
  }

  // ------------------------------------------------------------------------------ small moves

  void try_tile() {
    const std::int32_t t = random_.below(level_.num_tiles());
    const Lane from = place(t);
    const Lane to = pick_place(t);
    if (to == from) return;
    double delta = static_cast<double>(s_.tile_delta(t, to));
    if (delta > threshold_) return;
    delta += load_delta(from, to, tile(t).work);
    if (delta > threshold_) return;
    const double traffic_before = s_.traffic_cost;
    s_.move_tile(t, to);
    if (delta + s_.traffic_cost - traffic_before > threshold_) s_.move_tile(t, from);
  }

  void try_tile_swap() {
    const std::int32_t t = random_.below(level_.num_tiles());
    const Lane from = place(t);
    const Lane to = pick_place(t);
    if (to == from) return;
    std::int32_t other = -1;
    for (int i = 0; i < kSwapTries && other < 0; ++i) {
      const auto candidates = level_.tiles_of(i % 2 == 0 ? tile(t).column_net : tile(t).row_net);
      const std::int32_t c = candidates[static_cast<std::size_t>(
          random_.below(static_cast<std::int32_t>(candidates.size())))];
      if (place(c) == to) other = c;
    }
    if (other < 0) return;
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
    const std::int32_t b = random_.below(level_.num_blocks());
    const Lane from = owner(b);
    const std::int32_t group = random_.below(level_.num_groups);
    const std::int32_t row_nets = level_.num_groups * level_.num_blocks();
    const std::int32_t net = ((dice & 3U) != 0 ? 0 : row_nets) + group * level_.num_blocks() + b;
    const LaneMask candidates = s_.span(net) & s_.reachable(from) & ~lane_bit(from);
    if (candidates == 0) return;
    const Lane to = pick_lane(candidates);
    const std::int64_t held = level_.blocks[static_cast<std::size_t>(b)].held_tokens;
    if (tokens(to) + held <= s_.token_cap(to) || (dice & 28U) == 0) {
      move_owner_if_good(b, from, to, held);
    } else {
      swap_owners_if_good(b, from, to);
    }
  }

  void move_owner_if_good(std::int32_t b, Lane from, Lane to, std::int64_t held) {
    double delta = static_cast<double>(s_.owner_delta(b, to));
    if (delta > threshold_) return;
    delta += token_delta(from, to, held);
    if (delta > threshold_) return;
    const double traffic_before = s_.traffic_cost;
    s_.move_owner(b, to);
    if (delta + s_.traffic_cost - traffic_before > threshold_) s_.move_owner(b, from);
  }

  void swap_owners_if_good(std::int32_t b, Lane from, Lane to) {
    const std::int32_t other = random_block_of(to);
    if (other < 0) return;
    double delta = static_cast<double>(s_.owner_delta(b, to) + s_.owner_delta(other, from));
    if (delta > threshold_) return;
    delta += token_delta(from, to,
                         level_.blocks[static_cast<std::size_t>(b)].held_tokens -
                             level_.blocks[static_cast<std::size_t>(other)].held_tokens);
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

  struct Undo {
    std::int32_t index = 0;
    Lane lane = 0;
    bool is_owner = false;
  };

  void journal_tile(std::int32_t t, Lane to) {
    journal_.push_back({t, place(t), false});
    s_.move_tile(t, to);
  }
  void journal_owner(std::int32_t b, Lane to) {
    journal_.push_back({b, owner(b), true});
    s_.move_owner(b, to);
  }
  void undo() {
    for (auto it = journal_.rbegin(); it != journal_.rend(); ++it) {
      if (it->is_owner) {
        s_.move_owner(it->index, it->lane);
      } else {
        s_.move_tile(it->index, it->lane);
      }
    }
  }

  // What moves together: the tiles on one device of a block's row or column nets, in one or all
  // groups, and the block's ownership.
  struct Segment {
    std::int32_t block = 0;
    std::int32_t group = 0;  // -1: all
    bool row = true;
    bool with_owner = false;

    [[nodiscard]] bool covers(std::int32_t g) const { return group < 0 || group == g; }
  };

  void try_compound(std::uint32_t dice) {
    const std::int32_t t = random_.below(level_.num_tiles());
    const Lane from = place(t);
    const Lane to = (dice & 3U) != 0 ? pick_place(t) : pick_lane(s_.reachable(from));
    if (to == from) return;
    journal_.clear();
    const std::uint32_t kind =
        (dice >> 2) & 3U;  // 0: column, 1: row of one group, 2: row, 3: block swap
    const std::int32_t group = kind == 1 ? tile(t).group : -1;
    if ((dice >> 4 & 7U) == 0) {
      try_pull(t, (dice >> 7 & 1U) != 0, group, (dice >> 8 & 1U) != 0);
      return;
    }
    const std::int32_t block = kind == 0 ? tile(t).column : tile(t).row;
    const Segment segment{block, group, kind != 0, owner(block) == from && (dice >> 9 & 3U) != 0};
    if (kind == 3) {
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
    const std::int32_t other = random_block_of(to);
    if (other < 0 || other == segment.block) return;
    const Segment returning{other, -1, true, true};
    std::int64_t work = 0;
    std::int64_t returned_work = 0;
    const std::int64_t estimate =
        segment_delta(segment, from, to, work) + segment_delta(returning, to, from, returned_work);
    const std::int64_t held =
        (segment.with_owner ? held_tokens(segment.block) : 0) - held_tokens(other);
    const double penalty = load_delta(from, to, work - returned_work) + token_delta(from, to, held);
    // The two deltas ignore each other; what they share is small.
    if (static_cast<double>(estimate) + penalty > threshold_ + 2 * row_bytes_) return;
    const double before = s_.energy_without_penalties();
    collect(returning, to, returning_);
    move_segment(segment, from, to);
    for (const std::int32_t back : returning_) journal_tile(back, from);
    journal_owner(other, from);
    if (s_.energy_without_penalties() - before + penalty > threshold_) undo();
  }

  [[nodiscard]] std::int64_t held_tokens(std::int32_t block) const {
    return level_.blocks[static_cast<std::size_t>(block)].held_tokens;
  }
  [[nodiscard]] std::int32_t net_of(bool row, std::int32_t group, std::int32_t block) const {
    return ((row ? 0 : level_.num_groups) + group) * level_.num_blocks() + block;
  }
  [[nodiscard]] std::int64_t span_delta(std::int32_t net, LaneMask after) const {
    const LaneMask before = s_.span(net);
    if (after == before) return 0;
    return level_.net_bytes[static_cast<std::size_t>(net)] *
           (s_.weight_of(after) - s_.weight_of(before));
  }

  // Change of cost if the segment moved, without moving it; adds up the work of its tiles.
  [[nodiscard]] std::int64_t segment_delta(const Segment& segment, Lane from, Lane to,
                                           std::int64_t& work) const {
    std::int64_t delta = 0;
    for (std::int32_t g = 0; g < level_.num_groups; ++g) {
      const bool covered = segment.covers(g);
      if (!covered && !segment.with_owner) continue;
      const std::int32_t net = net_of(segment.row, g, segment.block);
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
        const std::int32_t other_net = net_of(!segment.row, g, segment.block);
        LaneMask after = s_.span(other_net) | lane_bit(to);
        if (s_.count(other_net, from) - on_diagonal == 0) after &= ~lane_bit(from);
        delta += span_delta(other_net, after);
      }
    }
    return delta;
  }

  // The nets on the other side of a net's tiles on `from`. The block's own other net is left to the
  // caller when its owner moves too.
  [[nodiscard]] std::int64_t far_side_delta(const Segment& segment, std::int32_t net, Lane from,
                                            Lane to, std::int64_t& work,
                                            std::int32_t& on_diagonal) const {
    std::int64_t delta = 0;
    s_.for_each_tile(net, from, [&](std::int32_t t) {
      work += tile(t).work;
      const std::int32_t far_net = segment.row ? tile(t).column_net : tile(t).row_net;
      const std::int32_t far_block = segment.row ? tile(t).column : tile(t).row;
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

  void collect(const Segment& segment, Lane from, std::vector<std::int32_t>& out) const {
    out.clear();
    for (std::int32_t g = 0; g < level_.num_groups; ++g) {
      if (!segment.covers(g)) continue;
      s_.for_each_tile(net_of(segment.row, g, segment.block), from,
                       [&](std::int32_t t) { out.push_back(t); });
    }
  }

  void move_segment(const Segment& segment, Lane from, Lane to) {
    collect(segment, from, segment_);
    for (const std::int32_t t : segment_) journal_tile(t, to);
    if (segment.with_owner) journal_owner(segment.block, to);
  }

  // A row's tiles go to the owners of their columns (or a column's to the owners of their rows):
  // those owned where tile t's other side is owned, or anywhere in that node.
  void try_pull(std::int32_t t, bool row, std::int32_t group, bool whole_node) {
    const Lane target = row ? owner(tile(t).column) : owner(tile(t).row);
    const Lane from = place(t);
    if (target == from) return;
    const std::int32_t block = row ? tile(t).row : tile(t).column;
    const double before = s_.energy();
    for (std::int32_t g = 0; g < level_.num_groups; ++g) {
      if (group >= 0 && group != g) continue;
      for (const std::int32_t other : level_.tiles_of(net_of(row, g, block))) {
        const Lane at = place(other);
        const Lane to = row ? owner(tile(other).column) : owner(tile(other).row);
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
  std::vector<std::uint8_t> best_place_;
  std::vector<std::uint8_t> best_owner_;
  std::vector<Undo> journal_;
  std::vector<std::int32_t> segment_;
  std::vector<std::int32_t> returning_;
};

}  // namespace

void anneal(GridState& state, const AnnealSchedule& schedule, FastRandom& random) {
  if (state.level->tiles.empty() || schedule.steps <= 0) return;
  Annealer(state, random).run(schedule);
}

}  // namespace contextile
