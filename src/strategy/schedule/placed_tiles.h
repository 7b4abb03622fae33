// What the schedulers of placed tiles work on: tiles with their devices, and the routes of what
// these move.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/mask.h"
#include "contextile/workload.h"

namespace contextile {

// How one unit reaches a device that does not own it, or a result leaves it: through `via`, the
// owner itself or another device with a route of its own for the unit (a relay).
struct UnitRoute {
  Kind kind = Kind::kKv;
  BlockId block;
  GroupId group;
  Rank device;
  Rank via;
};

// One direction of one mask. Refers to blocks, owners and tiles of others, which must outlive it.
struct ScheduleProblem {
  const Blocking* blocks = nullptr;
  std::span<const Rank> owners;  // of every block
  std::int32_t head_groups = 1;
  std::int32_t num_devices = 1;
  std::int32_t devices_per_node = 1;
  Direction direction = Direction::kForward;
  AttentionShape shape;
  std::span<const PlacedTile> tiles;  // stages are what a scheduler decides
  // One for each (unit, device) that is not the owner, by kind, block, group and device.
  std::vector<UnitRoute> routes;
  std::span<const std::int32_t> block_head_groups = {};  // as in a round

  [[nodiscard]] std::int32_t groups_of(BlockId block) const {
    return head_groups_of(head_groups, block_head_groups, block);
  }
  // Bytes of one head group of the block.
  [[nodiscard]] std::int64_t bytes_of(Kind kind, BlockId block, Dtype wire) const {
    return unit_bytes(kind, blocks->num_tokens(block), shape, groups_of(block), wire);
  }
};

// Whether backward finds what forward received of q and kv, or has to fetch it again.
enum class ForwardInputs : std::uint8_t { kDropped, kRetained };

struct PlacedBlocks {
  const Blocking& blocks;
  std::span<const Rank> owners;
  std::span<const PlacedTile> tiles;
  std::int32_t head_groups = 1;
  ForwardInputs forward_inputs = ForwardInputs::kDropped;
  std::span<const std::int32_t> block_head_groups = {};  // as in a round
};
// The problem of one direction, with a route from its owner for every unit that a device reads, and
// to its owner for every unit it adds to; relays are for the caller to choose. O(tiles · log).
[[nodiscard]] ScheduleProblem schedule_problem(const Workload& workload, const Cluster& cluster,
                                               const PlacedBlocks& placed, Direction direction);

}  // namespace contextile
