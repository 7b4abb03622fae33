// Builds a plan from an arrangement.
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
// tile whose input never arrives, a transfer whose source has nothing to send, …). O(tiles +
// transfers · log).
[[nodiscard]] Plan build_plan(const Workload& workload, const Cluster& cluster,
                              const Arrangement& arrangement, const BuildOptions& options = {});

}  // namespace contextile
