// DCP (Jiang et al., SOSP 2025), Fig. 14: speed under sparse masks. The paper measured GPUs; here
// everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <algorithm>
#include <array>
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

// The gains under one sparse mask: at every scale, those of all samples.
struct MaskGains {
  const char* name;
  std::array<std::vector<double>, kDcpScales.size()> by_scale;
  Extent range;

  [[nodiscard]] bool complete() const {
    return std::ranges::all_of(by_scale,
                               [](const auto& gains) { return gains.size() == kDcpSeeds; });
  }
};

std::vector<Finding> sparse_findings(std::span<const MaskGains> masks) {
  std::vector<std::string> texts;
  bool within = true;
  for (const MaskGains& mask : masks) {
    if (!mask.complete()) return {};  // compared with nothing
    Extent means;
    for (const std::vector<double>& gains : mask.by_scale) means.take(mean_of(gains));
    texts.push_back(
        fmt::format("{} {} ({})", mask.name, dcp_gain_text(means), dcp_gain_text(mask.range)));
    within = within && means.within(2.15, 3.77);
  }
  bool ordered = true;
  for (std::size_t i = 0; i < kDcpScales.size(); ++i) {
    const double shared = mean_of(masks.back().by_scale[i]);
    ordered =
        ordered && mean_of(masks[0].by_scale[i]) > shared && mean_of(masks[1].by_scale[i]) > shared;
  }
  const std::string ours =
      fmt::format("means of {} (all): {}", count(kDcpSeeds, "seed"), fmt::join(texts, ", "));
  return {{"2.15x to 3.77x over TransformerEngine with masks", ours, within,
           "the means over seeds of every mask and scale lie in that range"},
          {"more for lambda and causal-blockwise than for the shared question", ours, ordered,
           "both gain more at every scale, by means over the seeds"}};
}

PaperResult make(const TableOverrides& overrides) {
  const PaperSetting setting = dcp_speed_setting(overrides);
  const std::vector<TimedMethod> methods = {{.ways = parse_strategies("dcp")},
                                            {.ways = transformer_engine_choices()}};
  const std::span sparse(kDcpMasks.begin() + 1, kDcpMasks.end());
  const std::vector<Column> columns =
      time_columns({{"mask", "mask"}, {"scale", "scale"}, {"strategy", "strategy"}});
  Table table(columns);
  Table other_seeds(columns);
  Progress progress(overrides,
                    static_cast<std::int64_t>(kDcpSeeds * sparse.size() * kDcpScales.size() *
                                              (1 + methods[1].ways.size())));
  std::vector<MaskGains> all;
  for (const PaperMask& mask : sparse) {
    MaskGains& gains = all.emplace_back(mask.name);
    for (std::int32_t i = 0; i < kDcpSeeds; ++i) {
      PaperSetting sample = sample_of(setting, i);
      for (std::size_t scale = 0; scale < kDcpScales.size(); ++scale) {
        sample.batch.scale = kDcpScales[scale];
        const auto batches = sample.batches(sample.datasets.front(), mask.spec);
        const auto gain =
            add_times(methods, sample.input, batches, {std::string(mask.name), kDcpScales[scale]},
                      progress, i == 0 ? table : other_seeds);
        if (!gain) continue;
        gains.by_scale[scale].push_back(*gain);
        gains.range.take(*gain);
      }
    }
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.setting.push_back(kDcpIs);
  result.setting.emplace_back("masks", dcp_masks_text(sparse));
  result.plots = {{.x = "scale", .y = {"total_s"}, .series = {"strategy"}, .panels = {"mask"}}};
  result.findings = sparse_findings(all);
  result.differences.push_back(kTransformerEngineIs);
  result.differences.push_back(
      fmt::format("The table is of seed {}; statements about the paper are of that one and the {} "
                  "after it.",
                  setting.batch.seed, kDcpSeeds - 1));
  return result;
}

}  // namespace

PaperTable dcp_fig14() {
  return {"dcp-fig14", "DCP (SOSP 2025), Fig. 14", "speed under sparse masks, by scale of lengths",
          make};
}

}  // namespace contextile
