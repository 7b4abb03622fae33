// DCP (Jiang et al., SOSP 2025), Fig. 5 (section 2.3): one long and two short sequences on two
// devices.
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "labs/papers/dcp/setting.h"
#include "labs/papers/findings.h"
#include "labs/papers/movement.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// The ways of the figure, in its order.
struct Way {
  const char* name;
  const char* strategy;
};
constexpr std::array<Way, 3> kWays = {{{"CP", "zigzag"}, {"DP", "bytescale"}, {"planned", "dcp"}}};

std::vector<Finding> findings_of(const std::array<MeanMovement, kWays.size()>& ways) {
  const auto& [cp, dp, planned] = ways;
  const double share = planned.device_bytes / cp.device_bytes;
  return {
      {"data parallelism: no communication, memory balanced, computation not",
       fmt::format("{:.1f} MB, {} more tokens, {} more FLOPs than the mean", 1e-6 * dp.device_bytes,
                   whole_percent(dp.token_overload), whole_percent(dp.compute_overload)),
       dp.device_bytes == 0 && dp.token_overload == 0 && dp.compute_overload > 0.1},
      {"planned: half of the communication of context parallelism, memory and computation "
       "balanced",
       fmt::format("{:.2f} of it, {} more tokens, {} more FLOPs than the mean", share,
                   whole_percent(planned.token_overload), whole_percent(planned.compute_overload)),
       share < 0.52 && planned.token_overload <= 0.1 && planned.compute_overload <= 0.1,
       "at most 0.52 of the bytes, 10% more than the mean"}};
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(
      overrides, "dcp-fig5",
      {"--tokens", "--heads", "--kv-heads", "--head-dim", "--cluster", "--block-size"});
  PaperSetting setting = dcp_attention_setting();
  setting.batch.tokens = 16384;
  setting.cluster_name = "p4de:1x2";
  apply_overrides(overrides, setting);
  if (!overrides.block_size) setting.input.options.block_size = setting.batch.tokens / 16;
  setting.input.options.backward = false;
  const std::int64_t length = setting.batch.tokens / 4;
  const std::vector<Workload> batches = {
      make_workload(std::vector<std::int64_t>{2 * length, length, length}, setting.shape)};
  Table table({{"way", "way"},
               {"strategy", "strategy"},
               {"device_bytes", "MB per\ndevice", Format::kMegabytes},
               {"compute_overload", "FLOPs\nover", Format::kPercent},
               {"token_overload", "tokens\nover", Format::kPercent}});
  Progress progress(overrides, static_cast<std::int64_t>(kWays.size()));
  std::array<MeanMovement, kWays.size()> ways;
  for (std::size_t i = 0; i < kWays.size(); ++i) {
    progress.step(kWays[i].name);
    ways[i] = movement_of(parse_strategies(kWays[i].strategy).front(), setting.input, batches);
    table.add_row({std::string(kWays[i].name), std::string(kWays[i].strategy), ways[i].device_bytes,
                   ways[i].compute_overload, ways[i].token_overload});
  }
  PaperResult result{.setting = setting.description(), .table = std::move(table)};
  result.setting[0] = {"lengths", fmt::format("{}, {}, {}", 2 * length, length, length)};
  result.setting.push_back(kDcpIs);
  result.plots = {{.x = "way", .y = {"device_bytes"}}};
  result.findings = findings_of(ways);
  result.differences = {
      "Keys and values of one layer's forward. The figure's blocks of the long sequence are twice "
      "as long; here all are of one length. Its third way is found by hand, ours by the planner."};
  return result;
}

}  // namespace

PaperTable dcp_fig5() {
  return {"dcp-fig5", "DCP (SOSP 2025), Fig. 5",
          "a long and two short sequences on two devices, three ways", make};
}

}  // namespace contextile
