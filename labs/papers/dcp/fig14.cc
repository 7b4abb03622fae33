// DCP (Jiang et al., SOSP 2025), Fig. 14: speed under sparse masks. The paper measured GPUs; here
// everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "labs/papers/dcp/setting.h"
#include "labs/papers/dcp/speed.h"
#include "labs/papers/findings.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"
#include "labs/papers/times.h"

namespace contextile {
namespace {

// DCP and TransformerEngine under one sparse mask, at every scale.
struct MaskTimes {
  const char* name;
  std::vector<double> gains;  // of DCP over TransformerEngine
  Extent batches;             // gains of single batches, all scales

  [[nodiscard]] bool complete() const { return gains.size() == kDcpScales.size(); }
  [[nodiscard]] Extent extent() const {
    Extent extent;
    for (const double gain : gains) extent.take(gain);
    return extent;
  }
};

std::vector<Finding> sparse_findings(std::span<const MaskTimes> masks) {
  bool within = true;
  bool ordered = true;
  for (const MaskTimes& mask : masks) {
    if (!mask.complete()) return {};  // compared with nothing
    within = within && mask.extent().within(2.15, 3.77);
  }
  for (std::size_t i = 0; i < kDcpScales.size(); ++i) {
    const double shared = masks.back().gains[i];
    ordered = ordered && masks[0].gains[i] > shared && masks[1].gains[i] > shared;
  }
  std::vector<std::string> texts;
  for (const MaskTimes& mask : masks) {
    texts.push_back(fmt::format("{} {} ({})", mask.name, dcp_gain_text(mask.extent()),
                                dcp_gain_text(mask.batches)));
  }
  const std::string ours = fmt::format("{}", fmt::join(texts, ", "));
  return {{"2.15x to 3.77x over TransformerEngine with masks", ours, within,
           "every mask and scale lies in that range"},
          {"more for lambda and causal-blockwise than for the shared question", ours, ordered,
           "both gain more at every scale"}};
}

PaperResult make(const TableOverrides& overrides) {
  PaperSetting setting = dcp_speed_setting(overrides);
  const std::vector<TimedMethod> methods = {
      {.ways = parse_strategies("dcp"), .engine = "dcp"},
      {.ways = {transformer_engine_choice()}, .engine = "te"}};
  const std::span sparse(kDcpMasks.begin() + 1, kDcpMasks.end());
  Table table(time_columns({{"mask", "mask"}, {"scale", "scale"}, {"strategy", "strategy"}}));
  Progress progress(overrides, static_cast<std::int64_t>(sparse.size() * kDcpScales.size() * 2));
  std::vector<MaskTimes> all;
  for (const PaperMask& mask : sparse) {
    MaskTimes& times = all.emplace_back(MaskTimes{.name = mask.name, .gains = {}, .batches = {}});
    for (const double scale : kDcpScales) {
      setting.batch.scale = scale;
      const auto batches = setting.batches(setting.datasets.front(), mask.spec);
      const auto gain = add_times(methods, setting.input, batches, {std::string(mask.name), scale},
                                  progress, table, Mean::kArithmetic);
      if (!gain) continue;
      times.gains.push_back(gain->mean);
      times.batches.take(gain->spread.p10);
      times.batches.take(gain->spread.p90);
    }
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.setting.push_back(kDcpIs);
  result.setting.emplace_back("masks", dcp_masks_text(sparse));
  result.plots = {{.x = "scale", .y = {"total_s"}, .series = {"strategy"}, .panels = {"mask"}}};
  result.findings = sparse_findings(all);
  result.differences.insert(result.differences.end(),
                            {kDocumentsAreWhole, kTransformerEngineIs, kEnginesAre, kSpreadIs});
  return result;
}

}  // namespace

PaperTable dcp_fig14() {
  return {"dcp-fig14", "DCP (SOSP 2025), Fig. 14", "speed under sparse masks, by scale of lengths",
          make};
}

}  // namespace contextile
