// From an arrangement to a plan.
#pragma once

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/plan.h"
#include "contextile/workload.h"

namespace contextile {

struct BuildOptions {
  DeviceLimits limits = {};
  bool digest = true;  // false: left 0, as of plans that nobody keeps
};

// Lowers an arrangement: buffers are placed and reused, relays and travelling results resolved,
// both directions emitted; the digest is set unless options say otherwise. Deterministic. Throws
// InvalidArgument naming round, mask, direction and unit when the arrangement contradicts itself (a
// tile whose input never arrives, a transfer whose source has nothing to send, …). O(tiles +
// transfers · log).
[[nodiscard]] Plan build_plan(const Workload& workload, const Cluster& cluster,
                              const Arrangement& arrangement, const BuildOptions& options = {});

}  // namespace contextile
