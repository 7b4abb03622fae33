// This machine as a cluster, for predictions that are compared with times measured here.
#pragma once

#include <cstdint>
#include <string>

#include "contextile/cluster.h"
#include "contextile/workload.h"

namespace contextile {

// The cluster on which to predict runs in this process: `cluster` itself if it was measured (a
// cluster file). A preset is another machine, or rough guesses of this one. For a preset, this
// machine is measured for some seconds with a line of progress; every device of `cluster` is a
// rank, in its nodes. `kernel`: empty for the preferred one of the dtype. Throws what
// check_profile_options throws.
[[nodiscard]] Cluster machine_of_runs(const Cluster& cluster, const AttentionShape& shape,
                                      const std::string& kernel);
// The same if no cluster was named, in the shape of a plan.
[[nodiscard]] Cluster measured_machine(std::int32_t nodes, std::int32_t devices_per_node,
                                       const AttentionShape& shape, const std::string& kernel);

}  // namespace contextile
