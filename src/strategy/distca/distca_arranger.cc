#include "strategy/distca/distca_arranger.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/interrupt.h"
#include "contextile/mask.h"
#include "strategy/distca/distca_relays.h"
#include "strategy/schedule/rank_layout.h"

namespace contextile {
namespace {

// One item in one nano-batch.
struct PlannedItem {
  const CaItem* item = nullptr;
  std::int32_t nano_batch = 0;
};

template <typename T>
using ByDirection = std::array<T, 2>;
constexpr std::size_t index_of(Direction direction) { return static_cast<std::size_t>(direction); }

struct DocumentItems {
  ByDirection<std::vector<PlannedItem>> tasks;
  std::vector<CaCachedRows> cached;
};

// Keys that some rows attend, and the rank that computes these rows against them.
struct KeyTask {
  Range keys;
  Rank server;
};

// Rows that no task cuts: one owner, one nano-batch, the same tasks.
struct Segment {
  Rank owner;
  std::int32_t nano_batch = 0;
  ByDirection<std::vector<KeyTask>> tasks;  // disjoint keys
};

// The nano-batch and the tasks of a block.
struct BlockTask {
  std::int32_t nano_batch = 0;
  ByDirection<Rank> servers{};       // the ranks that compute all of a composite block
  const Segment* segment = nullptr;  // the part of one document; null in a composite block
  std::int64_t first_position = 0;   // in the document
};

// A unit that a device needs or makes and does not own, with the nano-batch (in order of
// computation) that needs it first or makes it last.
struct RemoteUse {
  Kind kind = Kind::kKv;
  BlockId block;
  Rank device;
  std::int32_t order = 0;
  Rank parent = kInvalidRank;  // the device that sends the input or takes the result
  bool is_relay = false;       // it is the parent of other devices

  [[nodiscard]] auto unit() const { return std::tuple(kind, block, device); }
};

class DistcaArranger {
 public:
  DistcaArranger(const Workload& workload, const CaPlan& plan, const CaArrangeOptions& options)
      : workload_(workload),
        options_(options),
        num_nano_batches_(static_cast<std::int32_t>(plan.nano_batches.size())) {
    std::vector<DocumentItems> documents(workload.sequences.size());
    for (const Direction direction : kDirections) {
      const bool own = direction == Direction::kBackward && !plan.backward.empty();
      const auto& nano_batches = own ? plan.backward : plan.nano_batches;
      for (std::int32_t n = 0; n < num_nano_batches_; ++n) {
        for (const CaItem& item : nano_batches[static_cast<std::size_t>(n)]) {
          documents[static_cast<std::size_t>(item.document)].tasks[index_of(direction)].push_back(
              {&item, n});
        }
      }
    }
    for (const CaCachedRows& rows : plan.cached) {
      documents[static_cast<std::size_t>(rows.document)].cached.push_back(rows);
    }
    cut_blocks(documents);
    tiles_ = TileIndex(workload_.masks.front().mask, work_.blocks).tiles();
  }

  Arrangement run() {
    Arrangement arrangement;
    ArrangedRound& round = arrangement.rounds.emplace_back();
    for (const NamedMask& mask : workload_.masks) {
      round.masks.push_back(mask.mask);
      ArrangedMask& programs = round.programs.emplace_back();
      programs.forward = arrange(Direction::kForward);
      if (!options_.backward) continue;
      programs.backward = arrange(Direction::kBackward);
      if (options_.resend) continue;
      for (const Transfer& t : programs.forward->transfers) {
        if (!is_result(t.kind)) programs.retain.push_back({t.dst, t.kind, t.block, t.group});
      }
    }
    round.blocks = std::move(work_.blocks);
    round.owners = std::move(work_.workers);
    return arrangement;
  }

 private:
  // Cuts all documents into blocks. Documents that one device computes whole are joined into
  // composite blocks if they have the same owner, nano-batch and servers.
  void cut_blocks(const std::vector<DocumentItems>& documents) {
    std::map<std::tuple<Rank, std::int32_t, ByDirection<Rank>>, std::vector<Range>> whole;
    segments_.resize(documents.size());
    for (std::size_t d = 0; d < documents.size(); ++d) {
      const auto is_one_shard = [](const std::vector<PlannedItem>& items) {
        return items.size() == 1 && shards_of(*items.front().item).size() == 1;
      };
      if (!documents[d].cached.empty() || !std::ranges::all_of(documents[d].tasks, is_one_shard)) {
        cut_document(d, documents[d]);
        continue;
      }
      const auto& [forward, backward] = documents[d].tasks;
      const CaItem& item = *forward.front().item;
      whole[{item.source, forward.front().nano_batch, {item.server, backward.front().item->server}}]
          .push_back(workload_.sequences[d]);
    }
    for (const auto& [key, ranges] : whole) {
      const auto& [owner, nano_batch, servers] = key;
      add_blocks(ranges, owner, {nano_batch, servers, nullptr, 0});
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

  // Cuts a document with several tasks: a block reaches from each cut to the next.
  void cut_document(std::size_t d, const DocumentItems& items) {
    const std::vector<std::int64_t> cuts = cuts_of(items);
    std::vector<Segment>& segments = segments_[d];
    segments.resize(cuts.size() - 1);
    const auto segment_at = [&](std::int64_t position) {
      return static_cast<std::size_t>(std::lower_bound(cuts.begin(), cuts.end(), position) -
                                      cuts.begin());
    };
    // Cached rows have an owner and no task.
    for (const CaCachedRows& rows : items.cached) {
      const std::size_t end = segment_at(rows.rows.end);
      for (std::size_t s = segment_at(rows.rows.begin); s < end; ++s)
        segments[s].owner = rows.owner;
    }
    for (std::size_t direction = 0; direction < items.tasks.size(); ++direction) {
      for (const PlannedItem& planned : items.tasks[direction]) {
        for (const CaShard& shard : shards_of(*planned.item)) {
          const std::size_t end = segment_at(shard.queries.end);
          for (std::size_t s = segment_at(shard.queries.begin); s < end; ++s) {
            segments[s].owner = planned.item->source;
            segments[s].nano_batch = planned.nano_batch;
            segments[s].tasks[direction].push_back({shard.keys, planned.item->server});
          }
        }
      }
    }
    const std::int64_t begin = workload_.sequences[d].begin;
    for (std::size_t s = 0; s < segments.size(); ++s) {
      const Range tokens{begin + cuts[s], begin + cuts[s + 1]};
      add_blocks({&tokens, 1}, segments[s].owner,
                 {segments[s].nano_batch, {}, &segments[s], cuts[s]});
    }
  }

  // Returns the positions where rows or keys of a task begin or end.
  [[nodiscard]] static std::vector<std::int64_t> cuts_of(const DocumentItems& items) {
    std::vector<std::int64_t> cuts;
    for (const CaCachedRows& rows : items.cached) {
      cuts.insert(cuts.end(), {rows.rows.begin, rows.rows.end});
    }
    for (const std::vector<PlannedItem>& tasks : items.tasks) {
      for (const PlannedItem& planned : tasks) {
        for (const CaShard& shard : shards_of(*planned.item)) {
          cuts.insert(cuts.end(),
                      {shard.queries.begin, shard.queries.end, shard.keys.begin, shard.keys.end});
        }
      }
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
    return cuts;
  }

  [[nodiscard]] const BlockTask& task_of(BlockId block) const {
    return block_tasks_[block.index()];
  }
  [[nodiscard]] Rank worker(BlockId block) const { return work_.workers[block.index()]; }

  [[nodiscard]] Rank server_of(const Tile& tile, Direction direction) const {
    const BlockTask& rows = task_of(tile.q_block);
    if (rows.segment == nullptr) return rows.servers[index_of(direction)];
    const std::int64_t key = task_of(tile.kv_block).first_position;
    for (const KeyTask& task : rows.segment->tasks[index_of(direction)]) {
      if (task.keys.contains(key)) return task.server;
    }
    fail_argument("distca: expected a task for every tile, found none for blocks {} and {}",
                  tile.q_block.value, tile.kv_block.value);
  }

  // All masks have the same pairs, so all of them use the tiles of the first.
  [[nodiscard]] std::vector<PlacedTile> place_tiles(Direction direction) const {
    std::vector<PlacedTile> placed;
    RareInterruptCheck check;
    for (const Tile& tile : tiles_) {
      check();
      placed.push_back(
          {tile.q_block, tile.kv_block, GroupId{0}, server_of(tile, direction), 0, tile.pairs});
    }
    return placed;
  }

  // Returns the nano-batch, counted in the order they run, that computes a tile.
  [[nodiscard]] std::int32_t order_of(const PlacedTile& tile, Direction direction) const {
    const std::int32_t nano_batch = task_of(tile.q_block).nano_batch;
    return direction == Direction::kForward ? nano_batch : num_nano_batches_ - 1 - nano_batch;
  }

  [[nodiscard]] bool travels(Kind kind, Direction direction) const {
    if (!occurs_in(kind, direction)) return false;
    const bool retained = !options_.resend && direction == Direction::kBackward;
    return !(retained && (kind == Kind::kQ || kind == Kind::kKv));
  }

  // Visits every unit that a tile needs from another device or, with `results`, makes for one.
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

  // Returns every unit once, with the first (inputs) or last (results) nano-batch that uses it.
  [[nodiscard]] std::vector<RemoteUse> uses(const std::vector<PlacedTile>& tiles,
                                            Direction direction, bool results) const {
    std::vector<RemoteUse> all;
    RareInterruptCheck check;
    for (const PlacedTile& tile : tiles) {
      check();
      for_each_use(tile, direction, results, [&](const RemoteUse& use) { all.push_back(use); });
    }
    std::sort(all.begin(), all.end(), [&](const RemoteUse& a, const RemoteUse& b) {
      check();
      if (a.unit() != b.unit()) return a.unit() < b.unit();
      return results ? a.order > b.order : a.order < b.order;
    });
    const auto last = std::unique(
        all.begin(), all.end(), [](const auto& a, const auto& b) { return a.unit() == b.unit(); });
    all.erase(last, all.end());
    return all;
  }

  // Returns the bytes of a unit as it travels, without LSE and delta.
  [[nodiscard]] std::int64_t bytes_of(const RemoteUse& use) const {
    return unit_bytes(use.kind, work_.blocks.num_tokens(use.block), workload_.shape, 1,
                      workload_.shape.dtype);
  }

  // Sets every use's parent: the owner, or with relays a server that uses the unit in the same
  // nano-batch. Returns true if any device is a relay.
  [[nodiscard]] bool choose_parents(std::vector<RemoteUse>& uses) const {
    for (RemoteUse& use : uses) use.parent = worker(use.block);
    if (options_.relays == nullptr) return false;
    RelayRouter router(*options_.relays);
    // Users of one unit in one nano-batch, in `uses`.
    std::map<std::tuple<Kind, BlockId, std::int32_t>, std::vector<std::size_t>> users_of;
    for (std::size_t i = 0; i < uses.size(); ++i) {
      users_of[{uses[i].kind, uses[i].block, uses[i].order}].push_back(i);
    }
    // An owner moves one copy in any case, and all copies of what does not pass through relays.
    for (const auto& [unit, users] : users_of) {
      const std::size_t copies = is_of_kv(std::get<0>(unit)) ? 1 : users.size();
      for (const std::size_t i : std::span(users).first(copies)) {
        router.add(uses[i].parent, uses[i].device, bytes_of(uses[i]));
      }
    }
    bool any = false;
    for (const auto& [unit, users] : users_of) {
      if (users.size() < 2 || !is_of_kv(std::get<0>(unit))) continue;
      std::map<Rank, std::size_t> at;
      std::vector<Rank> devices;
      for (const std::size_t i : users) {
        devices.push_back(uses[i].device);
        at[uses[i].device] = i;
      }
      const RemoteUse& first = uses[users.front()];
      const std::vector<Rank> parents = router.parents_of(first.parent, devices, bytes_of(first));
      for (std::size_t u = 0; u < users.size(); ++u) {
        uses[users[u]].parent = parents[u];
        const auto relay = at.find(parents[u]);
        if (relay == at.end()) continue;
        uses[relay->second].is_relay = true;
        any = true;
      }
    }
    return any;
  }

  // The tiles of every nano-batch that wait for no input of their own, in two stages of about equal
  // work: every device's later half, in whole query blocks, moves to the next stage.
  static void halve_free_stages(std::int32_t stages_of_nano_batch, std::vector<PlacedTile>& tiles) {
    std::map<std::pair<Rank, std::int32_t>, std::int64_t> pairs_left;  // of a device and stage
    const auto is_free = [&](const PlacedTile& t) { return t.stage % stages_of_nano_batch == 0; };
    for (const PlacedTile& tile : tiles) {
      if (is_free(tile)) pairs_left[{tile.device, tile.stage}] += tile.pairs;
    }
    auto half = pairs_left;
    for (auto& [at, pairs] : half) pairs /= 2;
    std::map<std::tuple<Rank, std::int32_t, BlockId>, bool> is_late;
    for (PlacedTile& tile : tiles) {
      if (!is_free(tile)) continue;
      const std::pair at{tile.device, tile.stage};
      const auto [late, is_new] =
          is_late.try_emplace({tile.device, tile.stage, tile.q_block}, pairs_left[at] <= half[at]);
      pairs_left[at] -= tile.pairs;
      if (late->second) ++tile.stage;
    }
  }

  [[nodiscard]] ArrangedDirection arrange(Direction direction) const {
    ArrangedDirection out;
    const std::vector<PlacedTile> tiles = place_tiles(direction);
    std::vector<RemoteUse> inputs = uses(tiles, direction, false);
    std::vector<RemoteUse> results = uses(tiles, direction, true);
    // A nano-batch has a stage for each hop of its inputs and one for the tiles that wait for them.
    const bool relayed_inputs = choose_parents(inputs);
    const bool relayed_results = choose_parents(results);
    const std::int32_t hops = relayed_inputs || relayed_results ? 2 : 1;
    const std::int32_t stages = hops + 1;
    // A tile that needs an input of its own nano-batch waits for the last stage. All others run
    // before, under the transfers.
    RareInterruptCheck check;
    for (PlacedTile tile : tiles) {
      check();
      const std::int32_t order = order_of(tile, direction);
      bool waits = false;
      for_each_use(tile, direction, false, [&](const RemoteUse& use) {
        const auto it = std::lower_bound(
            inputs.begin(), inputs.end(), use,
            [](const RemoteUse& a, const RemoteUse& b) { return a.unit() < b.unit(); });
        waits = waits || it->order == order;
      });
      tile.stage = stages * order + (waits ? hops : 0);
      out.tiles.push_back(tile);
    }
    if (hops == 2) halve_free_stages(stages, out.tiles);
    for (const RemoteUse& use : inputs) send_input(use, hops, relayed_inputs, out.transfers);
    for (const RemoteUse& use : results) send_result(use, hops, out.transfers);
    return out;
  }

  // An input travels under the last stage of the nano-batch before its own and the first stages of
  // its own. Data for a relay to pass on arrives one stage earlier; an owner sends all else with
  // the second hop, to have its port free for the first.
  void send_input(const RemoteUse& use, std::int32_t hops, bool relayed,
                  std::vector<Transfer>& out) const {
    const std::int32_t begin = (hops + 1) * use.order;
    const std::int32_t earliest = std::max(0, begin - 1);
    const std::int32_t need = begin + (use.is_relay ? hops - 1 : hops);
    const std::int32_t launch = relayed && !use.is_relay ? need - 1 : earliest;
    out.push_back({use.kind, use.block, GroupId{0}, use.parent, use.device, launch, need});
  }

  // A result travels under the next nano-batch. After the last nano-batch there is nothing to hide
  // it under, so that one stage is enough for a hop. A relay adds what it takes to its own result.
  void send_result(const RemoteUse& use, std::int32_t hops, std::vector<Transfer>& out) const {
    const std::int32_t begin = (hops + 1) * (use.order + 1);
    const bool is_last = use.order == num_nano_batches_ - 1;
    const std::int32_t end = begin + (is_last ? hops : hops + 1);
    const bool first_of_two = use.parent != worker(use.block);
    out.push_back({use.kind, use.block, GroupId{0}, use.device, use.parent,
                   use.is_relay ? begin + 1 : begin, first_of_two ? begin + 1 : end});
  }

  const Workload& workload_;
  const CaArrangeOptions& options_;
  std::int32_t num_nano_batches_;
  WorkBlocks work_;
  std::vector<Tile> tiles_;
  std::vector<BlockTask> block_tasks_;
  std::vector<std::vector<Segment>> segments_;  // one list for each document that is cut
};

}  // namespace

Arrangement arrange_tasks(const Workload& workload, const CaPlan& plan,
                          const CaArrangeOptions& options) {
  return DistcaArranger(workload, plan, options).run();
}

}  // namespace contextile
