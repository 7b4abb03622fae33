// Random batches for the tests of `auto`, its plans of them and those of all other strategies.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/rng.h"
#include "contextile/extend/plan_build.h"
#include "contextile/extend/strategy.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "planner/timed_block_size.h"
#include "support/batches.h"
#include "support/mask_support.h"

namespace contextile {

// Options under which attention alone decides between plans.
inline StrategyRequest for_attention(const char* tokens = "auto") {
  StrategyRequest request;
  request.options = {{"objective", "attention"}, {"tokens", tokens}};
  return request;
}

inline Plan auto_plan(const Workload& workload, const Cluster& cluster,
                      const StrategyRequest& request) {
  return build_plan(workload, cluster, find_strategy("auto").arrange(workload, cluster, request));
}

// Nodes that share an uplink of 50 GB/s.
inline Cluster with_shared_uplinks(std::int32_t nodes) {
  Cluster cluster = cluster_of("p4de", nodes, 4);
  cluster.attention_tflops = 280;
  cluster.attention = AttentionProfile::from_overheads(51, 9600, 0.86);
  cluster.intra_gbytes_per_s = 300;
  cluster.inter_gbytes_per_s_per_node = 50;
  cluster.nics_per_node = 1;
  cluster.flow_gbytes_per_s.clear();
  return cluster;
}

struct RandomBatch {
  Cluster cluster;
  Workload workload;
};
inline RandomBatch random_batch(std::uint64_t seed) {
  constexpr const char* kMasks[] = {"causal", "full", "lambda:16,200", "shared_question:0.2,3",
                                    "causal_blockwise:64,2,1"};
  Rng rng(seed);
  const Cluster cluster = cluster_of(random_chance(rng, 0.5) ? "p4de" : "dgx-h200",
                                     static_cast<std::int32_t>(random_between(rng, 1, 3)),
                                     static_cast<std::int32_t>(random_between(rng, 1, 5)));
  return {cluster, batch_of(random_lengths(rng, 8, 6000), kMasks[random_between(rng, 0, 4)])};
}

// Every plan of every other strategy at every variant and block size.
template <typename Visit>
void for_each_other(const RandomBatch& batch, StrategyRequest request, const Visit& visit) {
  for (const Strategy* strategy : strategies()) {
    SCOPED_TRACE(strategy->name());
    if (strategy->name() == "auto") continue;
    for (const auto& options : strategy->variants(batch.workload, batch.cluster, request)) {
      request.options = options;
      request.block_size.reset();
      if (strategy->unsupported(batch.workload, batch.cluster, request)) continue;
      SCOPED_TRACE(choice_text({"", options}));
      const auto sizes = timed_sizes(*strategy, batch.workload, request);
      for (std::size_t s = 0; s < std::max<std::size_t>(1, sizes.size()); ++s) {
        if (!sizes.empty()) request.block_size = sizes[s];
        visit(build_plan(batch.workload, batch.cluster,
                         strategy->arrange(batch.workload, batch.cluster, request)));
      }
    }
  }
}

inline std::int64_t most_tokens_of(const Plan& plan) {
  const PlanStats stats = statistics(plan);
  return std::llround((1 + stats.token_overload) * static_cast<double>(stats.tokens) /
                      (plan.nodes * plan.devices_per_node));
}

}  // namespace contextile
