// Turns DistCA's tasks into blocks, tiles and transfers.
#pragma once

#include <cstdint>
#include <optional>

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/workload.h"
#include "strategy/distca/distca_plan.h"

namespace contextile {

struct CaArrangeOptions {
  // True: queries and keys travel again for backward. False: those received in forward stay. Must
  // be true where backward has tasks of its own.
  bool resend = false;
  bool backward = true;
  // Keys pass from one server to the next, and their gradients back, where that ends earlier on
  // this cluster. Null: every server gets keys from their owner.
  const Cluster* relays = nullptr;
  std::optional<std::int64_t> block_size;  // tokens; unset: items are cut only where tasks are
};

// Arranges the tasks in one round. Every mask of the workload must be causal. Rows belong to the
// sources of their items. Documents that one device computes as a whole share composite blocks;
// others are cut where an item begins or ends. Nano-batch i (backward: in reverse) runs in stage 2i
// the tiles that need nothing that arrives later, and in stage 2i + 1 the others. Its inputs travel
// under stages 2i - 1 and 2i, its results under the next nano-batch. The dKV of a block leaves a
// server once, after its last use there. If servers relay, a nano-batch has one more stage, so that
// each hop has compute to travel under. The caller fills in name, options and wire.
// O(tiles · log).
[[nodiscard]] Arrangement arrange_tasks(const Workload& workload, const CaPlan& plan,
                                        const CaArrangeOptions& options);

}  // namespace contextile
