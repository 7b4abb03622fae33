#include "planner/auto/token_leveling.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/extend/partition.h"
#include "strategy/schedule/token_alignment.h"

namespace contextile {
namespace {

// The last tokens of a block, with their new owner.
struct Piece {
  std::int64_t tokens = 0;
  Rank owner;
};

// The tokens that devices own, and the pieces that leave their owners.
class Leveling {
 public:
  Leveling(const Cluster& cluster, const Placement& placement, const LevelRule& rule)
      : cluster_(cluster),
        blocks_(placement.priced->tiles.work.blocks),
        owner_(placement.partition.owner),
        tokens_(IdRange<Rank>{cluster.num_devices()}, 0),
        most_(IdRange<Rank>{cluster.num_devices()}, rule.cap),
        kept_(IdRange<BlockId>(blocks_.num_blocks()), 0),
        pieces_(IdRange<BlockId>(blocks_.num_blocks())) {
    for (const BlockId b : IdRange<BlockId>(blocks_.num_blocks())) {
      kept_[b] = blocks_.num_tokens(b);
      tokens_[owner_[b]] += kept_[b];
    }
    if (rule.alignment == nullptr) return;
    const auto cap = rule.cap == 0 ? std::nullopt : std::optional(rule.cap);
    most_ = aligned_tokens(tokens_, *rule.alignment, cap);
  }

  [[nodiscard]] bool is_level() const {
    return std::ranges::all_of(tokens_.ids(), [&](Rank r) { return tokens_[r] <= most_[r]; });
  }
  void run(const Placement& placement) {
    count_users(placement);
    for (const Rank rank : IdRange<Rank>(cluster_.num_devices())) unload(rank);
  }
  [[nodiscard]] const std::vector<Piece>& pieces(BlockId block) const { return pieces_[block]; }
  [[nodiscard]] std::int64_t kept(BlockId block) const { return kept_[block]; }

 private:
  // Devices that compute with a block's queries or keys. More of them get its pieces in one more
  // message each.
  void count_users(const Placement& placement) {
    const std::vector<Tile>& tiles = placement.priced->tiles.all_tiles;
    const auto groups = static_cast<std::size_t>(placement.choice.head_groups);
    std::vector<std::pair<BlockId, Rank>> uses;
    for (std::size_t t = 0; t < placement.partition.device.size(); ++t) {
      const Rank device = placement.partition.device[TileId{static_cast<std::int32_t>(t)}];
      const Tile& tile = tiles[t / groups];
      uses.emplace_back(tile.q_block, device);
      uses.emplace_back(tile.kv_block, device);
    }
    std::ranges::sort(uses);
    uses.erase(std::unique(uses.begin(), uses.end()), uses.end());
    users_.assign(static_cast<std::size_t>(blocks_.num_blocks()), 0);
    for (const auto& [block, device] : uses) ++users_[block.index()];
  }

  void unload(Rank rank) {
    if (tokens_[rank] <= most_[rank]) return;
    std::vector<BlockId> mine;
    for (const BlockId b : IdRange<BlockId>(blocks_.num_blocks())) {
      if (owner_[b] == rank) mine.push_back(b);
    }
    std::ranges::stable_sort(
        mine, {}, [&](BlockId b) { return std::pair(users_[b.index()], -blocks_.num_tokens(b)); });
    for (const BlockId block : mine) {
      while (tokens_[rank] > most_[rank] && kept_[block] > 0) {
        const Rank to = with_most_room(rank);
        const std::int64_t piece = std::min({tokens_[rank] - most_[rank], room(to), kept_[block]});
        kept_[block] -= piece;
        pieces_[block].push_back({piece, to});
        tokens_[rank] -= piece;
        tokens_[to] += piece;
      }
    }
  }
  [[nodiscard]] std::int64_t room(Rank rank) const { return most_[rank] - tokens_[rank]; }
  // One of the same node if one there has room.
  [[nodiscard]] Rank with_most_room(Rank from) const {
    const auto key = [&](Rank rank) {
      return std::tuple(room(rank) <= 0, !cluster_.same_node(rank, from), -room(rank));
    };
    Rank best = from;
    for (const Rank rank : IdRange<Rank>(cluster_.num_devices())) {
      if (rank != from && (best == from || key(rank) < key(best))) best = rank;
    }
    return best;
  }

  const Cluster& cluster_;
  const Blocking& blocks_;
  const IdVector<BlockId, Rank>& owner_;
  IdVector<Rank, std::int64_t> tokens_;
  IdVector<Rank, std::int64_t> most_;
  IdVector<BlockId, std::int64_t> kept_;
  IdVector<BlockId, std::vector<Piece>> pieces_;  // the one at the end of the block first
  std::vector<std::int32_t> users_;
};

}  // namespace

std::optional<Placement> level_tokens(const Workload& workload, const Cluster& cluster,
                                      const Placement& placement, const LevelRule& rule,
                                      bool backward) {
  Leveling leveling(cluster, placement, rule);
  if (leveling.is_level()) return std::nullopt;
  CONTEXTILE_CHECK(
      rule.alignment != nullptr || rule.cap * cluster.num_devices() >= workload.num_tokens(),
      "leveling: expected a cap of at least the mean of {} tokens on {} devices, found "
      "{}",
      workload.num_tokens(), cluster.num_devices(), rule.cap);
  leveling.run(placement);
  const PricedTiles& before = *placement.priced;
  const Blocking& blocks = before.tiles.work.blocks;
  Placement leveled;
  leveled.choice = placement.choice;
  leveled.estimate_us = placement.estimate_us;
  Blocking cut;
  std::vector<BlockId> from;  // of every new block
  for (const BlockId b : IdRange<BlockId>(blocks.num_blocks())) {
    Range rest = blocks.ranges(b).front();
    const auto add = [&](std::int64_t tokens, Rank owner) {
      if (tokens == 0) return;
      cut.add({rest.begin, rest.begin + tokens}, blocks.role(b));
      rest.begin += tokens;
      from.push_back(b);
      leveled.partition.owner.push_back(owner);
    };
    add(leveling.kept(b), placement.partition.owner[b]);
    for (auto piece = leveling.pieces(b).rbegin(); piece != leveling.pieces(b).rend(); ++piece) {
      add(piece->tokens, piece->owner);
    }
  }
  leveled.priced = std::make_shared<const PricedTiles>(
      price_tiles(workload, cluster, cut_into_tiles(workload, std::move(cut)), before.block_size,
                  backward, before.whole_rows));
  for (const BlockId b : from) {
    if (!placement.places.empty()) leveled.places.push_back(placement.places[b.index()]);
    if (!placement.block_head_groups.empty()) {
      leveled.block_head_groups.push_back(placement.block_head_groups[b.index()]);
    }
  }
  const std::vector<Tile>& old_tiles = before.tiles.all_tiles;
  const auto groups = static_cast<std::size_t>(placement.choice.head_groups);
  for (const Tile& tile : leveled.priced->tiles.all_tiles) {
    const std::pair parent{from[tile.q_block.index()], from[tile.kv_block.index()]};
    const auto found = std::ranges::lower_bound(
        old_tiles, parent, {}, [](const Tile& t) { return std::pair(t.q_block, t.kv_block); });
    const auto first = static_cast<std::size_t>(found - old_tiles.begin()) * groups;
    for (std::size_t g = 0; g < groups; ++g) {
      leveled.partition.device.push_back(
          placement.partition.device[TileId{static_cast<std::int32_t>(first + g)}]);
    }
  }
  return leveled;
}

}  // namespace contextile
