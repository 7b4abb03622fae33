// From DistCA's tasks to blocks, tiles and transfers.
#pragma once

#include <cstdint>
#include <optional>

#include "contextile/extend/arrangement.h"
#include "contextile/workload.h"
#include "strategy/distca/distca_plan.h"

namespace contextile {

struct CaArrangeOptions {
  // Queries and keys travel again for backward; false: those received stay. Needed where backward
  // has tasks of its own.
  bool resend = false;
  bool backward = true;
  std::optional<std::int64_t> block_size;  // tokens; unset: items are cut only where tasks are
};

// One round, every mask of the workload causal; rows belong to the sources of their items.
// Documents that one device computes as a whole share
// composite blocks; others are cut where an item begins or ends. Nano-batch i (backward: in
// reverse) runs in stages 2i, what needs nothing that arrives later, and 2i + 1. Its inputs travel
// under stages 2i - 1 and 2i, its results under the next nano-batch; dKV of a block leaves a server
// once, after its last use there. The caller fills in name, options and wire. O(tiles · log).
[[nodiscard]] Arrangement arrange_tasks(const Workload& workload, const CaPlan& plan,
                                        const CaArrangeOptions& options);

}  // namespace contextile
