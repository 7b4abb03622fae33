// Facts about a round and a mask that verification collects before it examines a program.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "batch/mask/tile_table.h"
#include "contextile/plan.h"
#include "plan/verify/findings.h"

namespace contextile {

using UnitId = Id<struct UnitTag>;  // (block, group) of one round: block · head_groups + group

// A round whose blocks, owners, groups and local blocks are in range: ids may be used as indices.
struct RoundFacts {
  const Plan& plan;
  const PlanRound& round;
  PlanPlace place;

  [[nodiscard]] std::int32_t num_ranks() const {
    return static_cast<std::int32_t>(round.devices.size());
  }
  [[nodiscard]] bool has_unit(BlockId block, GroupId group) const {
    return block.valid() && block.value < round.blocks.num_blocks() && group.valid() &&
           group.value < round.groups_of(block);
  }
  [[nodiscard]] UnitId unit(BlockId block, GroupId group) const {
    return UnitId{block.value * round.head_groups + group.value};
  }
  [[nodiscard]] BlockId block_of(UnitId unit) const {
    return BlockId{unit.value / round.head_groups};
  }
  [[nodiscard]] GroupId group_of(UnitId unit) const {
    return GroupId{unit.value % round.head_groups};
  }
  [[nodiscard]] std::int64_t tokens_of(UnitId unit) const {
    return round.blocks.num_tokens(block_of(unit));
  }
  [[nodiscard]] std::int32_t groups_of(UnitId unit) const {
    return round.groups_of(block_of(unit));
  }
  [[nodiscard]] std::int64_t num_owned_slots(Rank rank) const {
    return static_cast<std::int64_t>(round.devices[rank.index()].local_blocks.size()) *
           round.head_groups;
  }
  // The unit that an owned slot holds; none if its block has fewer groups.
  [[nodiscard]] UnitId owned_unit(Rank rank, SlotId slot) const {
    const auto& local = round.devices[rank.index()].local_blocks;
    const BlockId block = local[slot.index() / static_cast<std::size_t>(round.head_groups)];
    const GroupId group{slot.value % round.head_groups};
    return has_unit(block, group) ? unit(block, group) : UnitId{};
  }
};

// The tiles a mask demands of every direction that computes it.
class MaskFacts {
 public:
  MaskFacts(TileTable tiles, std::int32_t num_blocks);

  [[nodiscard]] const TileTable& table() const { return table_; }
  [[nodiscard]] std::span<const Tile> tiles() const { return table_.tiles(); }
  // Number of tiles that end in one group's result unit of the block.
  [[nodiscard]] std::int32_t num_tiles_of(Kind result, BlockId block) const {
    return (is_of_kv(result) ? num_of_kv_block_ : num_of_q_block_)[block.index()];
  }
  [[nodiscard]] std::int64_t num_pairs() const { return num_pairs_; }

 private:
  TileTable table_;
  std::vector<std::int32_t> num_of_q_block_;
  std::vector<std::int32_t> num_of_kv_block_;
  std::int64_t num_pairs_ = 0;
};

// The programs of one direction of one mask, by rank; none is null.
using DirectionPrograms = std::vector<const Program*>;

// ------------------------------------------------------------------------- structure (ranges)
// Each reports its findings. It returns false if a broken value would be used as an index or as a
// size, so that nothing that depends on it can be examined.

[[nodiscard]] bool check_plan_structure(const Plan& plan, Findings& findings);
// Checks blocks, owners, masks and the number of programs of one round.
[[nodiscard]] bool check_round_structure(const RoundFacts& facts, Findings& findings);
[[nodiscard]] bool check_program_structure(const RoundFacts& facts, const Program& program,
                                           Direction direction, const PlanPlace& place,
                                           Findings& findings);

// Returns the tiles that one mask of the round requires. Returns nothing, and reports a finding, if
// there are too many to compare with those that the programs list (tiles_beside). Bands and blocks
// must be disjoint and inside the batch.
[[nodiscard]] std::optional<MaskFacts> facts_of_mask(const RoundFacts& facts, std::size_t mask,
                                                     const PlanPlace& place, Findings& findings);

// ---------------------------------------------------------------------------------- ownership

// Checks local blocks and the token limit against the owners, and the home layout.
void check_ownership(const RoundFacts& facts, Findings& findings);
// Checks the roles of every tile's blocks, and pairs outside the round's tokens.
void check_mask_facts(const RoundFacts& facts, const MaskFacts& mask, std::int64_t mask_pairs,
                      const PlanPlace& place, Findings& findings);
// Returns true if every tile of every group is computed exactly once, with the pairs the mask has,
// and nothing else is computed.
[[nodiscard]] bool check_cover(const RoundFacts& facts, const MaskFacts& mask,
                               const DirectionPrograms& programs, const PlanPlace& place,
                               Findings& findings);

}  // namespace contextile
