// DCP (Jiang et al., SOSP 2025), Fig. 14: speed under sparse masks. The paper measured GPUs; here
// everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "papers/dcp/setting.h"
#include "papers/dcp/speed.h"
#include "papers/findings.h"
#include "papers/progress.h"
#include "papers/setting.h"
#include "papers/tables.h"
#include "papers/times.h"

namespace contextile {
namespace {

// The gains under one sparse mask, over all scales.
struct MaskGains {
  const char* name;
  std::vector<double> gains;
  Extent range;
};

std::vector<Finding> sparse_findings(std::span<const MaskGains> masks) {
  std::vector<std::string> texts;
  bool within = true;
  for (const MaskGains& mask : masks) {
    if (mask.gains.size() != kDcpScales.size()) return {};  // compared with nothing
    texts.push_back(fmt::format("{} {}", mask.name, dcp_gain_text(mask.range)));
    within = within && mask.range.within(2.15, 3.77);
  }
  bool ordered = true;
  for (std::size_t i = 0; i < kDcpScales.size(); ++i) {
    const double shared = masks.back().gains[i];
    ordered = ordered && masks[0].gains[i] > shared && masks[1].gains[i] > shared;
  }
  const std::string ours = fmt::format("{}", fmt::join(texts, ", "));
  return {{"2.15x to 3.77x over TransformerEngine with masks", ours, within,
           "every mask and scale lies in that range"},
          {"more for lambda and causal-blockwise than for the shared question", ours, ordered,
           "both gain more at every scale"}};
}

PaperResult make(const BenchOverrides& overrides) {
  BenchSetting setting = dcp_speed_setting(overrides);
  const auto choices = parse_strategies("dcp,hybrid:A=2");
  const std::span sparse(kDcpMasks.begin() + 1, kDcpMasks.end());
  Table table(time_columns({{"mask", "mask"}, {"scale", "scale"}, {"strategy", "strategy"}}));
  Progress progress(overrides,
                    static_cast<std::int64_t>(sparse.size() * kDcpScales.size() * choices.size()));
  std::vector<MaskGains> all;
  for (const PaperMask& mask : sparse) {
    MaskGains& gains = all.emplace_back(mask.name);
    for (const double scale : kDcpScales) {
      setting.batch.scale = scale;
      const auto batches = setting.batches(setting.datasets.front(), mask.spec);
      const auto gain = add_times(choices, setting.input, batches, {std::string(mask.name), scale},
                                  progress, table);
      if (!gain) continue;
      gains.gains.push_back(*gain);
      gains.range.take(*gain);
    }
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.setting.push_back(kDcpIs);
  result.setting.emplace_back("masks", dcp_masks_text(sparse));
  result.plots = {{.x = "scale", .y = {"total_s"}, .series = {"strategy"}, .panels = {"mask"}}};
  result.findings = sparse_findings(all);
  result.differences.push_back(
      "TransformerEngine's ring sends every key around whatever the mask, over uplinks that the "
      "devices of the preset's nodes share.");
  return result;
}

}  // namespace

PaperTable dcp_fig14() {
  return {"dcp-fig14", "DCP (SOSP 2025), Fig. 14", "speed under sparse masks, by scale of lengths",
          make};
}

}  // namespace contextile
