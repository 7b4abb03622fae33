// Builds a plan from an arrangement.
//
//   const Workload batch = make_workload(std::vector<std::int64_t>{90'000}, AttentionShape{});
//   const Cluster cluster = load_cluster("dgx-h200:1x8");
//   const Arrangement arrangement = find_strategy("ring").arrange(batch, cluster, {});
//   const Plan plan = build_plan(batch, cluster, arrangement);
#pragma once

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/plan.h"
#include "contextile/workload.h"

namespace contextile {

struct BuildOptions {
  DeviceLimits limits = {};
  bool digest = true;  // false: the digest stays 0, for plans that are not kept
};

// Lowers an arrangement: places and reuses buffers, resolves relays and travelling results, and
// emits both directions. The digest is set unless options say otherwise. Deterministic. Throws
// InvalidArgument naming round, mask, direction and unit when the arrangement contradicts itself (a
// tile whose input never arrives, a transfer whose source has nothing to send, …). Throws
// std::bad_alloc, with an estimate as its text, if the plan does not fit into the available memory.
// O(tiles + transfers · log).
[[nodiscard]] Plan build_plan(const Workload& workload, const Cluster& cluster,
                              const Arrangement& arrangement, const BuildOptions& options = {});

}  // namespace contextile
