// DCP (Jiang et al., SOSP 2025), Fig. 1: the growth of context parallelism's communication with the
// cluster. The paper measured GPUs; here everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "labs/papers/dcp/setting.h"
#include "labs/papers/dcp/step_parts.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// Numbers of nodes up to the cluster's own, doubling.
std::vector<std::int32_t> fig1_nodes(const Cluster& cluster) {
  std::vector<std::int32_t> nodes;
  for (std::int32_t n = std::min(2, cluster.nodes); n < cluster.nodes; n *= 2) nodes.push_back(n);
  nodes.push_back(cluster.nodes);
  return nodes;
}

std::vector<Finding> fig1_findings(const std::vector<double>& shares) {
  if (shares.size() < 2) return {};
  return {{"the communication of context parallelism grows with the cluster",
           fmt::format("{:.1f}% to {:.1f}% of the step", 100 * shares.front(), 100 * shares.back()),
           std::ranges::is_sorted(shares), "the exposed share falls nowhere"}};
}

PaperResult make(const TableOverrides& overrides) {
  PaperSetting setting = step_setting(overrides, "dcp-fig1", "p4de:16x8");
  const std::vector<std::int32_t> nodes = fig1_nodes(setting.input.cluster);
  Table table(part_columns({{"devices", "GPUs"}, {"cp", "CP"}, {"strategy", "TE is"}}));
  Progress progress(overrides, std::ssize(nodes));
  std::vector<double> shares;
  for (const std::int32_t n : nodes) {
    setting.input.cluster.nodes = n;
    const std::int64_t devices = setting.input.cluster.num_devices();
    progress.step(fmt::format("{} devices", devices));
    const StepParts parts = transformer_engine(setting, "causal");
    add_parts(parts, {devices, devices / kStepTp, table_name(transformer_engine_choice())}, table);
    if (!parts.skipped.empty()) continue;
    shares.push_back(parts.exposed_s / parts.step_s);
  }
  PaperResult result = steps_result(setting, std::move(table));
  result.setting[1] = {"model", fmt::format("gpt-8b, TP {}, ZeRO-1, causal", kStepTp)};
  result.setting[2] = {"cluster", fmt::format("{}, nodes of {}", setting.input.cluster.name,
                                              setting.input.cluster.devices_per_node)};
  result.plots = {{.x = "devices", .y = {"attention_s", "exposed_s", "overlapped_s"}},
                  {.x = "devices", .y = {"exposed_share"}}};
  result.findings = fig1_findings(shares);
  result.differences.insert(
      result.differences.end(),
      {kOverlapMeans,
       "The paper's text has TP 4 x CP 16 and no number. Here one batch is spread over more and "
       "more devices.",
       kTransformerEngineIs});
  return result;
}

}  // namespace

PaperTable dcp_fig1() {
  return {"dcp-fig1", "DCP (SOSP 2025), Fig. 1",
          "what context parallelism's communication is of a step, by devices", make};
}

}  // namespace contextile
