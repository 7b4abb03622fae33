#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "contextile/advanced/training.h"

namespace contextile {
namespace {

// Returns true if runs of `size` ranks are whole nodes, or equal parts of one.
bool fits_nodes(std::int64_t size, std::int64_t ranks_per_node) {
  return size % ranks_per_node == 0 || ranks_per_node % size == 0;
}

std::optional<std::string> expert_parallel_problem(const ModelSpec& model, const Cluster& cluster,
                                                   const ParallelSizes& sizes) {
  const std::int32_t ep = sizes.ep;
  if (ep == 1) return std::nullopt;
  if (!model.has_experts()) return fmt::format("EP {} of a model without experts", ep);
  if (model.experts.experts % ep != 0) {
    return fmt::format("EP {} does not divide {} experts", ep, model.experts.experts);
  }
  if (sizes.stage_devices() % ep != 0) {
    return fmt::format("EP {} does not divide the {} devices of a stage (TP x CP x DP)", ep,
                       sizes.stage_devices());
  }
  if (!fits_nodes(ep, cluster.devices_per_node)) {
    return fmt::format("expert-parallel groups of {} devices cut nodes of {} devices unevenly", ep,
                       cluster.devices_per_node);
  }
  return std::nullopt;
}

void check_parallel_sizes(const Cluster& cluster, const ParallelSizes& sizes) {
  // The model's heads and layers do not matter here: one head per TP rank, one layer per
  // stage, one expert per EP rank.
  ModelSpec model{.layers = sizes.pp, .q_heads = sizes.tp, .kv_heads = sizes.tp};
  if (sizes.ep > 1) model.experts.experts = sizes.ep;
  if (const auto problem = parallel_sizes_problem(model, cluster, sizes)) {
    fail_argument("placement: {}", *problem);
  }
}

}  // namespace

std::optional<std::string> parallel_sizes_problem(const ModelSpec& model, const Cluster& cluster,
                                                  const ParallelSizes& sizes, std::int32_t chunks) {
  const auto [tp, cp, dp, pp, ep] = sizes;
  if (std::min({tp, cp, dp, pp, ep, chunks}) < 1) {
    return fmt::format("expected sizes of at least 1, found TP {}, CP {}, DP {}, PP {}, EP {}", tp,
                       cp, dp, pp, ep);
  }
  if (sizes.num_devices() != cluster.num_devices()) {
    return fmt::format("TP {} x CP {} x DP {} x PP {} are {} devices, the cluster has {}", tp, cp,
                       dp, pp, sizes.num_devices(), cluster.num_devices());
  }
  if (cluster.devices_per_node % tp != 0) {
    return fmt::format("TP {} does not divide the {} devices of a node", tp,
                       cluster.devices_per_node);
  }
  if (model.q_heads % tp != 0 || model.kv_heads % tp != 0) {
    return fmt::format("TP {} does not divide {} query heads and {} KV heads", tp, model.q_heads,
                       model.kv_heads);
  }
  const std::int32_t ranks_per_node = cluster.devices_per_node / tp;
  if (!fits_nodes(cp, ranks_per_node)) {
    return fmt::format("context-parallel groups of {} ranks cut nodes of {} ranks unevenly", cp,
                       ranks_per_node);
  }
  const std::int64_t stage_ranks = std::int64_t{cp} * dp;
  if (!fits_nodes(stage_ranks, ranks_per_node)) {
    return fmt::format("pipeline stages of {} ranks cut nodes of {} ranks unevenly", stage_ranks,
                       ranks_per_node);
  }
  if (model.layers < std::int64_t{pp} * chunks) {
    return fmt::format("{} layers are fewer than {} stages x {} chunks", model.layers, pp, chunks);
  }
  return expert_parallel_problem(model, cluster, sizes);
}

Cluster context_parallel_cluster(const Cluster& cluster, const ParallelSizes& sizes) {
  check_parallel_sizes(cluster, sizes);
  return cluster.group(sizes.tp, sizes.pp * sizes.dp);
}

Cluster pooled_cluster(const Cluster& cluster, const ParallelSizes& sizes) {
  check_parallel_sizes(cluster, sizes);
  const std::int32_t ranks_per_node = cluster.devices_per_node / sizes.tp;
  // Ranks of one replica on a node: its part of a stage that fills nodes, or of all the stages that
  // share a node.
  const std::int32_t stage_ranks = sizes.cp * sizes.dp;
  const std::int32_t stages_per_node =
      stage_ranks >= ranks_per_node ? 1 : std::min(sizes.pp, ranks_per_node / stage_ranks);
  const std::int32_t here = std::min(sizes.cp, ranks_per_node) * stages_per_node;
  const double share = static_cast<double>(here) / cluster.devices_per_node;
  Cluster result = cluster;
  result.devices_per_node = here;
  result.nodes = sizes.cp * sizes.pp / here;
  result.inter_gbytes_per_s_per_node *= share;
  result.nics_per_node =
      std::clamp(static_cast<std::int32_t>(cluster.nics_per_node * share), 1, here);
  return result;
}

}  // namespace contextile
