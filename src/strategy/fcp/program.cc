#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <tuple>

#include "base/interrupt.h"
#include "strategy/fcp/fcp_pipeline.h"

namespace contextile {
namespace {

constexpr std::int32_t kNever = -1;
// Stages of a paced program that are shorter than the later ones.
constexpr std::int32_t kGrowingStages = 8;

}  // namespace

// One direction of the program. Its stages are those of the arrangement. If nothing may overlap,
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
    if (overlaps()) {
      if (layout_.is_home) {
        pace_tiles();
      } else {
        keep_local_tiles_for_the_end();
      }
    }
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
  [[nodiscard]] std::int32_t query_arrival(BlockId block, std::int32_t group) const {
    return scale_ * pipeline_.q_arrival_[pipeline_.unit(block, group)];
  }
  // Returns the stage at which keys are at their caster. They are there before forward begins only
  // if they live there; before backward also if they were retained.
  [[nodiscard]] std::int32_t key_arrival(BlockId block, std::int32_t group) const {
    if (backward() && pipeline_.is_retained()) return 0;
    return scale_ * pipeline_.kv_arrival_[pipeline_.unit(block, group)];
  }
  [[nodiscard]] std::int32_t caster(BlockId block) const {
    return pipeline_.casters_[block.index()];
  }
  // Returns the first stage that may compute.
  [[nodiscard]] std::int32_t first_compute() const {
    return options_.reshuffle == Reshuffle::kBefore ? scale_ * pipeline_.move_stages_ : 0;
  }

  [[nodiscard]] std::int32_t position_of(const PlacedTile& tile) const {
    return layout_.positions[tile.q_block.index()];
  }
  // Returns true if the keys come neither from home nor through the position's own caster.
  [[nodiscard]] bool reads_cast(const PlacedTile& tile) const {
    return position_of(tile) != caster(tile.kv_block) && tile.device != owner(tile.kv_block);
  }

  // Returns the cast of a tile of out_.tiles, which lists the pipeline's tiles for every group.
  [[nodiscard]] std::size_t cast_of(std::size_t tile) const {
    return pipeline_.cast_of_tile_[tile % pipeline_.tiles_.size()];
  }

  [[nodiscard]] std::int32_t earliest_stage(std::size_t t) const {
    const PlacedTile& tile = out_.tiles[t];
    const std::int32_t g = tile.group.value;
    std::int32_t stage = std::max(first_compute(), query_arrival(tile.q_block, g));
    if (reads_cast(tile)) {
      stage = std::max(stage, scale_ * pipeline_.casts_[cast_of(t)].stage);
    } else if (tile.device != owner(tile.kv_block)) {
      stage = std::max(stage, key_arrival(tile.kv_block, g));
    }
    return stage;
  }

  void place_tiles() {
    out_.tiles.reserve(pipeline_.tiles_.size() * static_cast<std::size_t>(groups_));
    RareInterruptCheck check;
    for (std::int32_t g = 0; g < groups_; ++g) {
      for (const Tile& tile : pipeline_.tiles_) {
        check();
        PlacedTile& placed =
            out_.tiles.emplace_back(PlacedTile{tile.q_block, tile.kv_block, GroupId{g},
                                               layout_.worker(tile.q_block, g), 0, tile.pairs});
        placed.stage = earliest_stage(out_.tiles.size() - 1);
      }
    }
  }

  // Returns the devices at either end of a result's transfer.
  [[nodiscard]] std::vector<bool> devices_of_results() const {
    std::vector<bool> devices(static_cast<std::size_t>(layout_.num_devices));
    const auto note = [&](Rank a, Rank b) { devices[a.index()] = devices[b.index()] = true; };
    for (const Move& move : pipeline_.moves_) {
      if (move.kind == Kind::kQ || backward()) {
        note(owner(move.block), pipeline_.place(move.kind, move.block, move.group));
      }
    }
    if (!backward()) return devices;
    for (const Cast& cast : pipeline_.casts_) {
      for (std::int32_t g = 0; g < groups_; ++g) {
        note(layout_.device(caster(cast.block), g), layout_.device(cast.position, g));
      }
    }
    return devices;
  }

  [[nodiscard]] int num_results_away(const PlacedTile& tile) const {
    return (is_moved(tile.q_block, tile.group.value) ? 1 : 0) +
           (backward() && tile.device != owner(tile.kv_block) ? 1 : 0);
  }

  // Lets half of a device's local tiles of every stage wait until the last remote keys are done, so
  // that the last results leave under them. Tiles whose own results stay on the device wait first.
  void keep_local_tiles_for_the_end() {
    const std::vector<bool> has_results = devices_of_results();
    std::vector<PlacedTile*> local;
    for (PlacedTile& tile : out_.tiles) {
      if (has_results[tile.device.index()] && !reads_cast(tile)) local.push_back(&tile);
    }
    RareInterruptCheck check;
    std::sort(local.begin(), local.end(), [&](const PlacedTile* a, const PlacedTile* b) {
      check();
      const auto key = [&](const PlacedTile& t) {
        return std::tuple(t.device, t.stage, num_results_away(t), t.q_block, t.kv_block, t.group);
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

  // Spreads a device's tiles over its stages as evenly as the arrival of their inputs allows, so
  // that the device it sends to next does not wait for it. Tiles whose results leave come first,
  // then those whose keys occupy buffers that others wait for.
  void pace_tiles() {
    std::vector<std::vector<PlacedTile*>> of_device(static_cast<std::size_t>(layout_.num_devices));
    for (PlacedTile& tile : out_.tiles) of_device[tile.device.index()].push_back(&tile);
    for (std::vector<PlacedTile*>& tiles : of_device) {
      check_interrupt();
      std::stable_sort(tiles.begin(), tiles.end(), [&](const PlacedTile* a, const PlacedTile* b) {
        const auto key = [&](const PlacedTile& t) {
          return std::tuple(-num_results_away(t), !reads_cast(t));
        };
        return key(*a) < key(*b);
      });
      pace(tiles);
    }
  }

  // Each stage runs its share of the remaining work, as far as the inputs are there. The first
  // stages are short, since keys go on only after them.
  void pace(std::span<PlacedTile* const> tiles) const {
    std::map<std::int32_t, std::vector<std::size_t>> arriving;  // by stage, in order of urgency
    std::int64_t left = 0;
    for (std::size_t t = 0; t < tiles.size(); ++t) {
      arriving[tiles[t]->stage].push_back(t);
      left += tiles[t]->pairs;
    }
    std::set<std::size_t> there;
    const auto weight = [this](std::int32_t stage) {
      return std::min(stage / scale_ + 1, kGrowingStages);
    };
    const std::int32_t end = scale_ * pipeline_.last_stage_ + 1;
    for (std::int32_t stage = first_compute(); stage <= end; ++stage) {
      for (const std::size_t t : arriving[stage]) there.insert(t);
      std::int64_t weights = 0;
      for (std::int32_t later = stage; later <= end; ++later) weights += weight(later);
      const std::int64_t share = left / weights * weight(stage);
      for (std::int64_t done = 0; !there.empty() && (done < share || stage == end);) {
        PlacedTile& tile = *tiles[*there.begin()];
        there.erase(there.begin());
        tile.stage = stage;
        done += tile.pairs;
        left -= tile.pairs;
      }
    }
  }

  // Notes the stage of the last tile of every result, on the device that has to send it.
  void note_last_stages() {
    const std::size_t num_units = pipeline_.q_arrival_.size();
    last_q_.assign(num_units, kNever);
    last_kv_.assign(num_units, kNever);
    last_cast_.assign(pipeline_.casts_.size() * static_cast<std::size_t>(groups_), kNever);
    for (std::size_t t = 0; t < out_.tiles.size(); ++t) {
      const PlacedTile& tile = out_.tiles[t];
      const std::int32_t g = tile.group.value;
      const auto note = [&](std::int32_t& last) { last = std::max(last, tile.stage); };
      note(last_q_[pipeline_.unit(tile.q_block, g)]);
      if (reads_cast(tile)) {
        note(last_cast_[cast_index(cast_of(t), g)]);
      } else if (position_of(tile) == caster(tile.kv_block)) {
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
  // Launches an input buffers - 1 stages before the one that needs it, but not before it is there.
  void send_input(Kind kind, BlockId block, std::int32_t group, Rank src, Rank dst,
                  std::int32_t need, std::int32_t there) {
    const std::int32_t ahead = overlaps() ? options_.buffers - 1 : 1;
    send(kind, block, group, src, dst, std::max(there, need - ahead), need);
  }
  // Sends a result as soon as it is complete; it has buffers - 1 stages to arrive. Returns the
  // stage that needs it.
  std::int32_t send_result(Kind kind, BlockId block, std::int32_t group, Rank src, Rank dst,
                           std::int32_t complete) {
    const std::int32_t launch = overlaps() ? complete : complete | 1;  // odd: between computes
    const std::int32_t need = launch + (overlaps() ? options_.buffers - 1 : 1);
    send(kind, block, group, src, dst, launch, need);
    return need;
  }

  void move_inputs() {
    const bool retained = backward() && pipeline_.is_retained();
    for (const Move& move : pipeline_.moves_) {
      const auto in = [&](Kind kind) {
        send_input(kind, move.block, move.group, owner(move.block),
                   pipeline_.place(kind, move.block, move.group), scale_ * move.stage, 0);
      };
      if (!retained) in(move.kind);
      if (backward() && move.kind == Kind::kQ) in(Kind::kDo);
    }
  }

  void cast_keys() {
    for (const Cast& cast : pipeline_.casts_) {
      for (std::int32_t g = 0; g < groups_; ++g) {
        const Rank dst = layout_.device(cast.position, g);
        if (dst == owner(cast.block)) continue;
        send_input(Kind::kKv, cast.block, g, layout_.device(caster(cast.block), g), dst,
                   scale_ * cast.stage, std::max(first_compute(), key_arrival(cast.block, g)));
      }
    }
  }

  // Reverses every edge of the keys once its tiles are done.
  void return_casts() {
    for (std::size_t c = 0; c < pipeline_.casts_.size(); ++c) {
      const Cast& cast = pipeline_.casts_[c];
      for (std::int32_t g = 0; g < groups_; ++g) {
        const Rank src = layout_.device(cast.position, g);
        if (src == owner(cast.block)) continue;
        const std::int32_t need =
            send_result(Kind::kDkv, cast.block, g, src, layout_.device(caster(cast.block), g),
                        last_cast_[cast_index(c, g)] + 1);
        std::int32_t& last = last_kv_[pipeline_.unit(cast.block, g)];
        // The caster's sum is complete only when this share has arrived.
        last = std::max(last, need - 1);
      }
    }
  }

  void move_results() {
    std::int32_t end = last_need_;
    for (const PlacedTile& tile : out_.tiles) end = std::max(end, tile.stage + 1);
    for (const Move& move : pipeline_.moves_) {
      const bool is_q = move.kind == Kind::kQ;
      if (!is_q && !backward()) continue;
      const std::int32_t last = (is_q ? last_q_ : last_kv_)[pipeline_.unit(move.block, move.group)];
      send_result(is_q ? (backward() ? Kind::kDq : Kind::kO) : Kind::kDkv, move.block, move.group,
                  pipeline_.place(move.kind, move.block, move.group), owner(move.block),
                  options_.reshuffle == Reshuffle::kBefore ? end : last + 1);
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

}  // namespace contextile
