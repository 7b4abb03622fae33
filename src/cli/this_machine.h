// This machine as a cluster, for predictions that stand beside times measured here.
#pragma once

#include <cstdint>
#include <string>

#include "contextile/cluster.h"
#include "contextile/workload.h"

namespace contextile {

// What to predict runs in this process on: `cluster` itself where it was measured (a cluster file).
// A preset is another machine, or round guesses of this one: then this machine, measured for some
// seconds with a line of progress, every device of `cluster` a rank, in its nodes. `kernel`: empty
// for the preferred one of the dtype. Throws what check_profile_options throws.
[[nodiscard]] Cluster machine_of_runs(const Cluster& cluster, const AttentionShape& shape,
                                      const std::string& kernel);
// The same, where no cluster was named, in the shape of a plan.
[[nodiscard]] Cluster measured_machine(std::int32_t nodes, std::int32_t devices_per_node,
                                       const AttentionShape& shape, const std::string& kernel);

}  // namespace contextile
