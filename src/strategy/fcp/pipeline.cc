#include "strategy/fcp/pipeline.h"

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <utility>

#include "schedule/coloring.h"

namespace contextile {
namespace {

constexpr std::int32_t kNever = -1;

// The round of every edge (sender, receiver). Edges come in block order.
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

}  // namespace

FcpPipeline::FcpPipeline(const FcpLayout& layout, std::span<const Tile> tiles,
                         const FcpPipelineOptions& options)
    : layout_(layout), tiles_(tiles), options_(options) {
  find_casts();
  find_moves();
  assign_move_stages();
  assign_cast_stages();
}

void FcpPipeline::find_casts() {
  const auto num_blocks = static_cast<std::size_t>(layout_.blocks.num_blocks());
  attends_.assign(num_blocks, false);
  read_at_home_.assign(num_blocks, false);
  std::vector<std::pair<BlockId, std::int32_t>> needed;
  for (const Tile& tile : tiles_) {
    attends_[tile.q_block.index()] = true;
    const std::int32_t position = layout_.positions[tile.q_block.index()];
    if (position == layout_.positions[tile.kv_block.index()]) {
      read_at_home_[tile.kv_block.index()] = true;
    } else {
      needed.emplace_back(tile.kv_block, position);
    }
  }
  std::sort(needed.begin(), needed.end());
  needed.erase(std::unique(needed.begin(), needed.end()), needed.end());
  first_.assign(num_blocks + 1, 0);
  for (const auto& [block, position] : needed) {
    casts_.push_back({block, position, 0});
    ++first_[block.index() + 1];
  }
  for (std::size_t b = 0; b < num_blocks; ++b) first_[b + 1] += first_[b];
}

void FcpPipeline::find_moves() {
  const auto num_blocks = layout_.blocks.num_blocks();
  const auto num_units =
      static_cast<std::size_t>(num_blocks) * static_cast<std::size_t>(layout_.head_parallel);
  arrival_.assign(num_units, 0);
  moves_kv_.assign(num_units, false);
  for (std::int32_t b = 0; b < num_blocks; ++b) {
    const BlockId block{b};
    const Rank owner = layout_.owners[block.index()];
    for (std::int32_t g = 0; g < layout_.head_parallel; ++g) {
      if (layout_.worker(block, g) == owner) continue;
      bool reads = read_at_home_[block.index()];
      for (std::size_t c = first_[block.index()]; c < first_[block.index() + 1]; ++c) {
        reads = reads || layout_.device(casts_[c].position, g) != owner;
      }
      moves_kv_[unit(block, g)] = reads;
      if (reads || attends_[block.index()]) moves_.push_back({block, g, 1});
    }
  }
}

// The all-to-all of A members has A times the units of 1/A the bytes: as many more in a stage.
void FcpPipeline::assign_move_stages() {
  if (options_.reshuffle == Reshuffle::kOverlapped) {
    std::vector<BipartiteEdge> edges;
    for (const Move& move : moves_) {
      edges.push_back(
          {layout_.owners[move.block.index()].value, layout_.worker(move.block, move.group).value});
    }
    const auto rounds = assign_rounds(edges, layout_.num_devices, options_.rounds);
    const std::int64_t per_stage = std::int64_t{options_.coalesce} * layout_.head_parallel;
    for (std::size_t m = 0; m < moves_.size(); ++m) {
      moves_[m].stage = 1 + static_cast<std::int32_t>(rounds[m] / per_stage);
    }
  }
  for (const Move& move : moves_) {
    arrival_[unit(move.block, move.group)] = move.stage;
    move_stages_ = std::max(move_stages_, move.stage);
  }
}

// Head groups travel side by side, each between its own members: colouring positions is enough.
void FcpPipeline::assign_cast_stages() {
  std::vector<BipartiteEdge> edges;
  for (const Cast& cast : casts_) {
    edges.push_back({layout_.positions[cast.block.index()], cast.position});
  }
  const auto rounds =
      assign_rounds(edges, layout_.num_devices / layout_.head_parallel, options_.rounds);
  last_stage_ = move_stages_;
  for (std::size_t c = 0; c < casts_.size(); ++c) {
    casts_[c].stage = move_stages_ + 1 + rounds[c] / options_.coalesce;
    last_stage_ = std::max(last_stage_, casts_[c].stage);
  }
}

// One direction of the program. Stages here are those of the arrangement: where nothing may overlap
// the pipeline's stages are two apart, and everything travels in between.
class FcpPipeline::Arranging {
 public:
  Arranging(const FcpPipeline& pipeline, Direction direction)
      : pipeline_(pipeline),
        layout_(pipeline.layout_),
        options_(pipeline.options_),
        direction_(direction),
        groups_(pipeline.layout_.head_parallel),
        scale_(overlaps() ? 1 : 2) {}

  ArrangedDirection run() {
    place_tiles();
    if (overlaps()) keep_local_tiles_for_the_end();
    note_last_stages();
    move_inputs();
    cast_keys();
    if (backward()) return_casts();
    move_results();
    return std::move(out_);
  }

 private:
  [[nodiscard]] bool backward() const { return direction_ == Direction::kBackward; }
  [[nodiscard]] bool overlaps() const { return options_.buffers > 1; }
  [[nodiscard]] Rank owner(BlockId block) const { return layout_.owners[block.index()]; }
  [[nodiscard]] bool is_moved(BlockId block, std::int32_t group) const {
    return layout_.worker(block, group) != owner(block);
  }
  [[nodiscard]] std::int32_t arrival(BlockId block, std::int32_t group) const {
    return scale_ * pipeline_.arrival_[pipeline_.unit(block, group)];
  }
  // Keys reach their worker before forward begins only if they live there; before backward also if
  // they were retained.
  [[nodiscard]] std::int32_t key_arrival(BlockId block, std::int32_t group) const {
    return backward() && pipeline_.is_retained() ? 0 : arrival(block, group);
  }
  // No compute before this stage.
  [[nodiscard]] std::int32_t first_compute() const {
    return options_.reshuffle == Reshuffle::kBefore ? scale_ * pipeline_.move_stages_ : 0;
  }

  // Index of the cast of a key block to a position that needs it.
  [[nodiscard]] std::size_t cast_of(BlockId block, std::int32_t position) const {
    const auto begin = pipeline_.casts_.begin();
    const auto it = std::partition_point(
        begin + static_cast<std::ptrdiff_t>(pipeline_.first_[block.index()]),
        begin + static_cast<std::ptrdiff_t>(pipeline_.first_[block.index() + 1]),
        [&](const Cast& cast) { return cast.position < position; });
    return static_cast<std::size_t>(it - begin);
  }
  [[nodiscard]] std::int32_t position_of(const PlacedTile& tile) const {
    return layout_.positions[tile.q_block.index()];
  }
  // Keys that come neither from home nor through the position's own worker.
  [[nodiscard]] bool reads_cast(const PlacedTile& tile) const {
    return position_of(tile) != layout_.positions[tile.kv_block.index()] &&
           tile.device != owner(tile.kv_block);
  }

  [[nodiscard]] std::int32_t earliest_stage(const PlacedTile& tile) const {
    const std::int32_t g = tile.group.value;
    std::int32_t stage = std::max(first_compute(), arrival(tile.q_block, g));
    if (reads_cast(tile)) {
      const Cast& cast = pipeline_.casts_[cast_of(tile.kv_block, position_of(tile))];
      stage = std::max(stage, scale_ * cast.stage);
    } else if (tile.device != owner(tile.kv_block)) {
      stage = std::max(stage, key_arrival(tile.kv_block, g));
    }
    return stage;
  }

  void place_tiles() {
    out_.tiles.reserve(pipeline_.tiles_.size() * static_cast<std::size_t>(groups_));
    for (std::int32_t g = 0; g < groups_; ++g) {
      for (const Tile& tile : pipeline_.tiles_) {
        PlacedTile& placed =
            out_.tiles.emplace_back(PlacedTile{tile.q_block, tile.kv_block, GroupId{g},
                                               layout_.worker(tile.q_block, g), 0, tile.pairs});
        placed.stage = earliest_stage(placed);
      }
    }
  }

  // Devices at either end of a result's transfer.
  [[nodiscard]] std::vector<bool> devices_of_results() const {
    std::vector<bool> devices(static_cast<std::size_t>(layout_.num_devices));
    const auto note = [&](Rank a, Rank b) { devices[a.index()] = devices[b.index()] = true; };
    for (const Move& move : pipeline_.moves_) {
      note(owner(move.block), layout_.worker(move.block, move.group));
    }
    if (!backward()) return devices;
    for (const Cast& cast : pipeline_.casts_) {
      for (std::int32_t g = 0; g < groups_; ++g) {
        note(layout_.worker(cast.block, g), layout_.device(cast.position, g));
      }
    }
    return devices;
  }

  // Half of a device's local tiles of every stage wait until the last remote keys are done, so that
  // the last results leave under them; first those whose own results stay where they are.
  void keep_local_tiles_for_the_end() {
    const std::vector<bool> has_results = devices_of_results();
    const auto results_away = [&](const PlacedTile& tile) {
      return (is_moved(tile.q_block, tile.group.value) ? 1 : 0) +
             (backward() && tile.device != owner(tile.kv_block) ? 1 : 0);
    };
    std::vector<PlacedTile*> local;
    for (PlacedTile& tile : out_.tiles) {
      if (has_results[tile.device.index()] && !reads_cast(tile)) local.push_back(&tile);
    }
    std::sort(local.begin(), local.end(), [&](const PlacedTile* a, const PlacedTile* b) {
      const auto key = [&](const PlacedTile& t) {
        return std::tuple(t.device, t.stage, results_away(t), t.q_block, t.kv_block, t.group);
      };
      return key(*a) < key(*b);
    });
    for (auto begin = local.begin(); begin != local.end();) {
      std::int64_t pairs = 0;
      auto end = begin;
      for (; end != local.end() && (*end)->device == (*begin)->device &&
             (*end)->stage == (*begin)->stage;
           ++end) {
        pairs += (*end)->pairs;
      }
      std::int64_t kept = 0;
      for (auto it = begin; it != end; ++it) {
        kept += (*it)->pairs;
        if (2 * kept > pairs) break;
        (*it)->stage = pipeline_.last_stage_ + 1;
      }
      begin = end;
    }
  }

  // When the last tile of every result has run, on the device that has to send it.
  void note_last_stages() {
    const std::size_t num_units = pipeline_.arrival_.size();
    last_q_.assign(num_units, kNever);
    last_kv_.assign(num_units, kNever);
    last_cast_.assign(pipeline_.casts_.size() * static_cast<std::size_t>(groups_), kNever);
    for (const PlacedTile& tile : out_.tiles) {
      const std::int32_t g = tile.group.value;
      const auto note = [&](std::int32_t& last) { last = std::max(last, tile.stage); };
      note(last_q_[pipeline_.unit(tile.q_block, g)]);
      if (reads_cast(tile)) {
        note(last_cast_[cast_index(cast_of(tile.kv_block, position_of(tile)), g)]);
      } else if (position_of(tile) == layout_.positions[tile.kv_block.index()]) {
        note(last_kv_[pipeline_.unit(tile.kv_block, g)]);
      }
    }
  }
  [[nodiscard]] std::size_t cast_index(std::size_t cast, std::int32_t group) const {
    return cast * static_cast<std::size_t>(groups_) + static_cast<std::size_t>(group);
  }

  void send(Kind kind, BlockId block, std::int32_t group, Rank src, Rank dst, std::int32_t launch,
            std::int32_t need) {
    out_.transfers.push_back({kind, block, GroupId{group}, src, dst, launch, need});
    last_need_ = std::max(last_need_, need);
  }
  // An input needed at a stage is launched buffers - 1 stages before, but not before it is there.
  void send_input(Kind kind, BlockId block, std::int32_t group, Rank src, Rank dst,
                  std::int32_t need, std::int32_t there) {
    const std::int32_t ahead = overlaps() ? options_.buffers - 1 : 1;
    send(kind, block, group, src, dst, std::max(there, need - ahead), need);
  }
  // A result leaves as soon as it is complete, and has buffers - 1 stages to arrive.
  std::int32_t send_result(Kind kind, BlockId block, std::int32_t group, Rank src, Rank dst,
                           std::int32_t complete) {
    const std::int32_t launch = overlaps() ? complete : complete | 1;  // odd: between computes
    const std::int32_t need = launch + (overlaps() ? options_.buffers - 1 : 1);
    send(kind, block, group, src, dst, launch, need);
    return need;
  }

  void move_inputs() {
    for (const Move& move : pipeline_.moves_) {
      const auto in = [&](Kind kind) {
        send_input(kind, move.block, move.group, owner(move.block),
                   layout_.worker(move.block, move.group), scale_ * move.stage, 0);
      };
      const bool retained = backward() && pipeline_.is_retained();
      if (pipeline_.attends_[move.block.index()]) {
        if (!retained) in(Kind::kQ);
        if (backward()) in(Kind::kDo);
      }
      if (pipeline_.moves_kv_[pipeline_.unit(move.block, move.group)] && !retained) in(Kind::kKv);
    }
  }

  void cast_keys() {
    for (const Cast& cast : pipeline_.casts_) {
      for (std::int32_t g = 0; g < groups_; ++g) {
        const Rank dst = layout_.device(cast.position, g);
        if (dst == owner(cast.block)) continue;
        send_input(Kind::kKv, cast.block, g, layout_.worker(cast.block, g), dst,
                   scale_ * cast.stage, std::max(first_compute(), key_arrival(cast.block, g)));
      }
    }
  }

  // Every edge of the keys reversed, once its tiles are done.
  void return_casts() {
    for (std::size_t c = 0; c < pipeline_.casts_.size(); ++c) {
      const Cast& cast = pipeline_.casts_[c];
      for (std::int32_t g = 0; g < groups_; ++g) {
        const Rank src = layout_.device(cast.position, g);
        if (src == owner(cast.block)) continue;
        const std::int32_t need =
            send_result(Kind::kDkv, cast.block, g, src, layout_.worker(cast.block, g),
                        last_cast_[cast_index(c, g)] + 1);
        std::int32_t& last = last_kv_[pipeline_.unit(cast.block, g)];
        last = std::max(last, need - 1);
      }
    }
  }

  void move_results() {
    std::int32_t end = last_need_;
    for (const PlacedTile& tile : out_.tiles) end = std::max(end, tile.stage + 1);
    for (const Move& move : pipeline_.moves_) {
      const auto back = [&](Kind kind, std::int32_t last) {
        const std::int32_t complete = options_.reshuffle == Reshuffle::kBefore ? end : last + 1;
        send_result(kind, move.block, move.group, layout_.worker(move.block, move.group),
                    owner(move.block), complete);
      };
      const std::size_t u = pipeline_.unit(move.block, move.group);
      if (pipeline_.attends_[move.block.index()]) {
        back(backward() ? Kind::kDq : Kind::kO, last_q_[u]);
      }
      if (backward() && pipeline_.moves_kv_[u]) back(Kind::kDkv, last_kv_[u]);
    }
  }

  const FcpPipeline& pipeline_;
  const FcpLayout& layout_;
  const FcpPipelineOptions& options_;
  Direction direction_;
  std::int32_t groups_;
  std::int32_t scale_;
  ArrangedDirection out_;
  std::vector<std::int32_t> last_q_;     // of every unit: stage of its queries' last tile
  std::vector<std::int32_t> last_kv_;    // of every unit: its worker's last addition to dkv
  std::vector<std::int32_t> last_cast_;  // of every cast and group: stage of its last tile
  std::int32_t last_need_ = 0;
};

ArrangedDirection FcpPipeline::arrange(Direction direction) const {
  return Arranging(*this, direction).run();
}

std::vector<RetainedUnit> FcpPipeline::retained() const {
  std::vector<RetainedUnit> kept;
  if (!is_retained()) return kept;
  for (const Move& move : moves_) {
    const Rank device = layout_.worker(move.block, move.group);
    if (attends_[move.block.index()]) {
      kept.push_back({device, Kind::kQ, move.block, GroupId{move.group}});
    }
    if (moves_kv_[unit(move.block, move.group)]) {
      kept.push_back({device, Kind::kKv, move.block, GroupId{move.group}});
    }
  }
  return kept;
}

}  // namespace contextile
