// Clusters without a cause of time, for causes that are properties of the cluster.
#pragma once

#include "contextile/simulate.h"

namespace contextile {

// True if the engine's host takes any time.
[[nodiscard]] bool has_host_times(const EngineCosts& engine);

// The cluster without the cause; the same if the cause is none of its properties.
[[nodiscard]] Cluster without(Cause cause, Cluster cluster);

}  // namespace contextile
