// The search behind `auto`: candidates, their predicted times, the best one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/extend/strategies.h"
#include "contextile/extend/strategy.h"
#include "contextile/workload.h"

namespace contextile {

struct SearchResult {
  Arrangement arrangement;
  std::string chosen;                   // "placement" or the name of another strategy
  double predicted_us = 0;              // attention, forward + backward, one layer of every mask
  std::optional<double> layer_us = {};  // with linear layers, if tokens have a price
  // The resource that costs most: "compute", "inter-node", "intra-node", "latency"; empty if there
  // was no time to find out.
  std::string binding;
  std::int32_t candidates = 0;  // plans simulated
  SearchReport report;
};

// Walks the table of phases (search_phases.h) and keeps the candidate of the least predicted time,
// of the layer or of attention (AutoOptions::objective); ties go to the earlier candidate. By
// prediction it is never slower than any other strategy with its variants, as far as the limits let
// every phase run. Deterministic unless budget_ms is set. Throws InvalidArgument if every candidate
// needs more memory than a device has or than the request allows, and if disabled phases leave no
// candidate within the limits.
[[nodiscard]] SearchResult search(const Workload& workload, const Cluster& cluster,
                                  const StrategyRequest& request, const AutoOptions& options);

}  // namespace contextile
