#include "planner/timed_block_size.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/parallel_for.h"
#include "contextile/advanced/model.h"
#include "contextile/extend/plan_build.h"
#include "contextile/planner.h"
#include "contextile/simulate.h"
#include "planner/auto/arrangement_load.h"

namespace contextile {

std::vector<std::int64_t> timed_sizes(const Strategy& strategy, const Workload& workload,
                                      const StrategyRequest& request) {
  std::vector<std::int64_t> sizes = strategy.block_sizes(request);
  if (sizes.empty()) return sizes;
  const std::int64_t best_guess = sizes.front();
  std::erase_if(sizes, [&](std::int64_t size) {
    return size != best_guess && estimated_tiles(workload, size) > kMostTimedTiles;
  });
  return sizes;
}

double linear_layers_us(const Workload& workload, const Cluster& cluster,
                        const StrategyRequest& request) {
  const double token_us =
      request.linear_us_per_token.value_or(guessed_linear_us_per_token(workload.shape, cluster));
  return token_us * static_cast<double>(workload.masks.size()) *
         (request.backward ? kPassesWithBackward : 1);
}

double layers_us(const Workload& workload, const Cluster& cluster, const Arrangement& arrangement,
                 const StrategyRequest& request) {
  return simulate(build_plan(workload, cluster, arrangement, {.digest = false}), cluster)
             .time_us() +
         linear_layers_us(workload, cluster, request) *
             static_cast<double>(most_tokens(arrangement, cluster));
}

Arrangement arrange_timed(const Strategy& strategy, const Workload& workload,
                          const Cluster& cluster, const StrategyRequest& request) {
  const std::vector<std::int64_t> sizes = timed_sizes(strategy, workload, request);
  if (sizes.empty()) return strategy.arrange(workload, cluster, request);
  if (sizes.size() == 1) {  // there is nothing to compare
    StrategyRequest sized = request;
    sized.block_size = sizes.front();
    return strategy.arrange(workload, cluster, sized);
  }
  struct Candidate {
    Arrangement arrangement;
    double time_us = std::numeric_limits<double>::infinity();
  };
  std::vector<Candidate> candidates(sizes.size());
  parallel_for(std::size_t{0}, sizes.size(), [&](std::size_t i) {
    StrategyRequest sized = request;
    sized.block_size = sizes[i];
    candidates[i].arrangement = strategy.arrange(workload, cluster, sized);
    candidates[i].time_us = layers_us(workload, cluster, candidates[i].arrangement, request);
  });
  return std::move(std::ranges::min_element(candidates, {}, &Candidate::time_us)->arrangement);
}

}  // namespace contextile
