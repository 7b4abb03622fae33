#include "cli/this_machine.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "cli/progress.h"
#include "contextile/advanced/profile.h"

namespace contextile {
namespace {

constexpr std::int32_t kMostMeasuredRanks = 64;  // far more than cores: they share them alike

}  // namespace

Cluster measured_machine(std::int32_t nodes, std::int32_t devices_per_node,
                         const AttentionShape& shape, const std::string& kernel) {
  ProfileOptions options;
  options.kernel = kernel;
  options.ranks = std::min(nodes * devices_per_node, kMostMeasuredRanks);
  options.shape = shape;
  options.effort = ProfileEffort::kQuick;
  check_profile_options(options);
  ProgressBar progress(profile_steps(options));
  Cluster machine =
      measure_machine(options, [&](std::string_view what) { progress.step(what); }).cluster;
  // Ranks of one process: to them a node is like any other.
  machine.nodes = nodes;
  machine.devices_per_node = devices_per_node;
  machine.nics_per_node = devices_per_node;
  machine.inter_gbytes_per_s_per_node *= devices_per_node;
  machine.compute_slots_per_node /= nodes;
  return machine;
}

Cluster machine_of_runs(const Cluster& cluster, const AttentionShape& shape,
                        const std::string& kernel) {
  const std::vector<ClusterPreset>& presets = cluster_presets();
  // A name like "dgx-h100,kernel=fa2" is the preset's with what was set behind it.
  const std::string_view name = without_settings(cluster.name);
  const bool measured = std::ranges::find(presets, name, &ClusterPreset::name) == presets.end();
  if (measured) return cluster;
  return measured_machine(cluster.nodes, cluster.devices_per_node, shape, kernel);
}

}  // namespace contextile
