// Lowers one direction of one mask of a round: tiles and transfers with stages become every
// device's instructions and slots.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "contextile/extend/arrangement.h"
#include "contextile/plan.h"

namespace contextile {

// The owners of blocks in a round, indexed both ways.
struct RoundLayout {
  const ArrangedRound* round = nullptr;
  std::vector<std::vector<BlockId>> local_blocks;  // by rank, ascending
  std::vector<std::int32_t> position;              // of every block among its owner's local blocks
  std::vector<Rank> owner_of_unit;
  std::vector<SlotId> slot_of_unit;  // at its owner, the same for every kind

  [[nodiscard]] std::int32_t num_devices() const {
    return static_cast<std::int32_t>(local_blocks.size());
  }
  [[nodiscard]] std::int64_t num_units() const {
    return static_cast<std::int64_t>(position.size()) * round->head_groups;
  }
  [[nodiscard]] std::size_t unit(BlockId block, GroupId group) const {
    return block.index() * static_cast<std::size_t>(round->head_groups) + group.index();
  }
  [[nodiscard]] BlockId block_of(std::size_t unit) const {
    return BlockId{static_cast<std::int32_t>(unit / static_cast<std::size_t>(round->head_groups))};
  }
  [[nodiscard]] GroupId group_of(std::size_t unit) const {
    return GroupId{static_cast<std::int32_t>(unit % static_cast<std::size_t>(round->head_groups))};
  }
  [[nodiscard]] Rank owner_of(std::size_t unit) const { return owner_of_unit[unit]; }
  [[nodiscard]] SlotId owned_slot(std::size_t unit) const { return slot_of_unit[unit]; }
};

struct LoweringRequest {
  const RoundLayout* layout = nullptr;
  const ArrangedDirection* arranged = nullptr;
  Direction direction = Direction::kForward;
  std::span<const RetainedUnit> retain;  // kept by forward, present at the start of backward
  std::span<const Dtype> wires;          // of every transfer
  std::string where;                     // for messages: "round 0 mask 1 forward"
};

struct LoweredDirection {
  std::vector<Program> programs;       // by rank, `retain` left empty
  std::vector<SlotId> retained_slots;  // of every retained unit
};

// Throws InvalidArgument when the arrangement contradicts itself.
[[nodiscard]] LoweredDirection lower_direction(const LoweringRequest& request);

}  // namespace contextile
