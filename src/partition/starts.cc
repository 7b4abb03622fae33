#include "partition/starts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <vector>

namespace contextile {
namespace {

std::vector<Lane> places_of(const GridState& state) {
  std::vector<Lane> places;
  for (LaneMask left = state.lanes(); left != 0; left &= left - 1)
    places.push_back(lowest_lane(left));
  return places;
}

std::vector<std::vector<std::int32_t>> tiles_by_row(const GridLevel& level) {
  std::vector<std::vector<std::int32_t>> rows(level.blocks.size());
  for (std::size_t t = 0; t < level.tiles.size(); ++t) {
    rows[static_cast<std::size_t>(level.tiles[t].row)].push_back(static_cast<std::int32_t>(t));
  }
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
        work_(places_.size()),
        tokens_(places_.size()) {
    const auto count = static_cast<double>(places_.size());
    mean_work_ = std::max(1.0, static_cast<double>(level_.total_work) / count);
    mean_tokens_ = std::max(1.0, static_cast<double>(level_.total_held_tokens) / count);
  }

  void run() {
    gather_sequences();
    std::vector<std::size_t> order(sequences_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return share(sequences_[a]) > share(sequences_[b]);
    });
    std::size_t next = 0;
    std::size_t first_place = 0;
    for (; next < order.size(); ++next) {
      const Sequence& sequence = sequences_[order[next]];
      if (share(sequence) <= 1) break;
      const std::size_t taken = spread(sequence, first_place);
      if (taken == 0) break;
      first_place += taken;
    }
    for (; next < order.size(); ++next) place_whole(sequences_[order[next]]);
    s_.rebuild();
  }

 private:
  struct Sequence {
    std::vector<std::size_t> blocks;
    double work = 0;
    double tokens = 0;
  };

  void gather_sequences() {
    sequences_.resize(static_cast<std::size_t>(level_.num_sequences()));
    for (std::size_t b = 0; b < level_.blocks.size(); ++b) {
      Sequence& sequence = sequences_[static_cast<std::size_t>(level_.blocks[b].sequence)];
      sequence.blocks.push_back(b);
      sequence.tokens += static_cast<double>(level_.blocks[b].held_tokens);
      sequence.work += row_work(b);
    }
  }
  [[nodiscard]] double row_work(std::size_t b) const {
    double work = 0;
    for (const std::int32_t t : rows_[b]) work += tile_work(t);
    return work;
  }
  [[nodiscard]] double tile_work(std::int32_t t) const {
    return static_cast<double>(level_.tiles[static_cast<std::size_t>(t)].work);
  }
  // Relative to one place's fair share.
  [[nodiscard]] double share(const Sequence& sequence) const {
    return std::max(sequence.work / mean_work_, sequence.tokens / mean_tokens_);
  }

  void give_block(std::size_t b, std::size_t place) {
    s_.owner[b] = static_cast<std::uint8_t>(places_[place]);
    tokens_[place] += static_cast<double>(level_.blocks[b].held_tokens);
  }
  void give_tile(std::int32_t t, std::size_t place) {
    s_.place[static_cast<std::size_t>(t)] = static_cast<std::uint8_t>(places_[place]);
    work_[place] += tile_work(t);
  }

  // Over consecutive places from `first`; returns how many, 0 if none is left.
  std::size_t spread(const Sequence& sequence, std::size_t first) {
    // A place may be overfull, by what is allowed, rather than open another.
    const double tightness = std::min(0.94, 1 / s_.limits.work_cap);
    const double wanted = std::ceil(std::max(
        {sequence.work / (mean_work_ * s_.limits.work_cap),
         sequence.tokens / static_cast<double>(s_.limits.token_cap), share(sequence) * tightness}));
    const auto count =
        std::min(places_.size() - first, static_cast<std::size_t>(std::max(1.0, wanted)));
    if (count == 0) return 0;
    const auto slice = [&](double middle, double total) {
      return std::min(count - 1, static_cast<std::size_t>(middle * static_cast<double>(count) /
                                                          std::max(1.0, total)));
    };
    double work = 0;
    double tokens = 0;
    for (const std::size_t b : sequence.blocks) {
      for (const std::int32_t t : rows_[b]) {
        give_tile(t, first + slice(work + tile_work(t) / 2, sequence.work));
        work += tile_work(t);
      }
      const auto held = static_cast<double>(level_.blocks[b].held_tokens);
      give_block(b, first + slice(tokens + held / 2, sequence.tokens));
      tokens += held;
    }
    return count;
  }

  // The place that is least full with this much more.
  [[nodiscard]] std::size_t best_place(double work, double tokens, double& fullness) const {
    std::size_t best = 0;
    fullness = -1;
    for (std::size_t p = 0; p < places_.size(); ++p) {
      const double full =
          std::max((work_[p] + work) / mean_work_, (tokens_[p] + tokens) / mean_tokens_) /
          s_.share(places_[p]);
      if (fullness < 0 || full < fullness) {
        fullness = full;
        best = p;
      }
    }
    return best;
  }

  void place_whole(const Sequence& sequence) {
    double fullness = 0;
    const std::size_t whole = best_place(sequence.work, sequence.tokens, fullness);
    const bool fits = fullness <= std::max(s_.limits.work_cap,
                                           static_cast<double>(s_.limits.token_cap) / mean_tokens_);
    for (const std::size_t b : sequence.blocks) {
      const std::size_t p =
          fits ? whole
               : best_place(row_work(b), static_cast<double>(level_.blocks[b].held_tokens),
                            fullness);
      give_block(b, p);
      for (const std::int32_t t : rows_[b]) give_tile(t, p);
    }
  }

  GridState& s_;
  const GridLevel& level_;
  std::vector<Lane> places_;
  std::vector<std::vector<std::int32_t>> rows_;
  std::vector<double> work_;
  std::vector<double> tokens_;
  std::vector<Sequence> sequences_;
  double mean_work_ = 1;
  double mean_tokens_ = 1;
};

}  // namespace

void start_contiguous(GridState& state) { ContiguousStart(state).run(); }

void start_greedy(GridState& state) {
  const GridLevel& level = *state.level;
  const std::vector<Lane> places = places_of(state);
  const auto rows = tiles_by_row(level);
  std::vector<std::int64_t> row_work(level.blocks.size());
  for (const GridLevel::LevelTile& tile : level.tiles) {
    row_work[static_cast<std::size_t>(tile.row)] += tile.work;
  }
  std::vector<std::size_t> order(level.blocks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return row_work[a] > row_work[b]; });
  std::vector<std::int64_t> work(places.size());
  std::vector<std::int64_t> tokens(places.size());
  const auto least = [](const std::vector<std::int64_t>& x) {
    return static_cast<std::size_t>(std::min_element(x.begin(), x.end()) - x.begin());
  };
  const auto cap =
      static_cast<std::int64_t>(state.limits.work_cap * static_cast<double>(level.total_work) /
                                static_cast<double>(places.size()));
  for (const std::size_t b : order) {
    const std::int64_t held = level.blocks[b].held_tokens;
    std::size_t best = places.size();
    for (std::size_t p = 0; p < places.size(); ++p) {
      if (tokens[p] + held > state.token_cap(places[p])) continue;
      if (best == places.size() || work[p] < work[best]) best = p;
    }
    if (best == places.size()) best = least(tokens);
    state.owner[b] = static_cast<std::uint8_t>(places[best]);
    tokens[best] += held;
    for (const std::int32_t t : rows[b]) {
      const std::int64_t amount = level.tiles[static_cast<std::size_t>(t)].work;
      if (work[best] + amount > cap) best = least(work);
      state.place[static_cast<std::size_t>(t)] = static_cast<std::uint8_t>(places[best]);
      work[best] += amount;
    }
  }
  state.rebuild();
}

void start_inside_nodes(GridState& state) {
  const GridLevel& level = *state.level;
  const LaneLayout& layout = state.layout;
  const auto nodes = static_cast<std::size_t>(layout.nodes);
  std::vector<double> work(nodes);
  std::vector<double> tokens(nodes);
  for (std::size_t t = 0; t < level.tiles.size(); ++t) {
    work[static_cast<std::size_t>(layout.node(state.place[t]))] +=
        static_cast<double>(level.tiles[t].work);
  }
  for (std::size_t b = 0; b < level.blocks.size(); ++b) {
    tokens[static_cast<std::size_t>(layout.node(state.owner[b]))] +=
        static_cast<double>(level.blocks[b].held_tokens);
  }
  std::vector<std::size_t> order(level.tiles.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto& x = level.tiles[a];
    const auto& y = level.tiles[b];
    return std::tuple(x.row, x.group, x.column) < std::tuple(y.row, y.group, y.column);
  });
  const auto device_at = [&](std::int32_t node, double middle, double total) {
    const auto device = static_cast<Lane>(middle * layout.devices_per_node / std::max(1.0, total));
    return static_cast<std::uint8_t>(node * layout.width +
                                     std::min(layout.devices_per_node - 1, device));
  };
  std::vector<double> work_so_far(nodes);
  for (const std::size_t t : order) {
    const std::int32_t node = layout.node(state.place[t]);
    const auto n = static_cast<std::size_t>(node);
    const auto amount = static_cast<double>(level.tiles[t].work);
    state.place[t] = device_at(node, work_so_far[n] + amount / 2, work[n]);
    work_so_far[n] += amount;
  }
  std::vector<double> tokens_so_far(nodes);
  for (std::size_t b = 0; b < level.blocks.size(); ++b) {
    const std::int32_t node = layout.node(state.owner[b]);
    const auto n = static_cast<std::size_t>(node);
    const auto held = static_cast<double>(level.blocks[b].held_tokens);
    state.owner[b] = device_at(node, tokens_so_far[n] + held / 2, tokens[n]);
    tokens_so_far[n] += held;
  }
  state.rebuild();
}

}  // namespace contextile
