#include <algorithm>

#include "base/check.h"
#include "contextile/advanced/step_planner.h"

namespace contextile {
namespace {

bool allows(const std::optional<std::int32_t>& given, std::int32_t size) {
  return !given || *given == size;
}

std::int64_t most_ep(const ModelSpec& model, const ParallelSizes& sizes) {
  return model.has_experts() ? std::min<std::int64_t>(model.experts.experts, sizes.stage_devices())
                             : 1;
}

}  // namespace

ParallelSizes complete_sizes(const GivenSizes& given, std::int64_t num_devices) {
  ParallelSizes sizes{.tp = given.tp.value_or(1),
                      .cp = given.cp.value_or(1),
                      .dp = given.dp.value_or(1),
                      .pp = given.pp.value_or(1),
                      .ep = given.ep.value_or(1)};
  const std::int64_t left = num_devices / sizes.num_devices();
  if (!given.cp) {
    sizes.cp = checked_cast<std::int32_t>(left, "--cp");
  } else if (!given.dp) {
    sizes.dp = checked_cast<std::int32_t>(left, "--dp");
  }
  if (left < 1 || sizes.num_devices() != num_devices) {
    fail_argument("--tp, --cp, --dp, --pp: expected a product of {} devices, found {} with {}",
                  num_devices, sizes.num_devices(), sizes_text(sizes));
  }
  return sizes;
}

std::vector<ParallelSizes> all_sizes(const GivenSizes& given, const ModelSpec& model,
                                     const Cluster& cluster, std::int64_t micro_batches,
                                     std::int32_t chunks) {
  std::vector<ParallelSizes> all;
  const std::int32_t devices = cluster.num_devices();
  for (std::int32_t tp = 1; tp <= cluster.devices_per_node; ++tp) {
    if (!allows(given.tp, tp) || devices % tp != 0) continue;
    for (std::int32_t pp = 1; pp <= devices / tp; ++pp) {
      if (!allows(given.pp, pp) || devices / tp % pp != 0) continue;
      const std::int32_t stage_ranks = devices / tp / pp;
      for (std::int32_t cp = 1; cp <= stage_ranks; ++cp) {
        if (!allows(given.cp, cp) || stage_ranks % cp != 0) continue;
        ParallelSizes sizes{.tp = tp, .cp = cp, .dp = stage_ranks / cp, .pp = pp};
        if (!allows(given.dp, sizes.dp) || micro_batches % sizes.dp != 0) continue;
        for (sizes.ep = 1; sizes.ep <= most_ep(model, sizes); ++sizes.ep) {
          if (!allows(given.ep, sizes.ep)) continue;
          if (!parallel_sizes_problem(model, cluster, sizes, chunks)) all.push_back(sizes);
        }
      }
    }
  }
  return all;
}

}  // namespace contextile
