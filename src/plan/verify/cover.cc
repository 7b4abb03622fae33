// Checks the owners of blocks, and that every tile is computed exactly once.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "plan/verify/facts.h"

namespace contextile {
namespace {

void check_local_blocks(const RoundFacts& facts, Rank rank, std::vector<std::int32_t>& holder,
                        Findings& findings) {
  for (const BlockId block : facts.round.devices[rank.index()].local_blocks) {
    const PlanPlace place = facts.place.at_rank(rank.value);
    if (facts.round.owners[block.index()] != rank) {
      findings.violation(place, "local block {} is owned by {}", block.value,
                         facts.round.owners[block.index()].value);
      continue;
    }
    if (holder[block.index()] >= 0) {
      findings.violation(place, "block {} is listed twice in local_blocks", block.value);
    }
    holder[block.index()] = rank.value;
  }
}

void check_home(const RoundFacts& facts, Findings& findings) {
  const std::vector<HomeRange>& home = facts.plan.home;
  for (std::int32_t b = 0; b < facts.round.blocks.num_blocks(); ++b) {
    const Rank owner = facts.round.owners[static_cast<std::size_t>(b)];
    for (const Range range : facts.round.blocks.ranges(BlockId{b})) {
      auto at = std::ranges::upper_bound(home, range.begin, {},
                                         [](const HomeRange& h) { return h.tokens.end; });
      for (; at != home.end() && at->tokens.begin < range.end; ++at) {
        if (at->owner == owner) continue;
        findings.violation(facts.place, "block {}: its owner {} is not the home {} of token {}", b,
                           owner.value, at->owner.value, std::max(at->tokens.begin, range.begin));
        break;
      }
    }
  }
}

// A list of all head groups' tiles: those of each block pair together, in the order of the pairs.
class TilesOfGroups {
 public:
  TilesOfGroups(const PlanRound& round, std::span<const Tile> tiles)
      : groups_(round.block_head_groups.empty() ? static_cast<std::size_t>(round.head_groups) : 0),
        size_(tiles.size() * groups_) {
    if (groups_ > 0) return;
    first_.reserve(tiles.size() + 1);
    first_.push_back(0);
    for (const Tile& tile : tiles) {
      first_.push_back(first_.back() + static_cast<std::size_t>(round.groups_of(tile.q_block)));
    }
    size_ = first_.back();
  }

  [[nodiscard]] std::size_t size() const { return size_; }
  // The index at which the tiles of the pair begin.
  [[nodiscard]] std::size_t first(std::size_t pair) const {
    return groups_ > 0 ? pair * groups_ : first_[pair];
  }

 private:
  std::size_t groups_;  // of every pair; 0: they differ
  std::size_t size_;
  std::vector<std::size_t> first_;  // if they differ
};

}  // namespace

MaskFacts::MaskFacts(TileTable tiles, std::int32_t num_blocks)
    : table_(std::move(tiles)),
      num_of_q_block_(static_cast<std::size_t>(num_blocks)),
      num_of_kv_block_(num_of_q_block_.size()) {
  for (const Tile& tile : table_.tiles()) {
    ++num_of_q_block_[tile.q_block.index()];
    ++num_of_kv_block_[tile.kv_block.index()];
    num_pairs_ += tile.pairs;
  }
}

std::optional<MaskFacts> facts_of_mask(const RoundFacts& facts, std::size_t mask,
                                       const PlanPlace& place, Findings& findings) {
  const PlanRound& round = facts.round;
  const std::int64_t num_listed = round.most_tiles(mask);
  std::optional<TileTable> tiles = tiles_beside(round.masks[mask].mask, round.blocks, num_listed);
  if (!tiles) {
    findings.cause(place,
                   "{} tiles are computed, the mask has far more, or blocks of so many ranges that "
                   "they cannot be compared",
                   num_listed);
    return std::nullopt;
  }
  return MaskFacts(std::move(*tiles), round.blocks.num_blocks());
}

void check_ownership(const RoundFacts& facts, Findings& findings) {
  const PlanRound& round = facts.round;
  std::vector<std::int32_t> holder(round.owners.size(), -1);
  std::vector<std::int64_t> owned_tokens(round.devices.size());
  for (std::int32_t r = 0; r < facts.num_ranks(); ++r) {
    check_local_blocks(facts, Rank{r}, holder, findings);
  }
  for (std::size_t b = 0; b < round.owners.size(); ++b) {
    const BlockId block{static_cast<std::int32_t>(b)};
    owned_tokens[round.owners[b].index()] += round.blocks.num_tokens(block);
    if (holder[b] >= 0) continue;
    findings.violation(facts.place.at_rank(round.owners[b].value),
                       "block {} is not in the local_blocks of its owner", block.value);
  }
  for (std::size_t r = 0; round.limits.tokens && r < owned_tokens.size(); ++r) {
    if (owned_tokens[r] <= *round.limits.tokens) continue;
    findings.violation(facts.place.at_rank(static_cast<std::int64_t>(r)),
                       "owns {} tokens, the limit is {}", owned_tokens[r], *round.limits.tokens);
  }
  if (!facts.plan.home.empty()) check_home(facts, findings);
}

void check_mask_facts(const RoundFacts& facts, const MaskFacts& mask, std::int64_t mask_pairs,
                      const PlanPlace& place, Findings& findings) {
  const Blocking& blocks = facts.round.blocks;
  if (mask.num_pairs() != mask_pairs) {
    findings.violation(place, "{} of {} pairs are on tokens outside the round",
                       mask_pairs - mask.num_pairs(), mask_pairs);
  }
  for (const Tile& tile : mask.tiles()) {
    const PlanRound& round = facts.round;
    if (round.groups_of(tile.q_block) != round.groups_of(tile.kv_block)) {
      findings.violation(place, "tile ({}, {}): its blocks have {} and {} head groups",
                         tile.q_block.value, tile.kv_block.value, round.groups_of(tile.q_block),
                         round.groups_of(tile.kv_block));
    }
    if (blocks.role(tile.q_block) == Role::kKvOnly) {
      findings.violation(place, "tile ({}, {}): block {} has no queries", tile.q_block.value,
                         tile.kv_block.value, tile.q_block.value);
    }
    if (blocks.role(tile.kv_block) == Role::kQOnly) {
      findings.violation(place, "tile ({}, {}): block {} has no keys", tile.q_block.value,
                         tile.kv_block.value, tile.kv_block.value);
    }
  }
}

bool check_cover(const RoundFacts& facts, const MaskFacts& mask, const DirectionPrograms& programs,
                 const PlanPlace& place, Findings& findings) {
  const TilesOfGroups wanted(facts.round, mask.tiles());
  const std::size_t num_wanted = wanted.size();
  const auto num_listed = static_cast<std::size_t>(
      facts.round.num_tiles(static_cast<std::size_t>(place.mask), *place.direction));
  if (num_wanted > 4 * num_listed + (std::size_t{1} << 20)) {
    findings.cause(place, "{} tiles are computed, the mask has {}", num_listed, num_wanted);
    return false;  // naming each would take too much
  }
  bool once = true;
  std::vector<std::int32_t> times(num_wanted);
  const auto check_tile = [&](const TileOp& tile, const PlanPlace& at) {
    const std::int64_t found = mask.table().find(tile.q_block, tile.kv_block);
    if (found < 0) {
      once = false;
      findings.violation(at, "tile ({}, {}) of group {} has no pair of the mask",
                         tile.q_block.value, tile.kv_block.value, tile.group.value);
      return;
    }
    const auto n = static_cast<std::size_t>(found);
    if (mask.tiles()[n].pairs != tile.pairs) {
      findings.violation(at, "tile ({}, {}) of group {} says {} pairs, the mask has {}",
                         tile.q_block.value, tile.kv_block.value, tile.group.value, tile.pairs,
                         mask.tiles()[n].pairs);
    }
    ++times[wanted.first(n) + tile.group.index()];
  };
  for (std::size_t r = 0; r < programs.size(); ++r) {
    const std::vector<Instruction>& instructions = programs[r]->instructions;
    for (std::size_t n = 0; n < instructions.size(); ++n) {
      const auto* attention = std::get_if<AttentionOp>(&instructions[n]);
      if (attention == nullptr) continue;
      const PlanPlace at =
          place.at_rank(static_cast<std::int64_t>(r))
              .at_instruction(static_cast<std::int64_t>(n), op_name(instructions[n]));
      for (const TileOp& tile : attention->tiles) check_tile(tile, at);
    }
  }
  for (std::size_t n = 0; n < mask.tiles().size(); ++n) {
    const Tile& tile = mask.tiles()[n];
    const std::size_t first = wanted.first(n);
    for (std::size_t i = first; i < wanted.first(n + 1); ++i) {
      if (times[i] == 1) continue;
      once = false;
      if (times[i] == 0) {
        findings.cause(place, "tile ({}, {}) of group {} is never computed", tile.q_block.value,
                       tile.kv_block.value, i - first);
      } else {
        findings.cause(place, "tile ({}, {}) of group {} is computed {} times", tile.q_block.value,
                       tile.kv_block.value, i - first, times[i]);
      }
    }
  }
  return once;
}

}  // namespace contextile
