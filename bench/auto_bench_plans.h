// The fastest plan of every strategy for a batch, as auto_bench compares them.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "contextile/cluster.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/workload.h"

namespace contextile::bench {

// Options of auto_bench.
struct AutoBenchOptions {
  std::vector<std::int32_t> devices = {8, 32};
  std::vector<std::string> clusters = {"p4de", "dgx-h200"};
  std::vector<std::string> datasets = {};  // empty: all, and "single"
  std::int64_t tokens_per_device = 4096;
  std::uint64_t seed = 1;
  AttentionShape shape;
  std::vector<std::string> steps = {};
  std::string objective = "layer";
  std::string limit = "0";
  int fresh = 0;  // workloads to draw from all sources; 0: those of the options above
  std::vector<std::string> only = {};  // numbers of those workloads; empty: all
  bool rows = false;

  // Time of the linear layers of a token, forward and backward.
  [[nodiscard]] double linear_us(const Cluster& cluster) const;
};

// Time of the linear layers of the device that owns the most tokens.
[[nodiscard]] double linear_us(const PlanStats& stats, const Cluster& cluster,
                               const AutoBenchOptions& options);

struct PredictedPlan {
  double time_us = std::numeric_limits<double>::infinity();  // by the objective
  double attention_us = 0;
  double overload = 0;  // of tokens, above the mean
  std::string text;     // of the choice
  std::string found;    // by a search: the winner with its options, and the phase
  double planning_s = 0;
  double bound_us = 0;
  double separate_bound_us = 0;
  std::string binding;  // of the bound's longer direction
};

// The fastest plan of the strategy's variants, and of those that are even. Without a plan, `text`
// is empty.
struct FastestPlans {
  PredictedPlan any;
  PredictedPlan even;
};

// Plans, verifies, simulates and bounds every variant of the strategy (Strategy::variants) at every
// block size that it leaves open. Ends the program with 1 if a plan does not verify, or if it is
// faster than its lower bound on up to 64 devices, where simulations are exact.
[[nodiscard]] FastestPlans fastest_of(const Strategy& strategy, const Workload& workload,
                                      const Cluster& cluster, const AutoBenchOptions& options);

}  // namespace contextile::bench
