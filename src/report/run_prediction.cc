#include "report/run_prediction.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
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

double seconds_of_mask(const std::optional<SimulatedDirection>& simulated, std::int32_t mask) {
  double us = 0;
  if (!simulated) return us;
  for (const SimulatedProgram& program : simulated->programs) {
    if (program.mask == mask) us += program.time_us;
  }
  return us * 1e-6;
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
    const Cluster cluster = load_cluster(text);
    check_same_cluster(plan, cluster, text);
    return cluster;
  }
  const std::vector<ClusterPreset>& presets = cluster_presets();
  const auto preset = std::ranges::find(presets, plan.cluster_name, &ClusterPreset::name);
  if (preset == presets.end()) {
    fail_argument(
        "--cluster: expected the machine of {} x {} devices to predict on ({} or a "
        ".json file), found none, and the plan's own, {}, is no preset",
        plan.nodes, plan.devices_per_node, preset_names(), quote(plan.cluster_name));
  }
  return load_cluster(
      fmt::format("{}:{}x{}", plan.cluster_name, plan.nodes, plan.devices_per_node));
}

MaskPrediction predicted_of_mask(const Simulation& simulation, std::int32_t mask) {
  return {seconds_of_mask(simulation.forward, mask), seconds_of_mask(simulation.backward, mask)};
}

Table run_prediction_table(const RunReport& report, const Simulation& simulation) {
  Table table({{"mask", "mask"},
               {"direction", "direction"},
               {"predicted_s", "predicted\nms", Format::kMilliseconds},
               {"measured_s", "measured\nms", Format::kMilliseconds},
               {"ratio", "predicted /\nmeasured"}});
  for (std::size_t m = 0; m < report.masks.size(); ++m) {
    const MaskRun& run = report.masks[m];
    const MaskPrediction predicted = predicted_of_mask(simulation, static_cast<std::int32_t>(m));
    const auto add = [&](Direction direction, double predicted_s, double measured_s) {
      table.add_row({run.mask, std::string(to_string(direction)), predicted_s, measured_s,
                     measured_s > 0 ? Cell{predicted_s / measured_s} : Cell{}});
    };
    if (simulation.forward) add(Direction::kForward, predicted.forward_s, run.forward_s);
    if (simulation.backward) add(Direction::kBackward, predicted.backward_s, run.backward_s);
  }
  return table;
}

}  // namespace contextile
