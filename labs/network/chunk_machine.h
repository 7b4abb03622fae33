// Devices on a chunk network: how long a plan takes there.
#pragma once

#include <vector>

#include "contextile/cluster.h"
#include "labs/network/chunk_network.h"
#include "labs/network/network_program.h"

namespace contextile {

// Returns the time at which the last device ends, µs. Devices run their steps in order and launch
// as Cluster::launches says (docs/predict.md, "How a plan is simulated"). Throws InvalidArgument
// for a cluster that check_network_cluster refuses, and InvalidPlan if devices wait for each other
// forever. O(chunks · ports of a message · log).
[[nodiscard]] double chunk_time_us(const NetworkProgram& program, const Cluster& cluster,
                                   const ChunkOptions& options = {});
// The sum over programs: rounds come one after another. Hosts issue all rounds of a call ahead.
[[nodiscard]] double chunk_time_us(const std::vector<NetworkProgram>& programs,
                                   const Cluster& cluster, const ChunkOptions& options = {});

}  // namespace contextile
