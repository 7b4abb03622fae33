#include "strategy/fcp/fcp_pipeline.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/interrupt.h"
#include "strategy/schedule/coloring.h"

namespace contextile {
namespace {

// Returns the round of every edge (sender, receiver). Edges come in block order.
std::vector<std::int32_t> assign_rounds(std::span<const BipartiteEdge> edges, std::int32_t num_ends,
                                        Rounds rounds) {
  if (rounds == Rounds::kCongestionFree) return color_edges(edges, num_ends, num_ends).colors;
  std::vector<std::int32_t> received(static_cast<std::size_t>(num_ends));
  std::vector<std::int32_t> result;
  result.reserve(edges.size());
  for (const BipartiteEdge& edge : edges) {
    result.push_back(received[static_cast<std::size_t>(edge.right)]++);
  }
  return result;
}

// The bytes that every device sends and receives in every stage.
class StageBytes {
 public:
  StageBytes(std::int32_t num_devices, std::int64_t budget, Rounds rounds)
      : num_devices_(static_cast<std::size_t>(num_devices)), budget_(budget), rounds_(rounds) {}

  // Puts parallel transfers of `bytes` bytes each into the first stage from `stage` on in which all
  // ends have room. A transfer that exceeds the budget gets a stage of its own. If senders may be
  // congested, only receivers count.
  std::int32_t first_fit(std::int32_t stage, std::span<const Rank> sources,
                         std::span<const Rank> destinations, std::int64_t bytes) {
    const auto has_room = [&](std::int64_t used) { return used == 0 || used + bytes <= budget_; };
    const auto fits = [&] {
      for (std::size_t t = 0; t < sources.size(); ++t) {
        if (!has_room(received(stage, destinations[t]))) return false;
        if (rounds_ == Rounds::kCongestionFree && !has_room(sent(stage, sources[t]))) return false;
      }
      return true;
    };
    while (!fits()) ++stage;
    for (std::size_t t = 0; t < sources.size(); ++t) {
      sent(stage, sources[t]) += bytes;
      received(stage, destinations[t]) += bytes;
    }
    return stage;
  }

 private:
  std::int64_t& sent(std::int32_t stage, Rank rank) { return at(stage)[rank.index()]; }
  std::int64_t& received(std::int32_t stage, Rank rank) {
    return at(stage)[num_devices_ + rank.index()];
  }
  std::vector<std::int64_t>& at(std::int32_t stage) {
    const auto s = static_cast<std::size_t>(stage);
    if (s >= used_.size()) used_.resize(s + 1, std::vector<std::int64_t>(2 * num_devices_));
    return used_[s];
  }

  std::size_t num_devices_;
  std::int64_t budget_;
  Rounds rounds_;
  std::vector<std::vector<std::int64_t>> used_;
};

}  // namespace

FcpPipeline::FcpPipeline(const FcpLayout& layout, std::span<const Tile> tiles,
                         const FcpPipelineOptions& options)
    : layout_(layout), tiles_(tiles), options_(options) {
  find_readers();
  choose_casters();
  find_casts();
  find_casts_of_tiles();
  find_moves();
  if (layout_.is_home) {
    assign_stages_by_bytes();
  } else {
    assign_stages_by_rounds();
  }
  last_stage_ = move_stages_;
  for (const Cast& cast : casts_) last_stage_ = std::max(last_stage_, cast.stage);
}

void FcpPipeline::find_readers() {
  const auto num_blocks = static_cast<std::size_t>(layout_.blocks.num_blocks());
  attends_.assign(num_blocks, false);
  readers_.resize(num_blocks);
  for (const Tile& tile : tiles_) {
    attends_[tile.q_block.index()] = true;
    readers_[tile.kv_block.index()].push_back(layout_.positions[tile.q_block.index()]);
  }
  for (std::vector<std::int32_t>& readers : readers_) {
    std::sort(readers.begin(), readers.end());
    readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
  }
}

// Without a home layout, a block's worker casts its keys. With one, the home casts them unless it
// would then send more than the mean. In that case the reader that sends the least casts them. Keys
// with the most bytes to send come first.
void FcpPipeline::choose_casters() {
  casters_ = layout_.positions;
  if (!layout_.is_home) return;
  std::vector<std::int64_t> sent(
      static_cast<std::size_t>(layout_.num_devices / layout_.head_parallel));
  const auto at = [&](std::int32_t position) -> std::int64_t& {
    return sent[static_cast<std::size_t>(position)];
  };
  std::vector<std::pair<std::int64_t, BlockId>> casts;  // (-bytes that leave home, block)
  std::int64_t total = 0;
  for (std::int32_t b = 0; b < layout_.blocks.num_blocks(); ++b) {
    const BlockId block{b};
    const std::int32_t home = layout_.home(block);
    casters_[block.index()] = home;
    if (attends_[block.index()] && layout_.positions[block.index()] != home) {
      at(home) += layout_.bytes(Kind::kQ, block);
      at(layout_.positions[block.index()]) += layout_.bytes(Kind::kO, block);
      total += layout_.bytes(Kind::kQ, block) + layout_.bytes(Kind::kO, block);
    }
    const std::vector<std::int32_t>& readers = readers_[block.index()];
    const auto away = std::ssize(readers) - std::count(readers.begin(), readers.end(), home);
    if (away == 0) continue;
    casts.emplace_back(-away * layout_.bytes(Kind::kKv, block), block);
    total -= casts.back().first;
  }
  std::sort(casts.begin(), casts.end());
  const std::int64_t mean = total / std::ssize(sent);
  for (const auto& [negative, block] : casts) {
    const std::int64_t bytes = layout_.bytes(Kind::kKv, block);
    std::int32_t& caster = casters_[block.index()];
    if (at(caster) - negative > mean) {
      for (const std::int32_t reader : readers_[block.index()]) {
        if (at(reader) < at(caster)) caster = reader;
      }
    }
    // A caster that is not the home receives the keys from home once and casts them to the others.
    const std::int32_t home = layout_.home(block);
    if (caster != home) at(home) += bytes;
    at(caster) += -negative - (caster != home ? bytes : 0);
  }
}

void FcpPipeline::find_casts() {
  for (std::size_t b = 0; b < readers_.size(); ++b) {
    for (const std::int32_t position : readers_[b]) {
      if (position != casters_[b])
        casts_.push_back({BlockId{static_cast<std::int32_t>(b)}, position, 0});
    }
  }
}

// Goes through the positions one by one, so that a table of the key blocks is all it needs.
void FcpPipeline::find_casts_of_tiles() {
  const auto num_positions = static_cast<std::size_t>(layout_.num_devices / layout_.head_parallel);
  std::vector<std::vector<std::uint32_t>> tiles_at(num_positions);
  for (std::size_t t = 0; t < tiles_.size(); ++t) {
    const auto position = static_cast<std::size_t>(layout_.positions[tiles_[t].q_block.index()]);
    tiles_at[position].push_back(static_cast<std::uint32_t>(t));
  }
  std::vector<std::vector<std::uint32_t>> casts_to(num_positions);
  for (std::size_t c = 0; c < casts_.size(); ++c) {
    casts_to[static_cast<std::size_t>(casts_[c].position)].push_back(static_cast<std::uint32_t>(c));
  }
  cast_of_tile_.resize(tiles_.size());
  std::vector<std::uint32_t> cast_of_block(readers_.size(), kNoCast);
  for (std::size_t p = 0; p < num_positions; ++p) {
    check_interrupt();
    for (const std::uint32_t c : casts_to[p]) cast_of_block[casts_[c].block.index()] = c;
    for (const std::uint32_t t : tiles_at[p]) {
      cast_of_tile_[t] = cast_of_block[tiles_[t].kv_block.index()];
    }
    for (const std::uint32_t c : casts_to[p]) cast_of_block[casts_[c].block.index()] = kNoCast;
  }
}

void FcpPipeline::find_moves() {
  for (std::int32_t b = 0; b < layout_.blocks.num_blocks(); ++b) {
    const BlockId block{b};
    const Rank owner = layout_.owners[block.index()];
    for (std::int32_t g = 0; g < layout_.head_parallel; ++g) {
      if (attends_[block.index()] && layout_.worker(block, g) != owner) {
        moves_.push_back({Kind::kQ, block, g, 1});
      }
      const auto& readers = readers_[block.index()];
      const bool is_read = std::any_of(readers.begin(), readers.end(), [&](std::int32_t reader) {
        return layout_.device(reader, g) != owner;
      });
      if (is_read && place(Kind::kKv, block, g) != owner)
        moves_.push_back({Kind::kKv, block, g, 1});
    }
  }
}

std::vector<std::int32_t> FcpPipeline::cast_rounds() const {
  // Head groups travel in parallel, each between its own members: colouring positions is enough.
  std::vector<BipartiteEdge> edges;
  for (const Cast& cast : casts_) {
    edges.push_back({casters_[cast.block.index()], cast.position});
  }
  return assign_rounds(edges, layout_.num_devices / layout_.head_parallel, options_.rounds);
}

// Returns for every cast the first stage at which its receiver has queries that read it.
std::vector<std::int32_t> FcpPipeline::first_uses() const {
  std::vector<std::int32_t> uses(casts_.size(), std::numeric_limits<std::int32_t>::max());
  for (std::size_t t = 0; t < tiles_.size(); ++t) {
    if (cast_of_tile_[t] == kNoCast) continue;
    const Tile& tile = tiles_[t];
    std::int32_t& use = uses[cast_of_tile_[t]];
    for (std::int32_t g = 0; g < layout_.head_parallel; ++g) {
      use = std::min(use, q_arrival_[unit(tile.q_block, g)]);
    }
  }
  return uses;
}

void FcpPipeline::note_arrivals() {
  q_arrival_.assign(unit(BlockId{layout_.blocks.num_blocks()}, 0), 0);
  kv_arrival_ = q_arrival_;
  for (const Move& move : moves_) {
    (is_of_kv(move.kind) ? kv_arrival_ : q_arrival_)[unit(move.block, move.group)] = move.stage;
    move_stages_ = std::max(move_stages_, move.stage);
  }
}

// Assigns stages to the all-to-all of A members in colours, like the casts that follow it. It has A
// times as many units of 1/A of the bytes, so A times as many fit in a stage.
void FcpPipeline::assign_stages_by_rounds() {
  if (options_.reshuffle == Reshuffle::kOverlapped) {
    std::vector<BipartiteEdge> edges;  // of a unit, its queries and keys together
    std::vector<std::size_t> edge_of;
    for (std::size_t m = 0; m < moves_.size(); ++m) {
      const auto [kind, block, group, stage] = moves_[m];
      if (m == 0 || moves_[m - 1].block != block || moves_[m - 1].group != group) {
        edges.push_back({layout_.owners[block.index()].value, place(kind, block, group).value});
      }
      edge_of.push_back(edges.size() - 1);
    }
    const auto rounds = assign_rounds(edges, layout_.num_devices, options_.rounds);
    const std::int32_t per_stage = options_.coalesce * layout_.head_parallel;
    for (std::size_t m = 0; m < moves_.size(); ++m) {
      moves_[m].stage = 1 + rounds[edge_of[m]] / per_stage;
    }
  }
  note_arrivals();
  const std::vector<std::int32_t> rounds = cast_rounds();
  for (std::size_t c = 0; c < casts_.size(); ++c) {
    casts_[c].stage = move_stages_ + 1 + rounds[c] / options_.coalesce;
  }
}

// Assigns stages so that in each of them both ends have room for the bytes. Keys that are to be
// cast come first, then queries, those with the most work first. Casts come last, in the order in
// which they become useful and by their rounds.
void FcpPipeline::assign_stages_by_bytes() {
  std::int64_t largest = 0;
  for (std::int32_t b = 0; b < layout_.blocks.num_blocks(); ++b) {
    largest = std::max(largest, layout_.bytes(Kind::kKv, BlockId{b}));
  }
  StageBytes used(layout_.num_devices, options_.coalesce * largest, options_.rounds);
  std::vector<std::int64_t> pairs(readers_.size());  // of a block's queries
  for (const Tile& tile : tiles_) pairs[tile.q_block.index()] += tile.pairs;
  std::stable_sort(moves_.begin(), moves_.end(), [&](const Move& a, const Move& b) {
    return std::tuple(!is_of_kv(a.kind), -pairs[a.block.index()]) <
           std::tuple(!is_of_kv(b.kind), -pairs[b.block.index()]);
  });
  if (options_.reshuffle == Reshuffle::kOverlapped) {
    for (Move& move : moves_) {
      const Rank src = layout_.owners[move.block.index()];
      const Rank dst = place(move.kind, move.block, move.group);
      move.stage =
          used.first_fit(move.stage, {&src, 1}, {&dst, 1}, layout_.bytes(move.kind, move.block));
    }
  }
  note_arrivals();
  const std::vector<std::int32_t> rounds = cast_rounds();
  const std::vector<std::int32_t> uses = first_uses();
  std::vector<std::size_t> order(casts_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(uses[a], rounds[a]) < std::pair(uses[b], rounds[b]);
  });
  for (const std::size_t c : order) {
    Cast& cast = casts_[c];
    std::vector<Rank> sources;
    std::vector<Rank> destinations;
    std::int32_t there = options_.reshuffle == Reshuffle::kBefore ? move_stages_ : 0;
    for (std::int32_t g = 0; g < layout_.head_parallel; ++g) {
      there = std::max(there, kv_arrival_[unit(cast.block, g)]);
      sources.push_back(place(Kind::kKv, cast.block, g));
      destinations.push_back(layout_.device(cast.position, g));
    }
    cast.stage =
        used.first_fit(there + 1, sources, destinations, layout_.bytes(Kind::kKv, cast.block));
  }
}

std::vector<RetainedUnit> FcpPipeline::retained() const {
  std::vector<RetainedUnit> kept;
  if (!is_retained()) return kept;
  for (const Move& move : moves_) {
    kept.push_back(
        {place(move.kind, move.block, move.group), move.kind, move.block, GroupId{move.group}});
  }
  return kept;
}

}  // namespace contextile
