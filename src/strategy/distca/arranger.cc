#include "strategy/distca/arranger.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/mask.h"
#include "schedule/home.h"
#include "schedule/rank_layout.h"

namespace contextile {
namespace {

// One item in one nano-batch.
struct PlannedItem {
  const CaItem* item = nullptr;
  std::int32_t nano_batch = 0;
};

// Who computes some rows against which keys.
struct KeyTask {
  Range keys;
  Rank server;
};

// Rows that no task cuts: one owner, one nano-batch, the same tasks.
struct Segment {
  Rank owner;
  std::int32_t nano_batch = 0;
  std::vector<KeyTask> tasks;  // disjoint keys
};

// What the arranger knows of a block.
struct BlockTask {
  std::int32_t nano_batch = 0;
  Rank server;                       // where all of a composite block runs
  const Segment* segment = nullptr;  // the part of one document; null in a composite block
  std::int64_t first_position = 0;   // in the document
};

// Something a device needs or makes of a unit that is not its own, and the nano-batch (in order of
// computation) that needs it first or makes it last.
struct RemoteUse {
  Kind kind = Kind::kKv;
  BlockId block;
  Rank device;
  std::int32_t order = 0;

  [[nodiscard]] auto unit() const { return std::tuple(kind, block, device); }
};

class DistcaArranger {
 public:
  DistcaArranger(const Workload& workload, const CaPlan& plan, const CaArrangeOptions& options)
      : workload_(workload),
        options_(options),
        num_nano_batches_(static_cast<std::int32_t>(plan.nano_batches.size())) {
    std::vector<std::vector<PlannedItem>> documents(workload.sequences.size());
    for (std::int32_t n = 0; n < num_nano_batches_; ++n) {
      for (const CaItem& item : plan.nano_batches[static_cast<std::size_t>(n)]) {
        documents[static_cast<std::size_t>(item.document)].push_back({&item, n});
      }
    }
    cut_blocks(documents);
  }

  Arrangement run() {
    Arrangement arrangement;
    ArrangedRound& round = arrangement.rounds.emplace_back();
    const std::vector<PlacedTile> tiles = place_tiles();
    for (const NamedMask& mask : workload_.masks) {
      round.masks.push_back(mask.mask);
      ArrangedMask& programs = round.programs.emplace_back();
      programs.forward = arrange(tiles, Direction::kForward);
      if (!options_.backward) continue;
      programs.backward = arrange(tiles, Direction::kBackward);
      if (options_.resend) continue;
      for (const Transfer& t : programs.forward->transfers) {
        if (!is_result(t.kind)) programs.retain.push_back({t.dst, t.kind, t.block, t.group});
      }
    }
    finish_round(workload_, std::move(work_), round);
    return arrangement;
  }

 private:
  void cut_blocks(const std::vector<std::vector<PlannedItem>>& documents) {
    std::map<std::tuple<Rank, std::int32_t, Rank>, std::vector<Range>> whole;
    segments_.resize(documents.size());
    for (std::size_t d = 0; d < documents.size(); ++d) {
      const CaItem& first = *documents[d].front().item;
      if (documents[d].size() == 1 && shards_of(first).size() == 1) {
        whole[{first.source, documents[d].front().nano_batch, first.server}].push_back(
            workload_.sequences[d]);
      } else {
        cut_document(d, documents[d]);
      }
    }
    for (const auto& [key, ranges] : whole) {
      const auto& [owner, nano_batch, server] = key;
      add_blocks(ranges, owner, {nano_batch, server, nullptr, 0});
    }
  }

  void add_blocks(std::span<const Range> ranges, Rank owner, const BlockTask& task) {
    append_blocks(workload_, ranges, owner, options_.block_size, work_);
    while (std::ssize(block_tasks_) < work_.blocks.num_blocks()) {
      BlockTask& added = block_tasks_.emplace_back(task);
      if (task.segment == nullptr) continue;
      const BlockId block{static_cast<std::int32_t>(block_tasks_.size() - 1)};
      added.first_position += work_.blocks.ranges(block).front().begin - ranges.front().begin;
    }
  }

  // A document with several tasks: blocks between all positions where rows or keys of one begin or
  // end.
  void cut_document(std::size_t d, std::span<const PlannedItem> items) {
    std::vector<std::int64_t> cuts;
    for (const PlannedItem& planned : items) {
      for (const CaShard& shard : shards_of(*planned.item)) {
        cuts.insert(cuts.end(),
                    {shard.queries.begin, shard.queries.end, shard.keys.begin, shard.keys.end});
      }
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    std::vector<Segment>& segments = segments_[d];
    segments.resize(cuts.size() - 1);
    const auto segment_at = [&](std::int64_t position) {
      return static_cast<std::size_t>(std::lower_bound(cuts.begin(), cuts.end(), position) -
                                      cuts.begin());
    };
    for (const PlannedItem& planned : items) {
      for (const CaShard& shard : shards_of(*planned.item)) {
        for (std::size_t s = segment_at(shard.queries.begin); s < segment_at(shard.queries.end);
             ++s) {
          segments[s].owner = planned.item->source;
          segments[s].nano_batch = planned.nano_batch;
          segments[s].tasks.push_back({shard.keys, planned.item->server});
        }
      }
    }
    const std::int64_t begin = workload_.sequences[d].begin;
    for (std::size_t s = 0; s < segments.size(); ++s) {
      const Range tokens{begin + cuts[s], begin + cuts[s + 1]};
      add_blocks({&tokens, 1}, segments[s].owner,
                 {segments[s].nano_batch, kInvalidRank, &segments[s], cuts[s]});
    }
  }

  [[nodiscard]] const BlockTask& task_of(BlockId block) const {
    return block_tasks_[block.index()];
  }
  [[nodiscard]] Rank worker(BlockId block) const { return work_.workers[block.index()]; }

  [[nodiscard]] Rank server_of(const Tile& tile) const {
    const BlockTask& rows = task_of(tile.q_block);
    if (rows.segment == nullptr) return rows.server;
    const std::int64_t key = task_of(tile.kv_block).first_position;
    for (const KeyTask& task : rows.segment->tasks) {
      if (task.keys.contains(key)) return task.server;
    }
    fail_argument("distca: expected a task for every tile, found none for blocks {} and {}",
                  tile.q_block.value, tile.kv_block.value);
  }

  // All masks are the same pairs.
  [[nodiscard]] std::vector<PlacedTile> place_tiles() const {
    std::vector<PlacedTile> placed;
    for (const Tile& tile : TileIndex(workload_.masks.front().mask, work_.blocks).tiles()) {
      placed.push_back({tile.q_block, tile.kv_block, GroupId{0}, server_of(tile), 0, tile.pairs});
    }
    return placed;
  }

  // Which nano-batch, counted in the order they run, computes a tile.
  [[nodiscard]] std::int32_t order_of(const PlacedTile& tile, Direction direction) const {
    const std::int32_t nano_batch = task_of(tile.q_block).nano_batch;
    return direction == Direction::kForward ? nano_batch : num_nano_batches_ - 1 - nano_batch;
  }

  [[nodiscard]] bool travels(Kind kind, Direction direction) const {
    if (!occurs_in(kind, direction)) return false;
    const bool retained = !options_.resend && direction == Direction::kBackward;
    return !(retained && (kind == Kind::kQ || kind == Kind::kKv));
  }

  // What a tile needs from, or makes for, another device.
  template <typename Visit>
  void for_each_use(const PlacedTile& tile, Direction direction, bool results,
                    const Visit& visit) const {
    for (int k = 0; k < kNumKinds; ++k) {
      const auto kind = static_cast<Kind>(k);
      if (is_result(kind) != results || !travels(kind, direction)) continue;
      const BlockId block = is_of_kv(kind) ? tile.kv_block : tile.q_block;
      if (worker(block) == tile.device) continue;
      visit(RemoteUse{kind, block, tile.device, order_of(tile, direction)});
    }
  }

  // Every unit once, with the first (inputs) or last (results) nano-batch that uses it.
  [[nodiscard]] std::vector<RemoteUse> uses(const std::vector<PlacedTile>& tiles,
                                            Direction direction, bool results) const {
    std::vector<RemoteUse> all;
    for (const PlacedTile& tile : tiles) {
      for_each_use(tile, direction, results, [&](const RemoteUse& use) { all.push_back(use); });
    }
    std::sort(all.begin(), all.end(), [&](const RemoteUse& a, const RemoteUse& b) {
      if (a.unit() != b.unit()) return a.unit() < b.unit();
      return results ? a.order > b.order : a.order < b.order;
    });
    const auto last = std::unique(
        all.begin(), all.end(), [](const auto& a, const auto& b) { return a.unit() == b.unit(); });
    all.erase(last, all.end());
    return all;
  }

  [[nodiscard]] ArrangedDirection arrange(const std::vector<PlacedTile>& tiles,
                                          Direction direction) const {
    ArrangedDirection out;
    const std::vector<RemoteUse> inputs = uses(tiles, direction, false);
    for (PlacedTile tile : tiles) {
      const std::int32_t order = order_of(tile, direction);
      bool waits = false;
      for_each_use(tile, direction, false, [&](const RemoteUse& use) {
        const auto it = std::lower_bound(
            inputs.begin(), inputs.end(), use,
            [](const RemoteUse& a, const RemoteUse& b) { return a.unit() < b.unit(); });
        waits = waits || it->order == order;
      });
      tile.stage = 2 * order + (waits ? 1 : 0);
      out.tiles.push_back(tile);
    }
    for (const RemoteUse& use : inputs) {
      const std::int32_t launch = std::max(0, 2 * use.order - 1);
      out.transfers.push_back({use.kind, use.block, GroupId{0}, worker(use.block), use.device,
                               launch, 2 * use.order + 1});
    }
    for (const RemoteUse& use : uses(tiles, direction, true)) {
      const std::int32_t launch = 2 * use.order + 2;
      const bool is_last = use.order == num_nano_batches_ - 1;
      out.transfers.push_back({use.kind, use.block, GroupId{0}, use.device, worker(use.block),
                               launch, launch + (is_last ? 1 : 2)});
    }
    return out;
  }

  const Workload& workload_;
  const CaArrangeOptions& options_;
  std::int32_t num_nano_batches_;
  WorkBlocks work_;
  std::vector<BlockTask> block_tasks_;
  std::vector<std::vector<Segment>> segments_;  // one list for each document that is cut
};

}  // namespace

Arrangement arrange_tasks(const Workload& workload, const CaPlan& plan,
                          const CaArrangeOptions& options) {
  return DistcaArranger(workload, plan, options).run();
}

}  // namespace contextile
