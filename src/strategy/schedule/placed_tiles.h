// The input of the schedulers of placed tiles: tiles with their devices, and the routes of the
// units that these move.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/mask.h"
#include "contextile/workload.h"

namespace contextile {

// The way of one unit to a device that does not own it, or of a result from it: through `via`,
// which is the owner itself or another device with a route of its own for the unit (a relay).
struct UnitRoute {
  Kind kind = Kind::kKv;
  BlockId block;
  GroupId group;
  Rank device;
  Rank via;
};

// One direction of one mask. It refers to blocks, owners and tiles of others, which must outlive
// it.
struct ScheduleProblem {
  const Blocking* blocks = nullptr;
  std::span<const Rank> owners;  // of every block
  std::int32_t head_groups = 1;
  std::int32_t num_devices = 1;
  std::int32_t devices_per_node = 1;
  Direction direction = Direction::kForward;
  AttentionShape shape;
  std::span<const PlacedTile> tiles;  // the scheduler decides their stages
  // One route for each (unit, device) that is not the owner, by kind, block, group and device.
  std::vector<UnitRoute> routes;
  std::span<const std::int32_t> block_head_groups = {};  // as in a round

  [[nodiscard]] std::int32_t groups_of(BlockId block) const {
    return head_groups_of(head_groups, block_head_groups, block);
  }
  // Returns the bytes of one head group of the block.
  [[nodiscard]] std::int64_t bytes_of(Kind kind, BlockId block, Dtype wire) const {
    return unit_bytes(kind, blocks->num_tokens(block), shape, groups_of(block), wire);
  }
};

// Backward either finds the q and kv that forward received, or has to fetch them again.
enum class ForwardInputs : std::uint8_t { kDropped, kRetained };

struct PlacedBlocks {
  const Blocking& blocks;
  std::span<const Rank> owners;
  std::span<const PlacedTile> tiles;
  std::int32_t head_groups = 1;
  ForwardInputs forward_inputs = ForwardInputs::kDropped;
  std::span<const std::int32_t> block_head_groups = {};  // as in a round
};
// Returns the problem of one direction. It has a route from its owner for every unit that a device
// reads, and to its owner for every unit that a device adds to. The caller chooses relays.
// O(tiles · log).
[[nodiscard]] ScheduleProblem schedule_problem(const Workload& workload, const Cluster& cluster,
                                               const PlacedBlocks& placed, Direction direction);

}  // namespace contextile
