#include "strategy/magi/magi_arranger.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/ranges.h"
#include "strategy/magi/casts.h"
#include "strategy/magi/dispatch.h"
#include "strategy/schedule/home.h"
#include "strategy/schedule/rank_layout.h"

namespace contextile {
namespace {

// The keys that every rank fetches for one mask, ascending, and the positions where blocks must end
// so that no rank needs a block in part.
struct FetchedKeys {
  std::vector<std::vector<StagedKeys>> of_rank;
  std::vector<std::int64_t> edges;
};

// Returns the keys that are on each rank from the start.
std::vector<std::vector<Range>> held_keys(const Workload& workload, std::span<const Range> chunks,
                                          std::span<const Rank> workers, std::int32_t num_ranks) {
  std::vector<std::vector<Range>> held(static_cast<std::size_t>(num_ranks));
  if (workload.home.empty()) {
    for (std::size_t c = 0; c < chunks.size(); ++c) held[workers[c].index()].push_back(chunks[c]);
  } else {
    for (const HomeRange& home : workload.home) held[home.owner.index()].push_back(home.tokens);
  }
  for (std::vector<Range>& ranges : held) ranges = merged(std::move(ranges));
  return held;
}

// Adds edges where the keys that one rank fetches begin, end or change their stage. Keys that it
// holds among those it needs add none, because blocks never mix owners.
void add_edges(std::span<const Range> needed, std::span<const StagedKeys> fetched,
               std::vector<std::int64_t>& edges) {
  auto range = needed.begin();
  for (std::size_t i = 0; i < fetched.size(); ++i) {
    const Range& tokens = fetched[i].tokens;
    while (range->end <= tokens.begin) ++range;
    if (i == 0 || fetched[i - 1].tokens.begin < range->begin ||
        fetched[i - 1].stage != fetched[i].stage) {
      edges.push_back(tokens.begin);
    }
    if (i + 1 == fetched.size() || fetched[i + 1].tokens.begin >= range->end) {
      edges.push_back(tokens.end);
    }
  }
}

FetchedKeys fetched_keys(const NamedMask& mask, std::span<const Range> chunks,
                         std::span<const Rank> workers, const std::vector<std::vector<Range>>& held,
                         const StageRule& rule) {
  std::vector<std::vector<Range>> needed(held.size());
  const std::vector<ChunkWork> work = chunk_work({&mask, 1}, chunks);
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    std::vector<Range>& of_rank = needed[workers[c].index()];
    of_rank.insert(of_rank.end(), work[c].keys.begin(), work[c].keys.end());
  }
  FetchedKeys fetched;
  for (std::size_t r = 0; r < held.size(); ++r) {
    needed[r] = merged(std::move(needed[r]));
    fetched.of_rank.push_back(cut_into_stages(keys_to_fetch(needed[r], held[r]), rule));
    add_edges(needed[r], fetched.of_rank.back(), fetched.edges);
  }
  return fetched;
}

// Cuts chunks into blocks at the edges of every mask.
WorkBlocks cut_blocks(const Workload& workload, std::span<const Range> chunks,
                      std::span<const Rank> workers, std::span<const FetchedKeys> fetched) {
  std::vector<std::int64_t> cuts;
  for (const FetchedKeys& of_mask : fetched) {
    cuts.insert(cuts.end(), of_mask.edges.begin(), of_mask.edges.end());
  }
  std::sort(cuts.begin(), cuts.end());
  WorkBlocks work;
  auto cut = cuts.begin();
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    for (Range rest = chunks[c]; !rest.empty();) {
      while (cut != cuts.end() && *cut <= rest.begin) ++cut;
      const std::int64_t end = cut == cuts.end() ? rest.end : std::min(*cut, rest.end);
      const Range piece{rest.begin, end};
      append_blocks(workload, {&piece, 1}, workers[c], std::nullopt, work);
      rest.begin = end;
    }
  }
  return work;
}

// Arranges local tiles in the first stage, then those of each portion of fetched keys in a stage of
// its own. If keys take two hops, local tiles have two stages, so that each hop has compute to hide
// under.
class ChunkArranger {
 public:
  ChunkArranger(const Workload& workload, const Cluster& cluster, std::span<const Range> chunks,
                std::span<const Rank> workers, const MagiOptions& options)
      : workload_(workload), cluster_(cluster), options_(options) {
    const StageRule rule{options.stages, options.keys_per_element, options.max_elements};
    const auto held = held_keys(workload, chunks, workers, cluster.num_devices());
    for (const NamedMask& mask : workload.masks) {
      fetched_.push_back(fetched_keys(mask, chunks, workers, held, rule));
    }
    work_ = cut_blocks(workload, chunks, workers, fetched_);
    owners_ = owners_of(workload, work_);
    // Queries that live elsewhere travel first: everything else happens one stage later.
    first_stage_ = owners_ == work_.workers ? 0 : 1;
    relays_ = options.hierarchical && cluster.nodes > 1;
    first_remote_stage_ = first_stage_ + (relays_ ? 2 : 1);
  }

  Arrangement run(bool backward) {
    Arrangement arrangement;
    ArrangedRound& round = arrangement.rounds.emplace_back();
    for (std::size_t m = 0; m < workload_.masks.size(); ++m) {
      const Mask& mask = workload_.masks[m].mask;
      round.masks.push_back(mask);
      std::vector<PlacedTile> tiles = place(TileIndex(mask, work_.blocks).tiles(), fetched_[m]);
      const Casts casts = casts_of(tiles);
      ArrangedMask& programs = round.programs.emplace_back();
      if (backward) {
        programs.backward = ArrangedDirection{tiles, transfers(casts, Direction::kBackward)};
      }
      programs.forward = ArrangedDirection{std::move(tiles), transfers(casts, Direction::kForward)};
    }
    round.blocks = std::move(work_.blocks);
    round.owners = std::move(owners_);
    return arrangement;
  }

 private:
  struct Receiver {
    Rank device;
    std::int32_t stage = 0;  // that needs the block
  };
  using Receivers = std::vector<Receiver>;  // by device
  // The keys that a mask's tiles need, in both directions, and the queries they use.
  struct Casts {
    std::vector<bool> attends;         // of each block: its queries have a tile
    std::vector<Receivers> receivers;  // of each block's keys
    std::size_t num_receivers = 0;
  };

  [[nodiscard]] Rank worker(BlockId b) const { return work_.workers[b.index()]; }
  [[nodiscard]] Rank owner(BlockId b) const { return owners_[b.index()]; }
  [[nodiscard]] std::int32_t node_of(Rank r) const { return r.value / cluster_.devices_per_node; }

  [[nodiscard]] std::vector<PlacedTile> place(const std::vector<Tile>& tiles,
                                              const FetchedKeys& fetched) const {
    std::vector<PlacedTile> placed;
    placed.reserve(tiles.size());
    for (const Tile& tile : tiles) {
      const Rank device = worker(tile.q_block);
      std::int32_t stage = first_stage_;
      if (owner(tile.kv_block) != device) {
        stage = first_remote_stage_ + stage_of(tile.kv_block, fetched.of_rank[device.index()]);
      }
      placed.push_back({tile.q_block, tile.kv_block, GroupId{0}, device, stage, tile.pairs});
    }
    if (relays_) split_local(placed);
    return placed;
  }

  [[nodiscard]] std::int32_t stage_of(BlockId block, std::span<const StagedKeys> fetched) const {
    const std::int64_t token = work_.blocks.ranges(block).front().begin;
    return std::partition_point(fetched.begin(), fetched.end(),
                                [&](const StagedKeys& k) { return k.tokens.end <= token; })
        ->stage;
  }

  // Moves the later half of every device's local pairs, in whole query blocks, to a second stage.
  void split_local(std::vector<PlacedTile>& tiles) const {
    const auto is_local = [&](const PlacedTile& t) { return t.stage == first_stage_; };
    std::vector<std::int64_t> pairs_left(static_cast<std::size_t>(cluster_.num_devices()));
    for (const PlacedTile& tile : tiles) {
      if (is_local(tile)) pairs_left[tile.device.index()] += tile.pairs;
    }
    std::vector<std::int64_t> half = pairs_left;
    for (std::int64_t& pairs : half) pairs /= 2;
    for (std::size_t t = 0; t < tiles.size();) {
      const BlockId q_block = tiles[t].q_block;
      const std::size_t device = tiles[t].device.index();
      const bool is_late = pairs_left[device] <= half[device];
      for (; t < tiles.size() && tiles[t].q_block == q_block; ++t) {
        if (!is_local(tiles[t])) continue;
        pairs_left[device] -= tiles[t].pairs;
        if (is_late) ++tiles[t].stage;
      }
    }
  }

  [[nodiscard]] Casts casts_of(const std::vector<PlacedTile>& tiles) const {
    const auto num_blocks = static_cast<std::size_t>(work_.blocks.num_blocks());
    const auto num_devices = static_cast<std::size_t>(cluster_.num_devices());
    Casts casts{std::vector<bool>(num_blocks), std::vector<Receivers>(num_blocks)};
    // [block][device]: already a receiver. A device needs a block in one stage only.
    std::vector<bool> is_cast(num_blocks * num_devices);
    for (const PlacedTile& tile : tiles) {
      casts.attends[tile.q_block.index()] = true;
      if (owner(tile.kv_block) == tile.device) continue;
      const std::size_t at = tile.kv_block.index() * num_devices + tile.device.index();
      if (is_cast[at]) continue;
      is_cast[at] = true;
      casts.receivers[tile.kv_block.index()].push_back({tile.device, tile.stage});
      ++casts.num_receivers;
    }
    for (Receivers& receivers : casts.receivers) {
      std::ranges::sort(receivers, {}, &Receiver::device);
    }
    return casts;
  }

  [[nodiscard]] std::vector<Transfer> transfers(const Casts& casts, Direction direction) const {
    std::vector<Transfer> out;
    out.reserve(casts.num_receivers * (direction == Direction::kBackward ? 2 : 1));
    for (std::int32_t b = 0; b < work_.blocks.num_blocks(); ++b) {
      const Receivers& receivers = casts.receivers[static_cast<std::size_t>(b)];
      if (receivers.empty()) continue;
      cast(BlockId{b}, receivers, out);
      if (direction == Direction::kBackward) reduce(BlockId{b}, receivers, out);
    }
    move_queries(casts.attends, direction, first_remote_stage_ + options_.stages, out);
    return out;
  }

  // Groups the receivers of a block by the device that passes it on to them. On another node than
  // the owner's, that is the device with the owner's place in the node. Receivers that the owner
  // serves are under kInvalidRank.
  [[nodiscard]] std::map<Rank, Receivers> by_relay(BlockId block,
                                                   const Receivers& receivers) const {
    std::map<Rank, Receivers> result;
    if (!relays_) {
      result.emplace(kInvalidRank, receivers);
      return result;
    }
    const Rank from = owner(block);
    for (const auto& [device, stage] : receivers) {
      Rank relay = kInvalidRank;
      if (node_of(device) != node_of(from)) {
        relay = Rank{node_of(device) * cluster_.devices_per_node +
                     from.value % cluster_.devices_per_node};
      }
      result[relay].push_back({device, stage});
    }
    return result;
  }

  // Group-cast: sends the block once to each device that needs it, under the stage before, or all
  // under the local tiles. A relay has it one stage before the first stage that needs it on its
  // node.
  void cast(BlockId block, const Receivers& receivers, std::vector<Transfer>& out) const {
    const bool all_at_once = options_.launch == CastLaunch::kAll;
    const auto send = [&](Rank src, Rank dst, std::int32_t earliest, std::int32_t need) {
      out.push_back(
          {Kind::kKv, block, GroupId{0}, src, dst, all_at_once ? earliest : need - 1, need});
    };
    for (const auto& [relay, served] : by_relay(block, receivers)) {
      Rank src = owner(block);
      std::int32_t at_src = first_stage_;
      if (relay.valid()) {
        std::int32_t first_need = served.front().stage;
        for (const auto& [device, stage] : served) first_need = std::min(first_need, stage);
        at_src = first_need - 1;
        send(src, relay, first_stage_, at_src);
        src = relay;
      }
      for (const auto& [device, stage] : served) {
        if (device != src) send(src, device, at_src, stage);
      }
    }
  }

  // Group-reduce: sends a stage's dKV home under the stage after. A relay first adds up the shares
  // that its node has of a stage.
  void reduce(BlockId block, const Receivers& receivers, std::vector<Transfer>& out) const {
    const auto send = [&](Rank src, Rank dst, std::int32_t launch) {
      out.push_back({Kind::kDkv, block, GroupId{0}, src, dst, launch, launch + 1});
    };
    for (const auto& [relay, served] : by_relay(block, receivers)) {
      const Rank dst = relay.valid() ? relay : owner(block);
      std::set<std::int32_t> hops;  // launch stages of the sums that the relay has gathered
      for (const auto& [device, stage] : served) {
        if (device == dst) continue;
        send(device, dst, stage + 1);
        hops.insert(stage + 2);
      }
      if (!relay.valid()) continue;
      const auto own = std::ranges::find(served, relay, &Receiver::device);
      if (own != served.end() && !hops.contains(own->stage + 1)) hops.insert(own->stage + 2);
      for (const std::int32_t launch : hops) send(relay, owner(block), launch);
    }
  }

  // Moves queries of blocks whose home is elsewhere, with their gradients: inputs before
  // everything, results after the last tiles.
  void move_queries(const std::vector<bool>& attends, Direction direction, std::int32_t end,
                    std::vector<Transfer>& out) const {
    for (std::int32_t b = 0; b < work_.blocks.num_blocks(); ++b) {
      const BlockId block{b};
      if (owner(block) == worker(block) || !attends[block.index()]) continue;
      const auto in = [&](Kind kind) {
        out.push_back({kind, block, GroupId{0}, owner(block), worker(block), 0, 1});
      };
      const auto back = [&](Kind kind) {
        out.push_back({kind, block, GroupId{0}, worker(block), owner(block), end, end + 1});
      };
      in(Kind::kQ);
      if (direction == Direction::kForward) {
        back(Kind::kO);
      } else {
        in(Kind::kDo);
        back(Kind::kDq);
      }
    }
  }

  const Workload& workload_;
  const Cluster& cluster_;
  const MagiOptions& options_;
  std::vector<FetchedKeys> fetched_;  // of every mask
  WorkBlocks work_;
  std::vector<Rank> owners_;
  bool relays_ = false;
  std::int32_t first_stage_ = 0;
  std::int32_t first_remote_stage_ = 1;
};

}  // namespace

Arrangement arrange_chunks(const Workload& workload, const Cluster& cluster,
                           std::span<const Range> chunks, std::span<const Rank> workers,
                           const MagiOptions& options, bool backward) {
  return ChunkArranger(workload, cluster, chunks, workers, options).run(backward);
}

}  // namespace contextile
