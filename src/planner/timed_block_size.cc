#include "planner/timed_block_size.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/parallel_for.h"
#include "contextile/plan_build.h"
#include "contextile/simulate.h"

namespace contextile {

Arrangement arrange_timed(const Strategy& strategy, const Workload& workload,
                          const Cluster& cluster, const StrategyRequest& request) {
  const std::vector<std::int64_t> sizes = strategy.block_sizes(request);
  if (sizes.empty()) return strategy.arrange(workload, cluster, request);
  struct Candidate {
    Arrangement arrangement;
    double time_us = std::numeric_limits<double>::infinity();
  };
  std::vector<Candidate> candidates(sizes.size());
  parallel_for(std::size_t{0}, sizes.size(), [&](std::size_t i) {
    StrategyRequest sized = request;
    sized.block_size = sizes[i];
    candidates[i].arrangement = strategy.arrange(workload, cluster, sized);
    candidates[i].time_us =
        simulate(build_plan(workload, cluster, candidates[i].arrangement), cluster).time_us();
  });
  return std::move(std::ranges::min_element(candidates, {}, &Candidate::time_us)->arrangement);
}

}  // namespace contextile
