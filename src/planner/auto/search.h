// The search behind `auto`: candidates, their predicted times, the best one.
#pragma once

#include <cstdint>
#include <string>

#include "contextile/cluster.h"
#include "contextile/extend/arrangement.h"
#include "contextile/extend/strategies.h"
#include "contextile/extend/strategy.h"
#include "contextile/workload.h"

namespace contextile {

struct SearchResult {
  Arrangement arrangement;
  std::string chosen;       // "placement" or the name of another strategy
  double predicted_us = 0;  // forward + backward, one layer of every mask
  // What costs most: "compute", "inter-node", "intra-node", "latency"; empty where there was no
  // time to find out.
  std::string binding;
  std::int32_t candidates = 0;  // plans simulated
};

// Candidates in three rounds, each tried in parallel: the other strategies with their defaults and
// placements of our own over block sizes, head groups and imbalances; the best placements (by their
// estimate) under several schedules; the best of those again with more steps and other seeds. The
// least predicted time wins, ties to the earlier candidate: so never slower, by prediction, than
// any other strategy with its defaults. Deterministic unless budget_ms is set. Throws
// InvalidArgument where every candidate needs more memory than a device has or than was asked for.
[[nodiscard]] SearchResult search(const Workload& workload, const Cluster& cluster,
                                  const StrategyRequest& request, const AutoOptions& options);

}  // namespace contextile
