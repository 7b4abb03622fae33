// The result of a strategy: the owner of every block, the device and time of every tile, and the
// transfers. `build_plan` (extend/plan_build.h) lowers it to instructions; nothing downstream looks
// at the strategy.
//
//   const Workload batch = make_workload(std::vector<std::int64_t>{90'000}, AttentionShape{});
//   const Cluster cluster = load_cluster("dgx-h200:1x8");
//   const Arrangement arrangement = find_strategy("ring").arrange(batch, cluster, {});
//   for (const ArrangedRound& round : arrangement.rounds) {
//     std::printf("%d blocks\n", round.blocks.num_blocks());
//   }
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"
#include "contextile/mask.h"
#include "contextile/workload.h"

namespace contextile {

// A tile and its device. Its two blocks have equally many head groups. A stage is one attention
// instruction; stages count from 0 on every device.
struct PlacedTile {
  BlockId q_block;
  BlockId kv_block;
  GroupId group;
  Rank device;
  std::int32_t stage = 0;
  std::int64_t pairs = 0;  // as TileIndex says
};

// The transfer of one unit from one device to another. Both ends launch it before attention
// `launch_stage` and wait for it before attention `need_stage` > launch_stage. At a stage boundary
// s a device first waits for the transfers it needs at s, then merges those that arrived, then
// launches.
//
// Inputs: src owns the unit, or received it with a need stage <= launch_stage (relay), or retained
// it. Results: src sends all it has gathered of the unit so far and starts again from nothing; dst
// merges the arriving result into its own. A result that holds all its tiles travels in the
// activation dtype, a partial one in the arrangement's partial_wire.
struct Transfer {
  Kind kind = Kind::kKv;
  BlockId block;
  GroupId group;
  Rank src;
  Rank dst;
  std::int32_t launch_stage = 0;
  std::int32_t need_stage = 1;
};

// The tiles and transfers of one direction. Tiles of one device and stage run in listed order.
// Transfers between two devices with equal stages travel as one message, in listed order.
struct ArrangedDirection {
  std::vector<PlacedTile> tiles;
  std::vector<Transfer> transfers;
};

// A received input (q or kv) that forward keeps for backward on `device`.
struct RetainedUnit {
  Rank device;
  Kind kind = Kind::kKv;
  BlockId block;
  GroupId group;
};

// The work of one mask in one round. A direction may be absent (prefill has no backward).
struct ArrangedMask {
  std::optional<ArrangedDirection> forward;
  std::optional<ArrangedDirection> backward;
  std::vector<RetainedUnit> retain;
};

struct ArrangedRound {
  Blocking blocks;
  std::vector<Rank> owners;      // owner of every block
  std::int32_t head_groups = 1;  // head groups of every block; divides the KV heads
  std::vector<Mask> masks;  // of the workload, in its order, each restricted to this round's tokens
  std::vector<ArrangedMask> programs;  // one for each mask
  // If blocks differ in their head groups: the number of every block, a divisor of head_groups.
  std::vector<std::int32_t> block_head_groups;

  [[nodiscard]] std::int32_t groups_of(BlockId block) const {
    return head_groups_of(head_groups, block_head_groups, block);
  }
  // Number of the round's head groups that one head group of the block spans.
  [[nodiscard]] std::int32_t parts_of(BlockId block) const {
    return head_groups / groups_of(block);
  }
};

struct Arrangement {
  std::string strategy;
  std::map<std::string, std::string> options;  // as used, defaults filled in
  Dtype partial_wire = Dtype::kF32;
  std::vector<ArrangedRound>
      rounds;  // executed in order, a barrier between; blocks partition the tokens
  // Padding that the original method would have charged for, if the strategy was asked to count it
  // (count_padding=on): statistics multiply real bytes and pairs by these. 1: none.
  double padded_bytes_factor = 1;
  double padded_pairs_factor = 1;
};

}  // namespace contextile
