#include "cli/options/plan_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/quote.h"

namespace contextile {
namespace {

std::string preset_names() {
  std::string names;
  for (const ClusterPreset& preset : cluster_presets()) {
    names += names.empty() ? "" : ", ";
    names += preset.name;
  }
  return names;
}

}  // namespace

void check_same_cluster(const Plan& plan, const Cluster& cluster, const std::string& text) {
  if (cluster.nodes != plan.nodes || cluster.devices_per_node != plan.devices_per_node) {
    fail_argument(
        "--cluster {}: a plan for another cluster: expected one for {} x {} devices, found one for "
        "{} x {} ({})",
        text, cluster.nodes, cluster.devices_per_node, plan.nodes, plan.devices_per_node,
        plan.cluster_name);
  }
}

Cluster cluster_of_plan(const Plan& plan, const std::string& text) {
  if (!text.empty()) {
    Cluster cluster = load_cluster(text);
    check_same_cluster(plan, cluster, text);
    return cluster;
  }
  // A name like "h20,transfer_sms=6" is the preset's with what was set behind it.
  const std::string_view full_name = plan.cluster_name;
  const std::string_view name = without_settings(full_name);
  const std::vector<ClusterPreset>& presets = cluster_presets();
  const auto preset = std::ranges::find(presets, name, &ClusterPreset::name);
  if (preset == presets.end()) {
    fail_argument(
        "--cluster: expected the machine of {} x {} devices to predict on ({} or a "
        ".json file), found none, and the plan's own, {}, is no preset",
        plan.nodes, plan.devices_per_node, preset_names(), quote(plan.cluster_name));
  }
  return load_cluster(fmt::format("{}:{}x{}{}", name, plan.nodes, plan.devices_per_node,
                                  full_name.substr(name.size())));
}

}  // namespace contextile
