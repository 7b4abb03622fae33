// Cluster::collectives in cluster files.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "contextile/cluster.h"

namespace contextile {

// Throws InvalidArgument for what is no array of costs. check_cluster checks the numbers.
[[nodiscard]] std::vector<CollectiveCost> read_collectives(const nlohmann::json& entries);
[[nodiscard]] nlohmann::ordered_json collectives_json(const std::vector<CollectiveCost>& costs);

}  // namespace contextile
