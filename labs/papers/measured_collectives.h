// Measured times of collectives, next to what a preset's Cluster::collectives say.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "contextile/advanced/validation.h"

namespace contextile {

// One measured time of a collective.
struct HeldCollective {
  std::string group;  // preset, op and whether the devices are on several nodes
  RowSplit split = RowSplit::kJudged;
  std::optional<double> ratio;  // predicted over measured; none: the preset has no such cost
};

// Reads the rows of a file with the columns source, split, cluster (a preset), op, devices, nodes,
// bytes (as in CollectiveCost) and us. Throws IoError when it cannot be read, and InvalidArgument
// with file and line on the first malformed row.
[[nodiscard]] std::vector<HeldCollective> held_collectives(const std::string& path);

}  // namespace contextile
