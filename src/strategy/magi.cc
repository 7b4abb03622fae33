#include "strategy/magi.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/strategies.h"
#include "schedule/home.h"
#include "schedule/rank_layout.h"
#include "strategy/typed_strategy.h"

namespace contextile {
namespace {

// Chunks of the packed batch and the rank that works on each.
struct Dispatch {
  std::vector<Range> chunks;
  std::vector<Rank> workers;
};

// Attended pairs of every chunk's rows, all masks weighted by their layers.
std::vector<std::int64_t> chunk_areas(const Workload& workload, std::span<const Range> chunks) {
  Blocking rows;
  for (const Range& chunk : chunks) rows.add(chunk);
  std::vector<std::int64_t> areas(chunks.size());
  for (const NamedMask& mask : workload.masks) {
    for (const Tile& tile : TileIndex(mask.mask, rows).tiles()) {
      areas[tile.q_block.index()] += tile.pairs * mask.layers;
    }
  }
  return areas;
}

// Equal chunk counts: chunks by area descending (ties by position), each to the least loaded rank
// (ties by rank) that still has a place.
Dispatch dispatch_chunks(const Workload& workload, std::int32_t num_ranks,
                         std::int64_t chunk_tokens) {
  Dispatch dispatch;
  for (std::int64_t begin = 0; begin < workload.num_tokens(); begin += chunk_tokens) {
    dispatch.chunks.push_back({begin, std::min(begin + chunk_tokens, workload.num_tokens())});
  }
  const std::size_t num_chunks = dispatch.chunks.size();
  const std::vector<std::int64_t> areas = chunk_areas(workload, dispatch.chunks);
  std::vector<std::size_t> order(num_chunks);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return areas[a] > areas[b]; });
  const auto ranks = static_cast<std::size_t>(num_ranks);
  const std::size_t places = (num_chunks + ranks - 1) / ranks;
  using Load = std::pair<std::int64_t, std::int32_t>;  // (area, rank)
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least;
  for (std::int32_t r = 0; r < num_ranks; ++r) least.emplace(0, r);
  std::vector<std::size_t> taken(ranks);
  dispatch.workers.resize(num_chunks);
  for (const std::size_t c : order) {
    const auto [load, rank] = least.top();
    least.pop();
    dispatch.workers[c] = Rank{rank};
    if (++taken[static_cast<std::size_t>(rank)] < places) least.emplace(load + areas[c], rank);
  }
  return dispatch;
}

class MagiArranger {
 public:
  MagiArranger(const Workload& workload, const Cluster& cluster, const MagiOptions& options)
      : workload_(workload), num_ranks_(cluster.num_devices()), stages_(options.stages) {
    const Dispatch dispatch = dispatch_chunks(workload, num_ranks_, options.chunk);
    for (std::size_t c = 0; c < dispatch.chunks.size(); ++c) {
      append_blocks(workload, {&dispatch.chunks[c], 1}, dispatch.workers[c], std::nullopt, work_);
    }
    owners_ = owners_of(workload, work_);
    // Queries that live elsewhere travel first: everything else happens one stage later.
    first_stage_ = owners_ == work_.workers ? 0 : 1;
  }

  Arrangement run(bool backward) {
    Arrangement arrangement;
    ArrangedRound& round = arrangement.rounds.emplace_back();
    for (const NamedMask& mask : workload_.masks) {
      round.masks.push_back(mask.mask);
      const std::vector<Tile> tiles = TileIndex(mask.mask, work_.blocks).tiles();
      const std::vector<std::int32_t> stage_of_tile = assign_stages(tiles);
      ArrangedMask& programs = round.programs.emplace_back();
      programs.forward = arrange(tiles, stage_of_tile, Direction::kForward);
      if (backward) programs.backward = arrange(tiles, stage_of_tile, Direction::kBackward);
    }
    round.blocks = std::move(work_.blocks);
    round.owners = std::move(owners_);
    return arrangement;
  }

 private:
  [[nodiscard]] Rank worker(BlockId b) const { return work_.workers[b.index()]; }
  [[nodiscard]] Rank owner(BlockId b) const { return owners_[b.index()]; }

  // Local keys are stage 0. A rank's remote key blocks, by index, are cut into `stages` runs of
  // about equal tokens: stages 1, 2, ….
  [[nodiscard]] std::vector<std::int32_t> assign_stages(const std::vector<Tile>& tiles) const {
    std::vector<std::vector<std::int32_t>> remote(static_cast<std::size_t>(num_ranks_));
    for (const Tile& tile : tiles) {
      if (owner(tile.kv_block) != worker(tile.q_block)) {
        remote[worker(tile.q_block).index()].push_back(tile.kv_block.value);
      }
    }
    std::vector<std::map<std::int32_t, std::int32_t>> stage_of(remote.size());
    for (std::size_t r = 0; r < remote.size(); ++r) {
      std::sort(remote[r].begin(), remote[r].end());
      remote[r].erase(std::unique(remote[r].begin(), remote[r].end()), remote[r].end());
      std::int64_t total_tokens = 0;
      for (const std::int32_t b : remote[r]) total_tokens += work_.blocks.num_tokens(BlockId{b});
      std::int64_t before_tokens = 0;
      for (const std::int32_t b : remote[r]) {
        stage_of[r][b] = 1 + static_cast<std::int32_t>(before_tokens * stages_ / total_tokens);
        before_tokens += work_.blocks.num_tokens(BlockId{b});
      }
    }
    std::vector<std::int32_t> stages;
    stages.reserve(tiles.size());
    for (const Tile& tile : tiles) {
      const bool local = owner(tile.kv_block) == worker(tile.q_block);
      stages.push_back(local ? 0 : stage_of[worker(tile.q_block).index()].at(tile.kv_block.value));
    }
    return stages;
  }

  // Queries (and what belongs to them) of blocks whose home is elsewhere: in before everything,
  // results out after everything.
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

  // Group-cast: each needed key block once to each rank, under the stage before. Group-reduce: its
  // dKV home under the stage after.
  ArrangedDirection arrange(const std::vector<Tile>& tiles,
                            const std::vector<std::int32_t>& stage_of_tile,
                            Direction direction) const {
    ArrangedDirection out;
    out.tiles.reserve(tiles.size());
    std::vector<bool> attends(static_cast<std::size_t>(work_.blocks.num_blocks()));
    std::map<std::pair<BlockId, Rank>, std::int32_t> casts;  // (key block, rank) → stage
    for (std::size_t t = 0; t < tiles.size(); ++t) {
      const Tile& tile = tiles[t];
      const Rank device = worker(tile.q_block);
      const std::int32_t stage = first_stage_ + stage_of_tile[t];
      out.tiles.push_back({tile.q_block, tile.kv_block, GroupId{0}, device, stage, tile.pairs});
      attends[tile.q_block.index()] = true;
      if (owner(tile.kv_block) != device) casts[{tile.kv_block, device}] = stage;
    }
    for (const auto& [cast, stage] : casts) {
      const auto& [block, device] = cast;
      out.transfers.push_back(
          {Kind::kKv, block, GroupId{0}, owner(block), device, stage - 1, stage});
      if (direction == Direction::kBackward) {
        out.transfers.push_back(
            {Kind::kDkv, block, GroupId{0}, device, owner(block), stage + 1, stage + 2});
      }
    }
    move_queries(attends, direction, first_stage_ + stages_ + 1, out.transfers);
    return out;
  }

  const Workload& workload_;
  std::int32_t num_ranks_;
  std::int32_t stages_;
  std::int32_t first_stage_ = 0;
  WorkBlocks work_;
  std::vector<Rank> owners_;
};

// Source: MagiAttention (SandAI, 2025): dispatch solver, group-cast / group-reduce, multi-stage
// overlap. Steps: local tiles first, then `stages` portions of remote KV, each fetched under the
// one before; backward the same, each portion's dKV reduced at its owner under the next. Bytes:
// exactly the needed key blocks, once per (block, rank); backward twice that (dKV in fp32). Memory:
// all needed KV of two portions. Loses where one rank's chunks lie in many long documents: then
// nearly all KV is needed everywhere.
class MagiStrategy : public TypedStrategy<MagiOptions> {
 public:
  MagiStrategy()
      : TypedStrategy({"magi",
                       "MagiAttention: equal chunk counts by area, exactly the needed KV, "
                       "multi-stage overlap",
                       PartialWire::kF32},
                      option_table()) {}

 protected:
  [[nodiscard]] Arrangement arrange_with(const Workload& workload, const Cluster& cluster,
                                         const StrategyRequest& request,
                                         MagiOptions& options) const override {
    if (request.block_size && !request.options.contains("chunk"))
      options.chunk = *request.block_size;
    CONTEXTILE_CHECK(options.chunk > 0,
                     "block size: expected a positive number of tokens, found {}", options.chunk);
    return MagiArranger(workload, cluster, options).run(request.backward);
  }

 private:
  static OptionTable<MagiOptions> option_table() {
    OptionTable<MagiOptions> table;
    return table
        .integer("chunk", &MagiOptions::chunk, 1, std::int64_t{1} << 32,
                 "tokens of a dispatch chunk (also set by the block size)")
        .integer("stages", &MagiOptions::stages, 1, 1 << 10,
                 "portions of remote KV that overlap with compute");
  }
};

const MagiStrategy& magi() {
  static const MagiStrategy kStrategy;
  return kStrategy;
}

}  // namespace

const Strategy& magi_strategy() { return magi(); }

StrategyChoice choice_of(const MagiOptions& options) { return magi().choice(options); }

}  // namespace contextile
