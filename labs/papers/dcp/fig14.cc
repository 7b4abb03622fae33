// DCP (Jiang et al., SOSP 2025), Fig. 14: speed under sparse masks. The paper measured GPUs; here
// everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
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
  std::vector<double> dcp_s;
  std::vector<double> te_s;
  std::vector<double> sequences;  // of a batch, on average
  Extent batches;                 // gains of single batches, all scales

  [[nodiscard]] bool complete() const { return dcp_s.size() == kDcpScales.size(); }
  // Returns the gains if DCP takes `dcp_ms` longer, and TE so many for each sequence.
  [[nodiscard]] Extent gains(double dcp_ms = 0, double te_sequence_ms = 0) const {
    Extent gains;
    for (std::size_t i = 0; i < dcp_s.size(); ++i) gains.take(gain(i, dcp_ms, te_sequence_ms));
    return gains;
  }
  [[nodiscard]] double gain(std::size_t i, double dcp_ms = 0, double te_sequence_ms = 0) const {
    return (te_s[i] + 1e-3 * te_sequence_ms * sequences[i]) / (dcp_s[i] + 1e-3 * dcp_ms);
  }
};

std::string gains_text(std::span<const MaskTimes> masks, double dcp_ms, double te_sequence_ms) {
  std::vector<std::string> texts;
  for (const MaskTimes& mask : masks) {
    texts.push_back(
        fmt::format("{} {}", mask.name, dcp_gain_text(mask.gains(dcp_ms, te_sequence_ms))));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::vector<Finding> sparse_findings(std::span<const MaskTimes> masks) {
  bool within = true;
  bool ordered = true;
  for (const MaskTimes& mask : masks) {
    if (!mask.complete()) return {};  // compared with nothing
    within = within && mask.gains().within(2.15, 3.77);
  }
  for (std::size_t i = 0; i < kDcpScales.size(); ++i) {
    const double shared = masks.back().gain(i);
    ordered = ordered && masks[0].gain(i) > shared && masks[1].gain(i) > shared;
  }
  std::vector<std::string> texts;
  for (const MaskTimes& mask : masks) {
    texts.push_back(fmt::format("{} {} ({})", mask.name, dcp_gain_text(mask.gains()),
                                dcp_gain_text(mask.batches)));
  }
  const std::string ours = fmt::format("{}", fmt::join(texts, ", "));
  return {{"2.15x to 3.77x over TransformerEngine with masks", ours, within,
           "every mask and scale lies in that range"},
          {"more for lambda and causal-blockwise than for the shared question", ours, ordered,
           "both gain more at every scale"}};
}

// The costs that the paper names, added afterwards.
std::string costs_text(std::span<const MaskTimes> masks) {
  std::vector<std::string> texts;
  for (const auto& [dcp_ms, te_sequence_ms] :
       {std::pair(0.0, 0.05), {0.0, 0.2}, {1.0, 0.0}, {2.0, 0.0}}) {
    texts.push_back(fmt::format("{}: {}",
                                te_sequence_ms > 0
                                    ? fmt::format("TE {} ms more for each sequence", te_sequence_ms)
                                    : fmt::format("DCP {} ms more", dcp_ms),
                                gains_text(masks, dcp_ms, te_sequence_ms)));
  }
  return fmt::format(
      "The simulation knows no work of the host. With some, forward and backward "
      "together: {}.",
      fmt::join(texts, "; "));
}

constexpr std::size_t kTotalCell = 5;  // of a row: behind mask, scale, strategy and two times

PaperResult make(const TableOverrides& overrides) {
  PaperSetting setting = dcp_speed_setting(overrides);
  const std::vector<TimedMethod> methods = {{.ways = parse_strategies("dcp")},
                                            {.ways = {transformer_engine_choice()}}};
  const std::span sparse(kDcpMasks.begin() + 1, kDcpMasks.end());
  Table table(time_columns({{"mask", "mask"}, {"scale", "scale"}, {"strategy", "strategy"}}));
  Progress progress(overrides, static_cast<std::int64_t>(sparse.size() * kDcpScales.size() * 2));
  std::vector<MaskTimes> all;
  for (const PaperMask& mask : sparse) {
    MaskTimes& times = all.emplace_back(
        MaskTimes{.name = mask.name, .dcp_s = {}, .te_s = {}, .sequences = {}, .batches = {}});
    for (const double scale : kDcpScales) {
      setting.batch.scale = scale;
      const auto batches = setting.batches(setting.datasets.front(), mask.spec);
      const std::size_t row = table.num_rows();
      const auto gain = add_times(methods, setting.input, batches, {std::string(mask.name), scale},
                                  progress, table, Mean::kArithmetic);
      if (!gain) continue;
      const std::span<const Cell> dcp = table.cells(row);
      times.dcp_s.push_back(std::get<double>(dcp[kTotalCell]));
      times.te_s.push_back(times.dcp_s.back() * gain->mean);
      times.batches.take(gain->spread.p10);
      times.batches.take(gain->spread.p90);
      times.sequences.push_back(mean_sequences(batches));
    }
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.setting.push_back(kDcpIs);
  result.setting.emplace_back("masks", dcp_masks_text(sparse));
  result.plots = {{.x = "scale", .y = {"total_s"}, .series = {"strategy"}, .panels = {"mask"}}};
  result.findings = sparse_findings(all);
  result.differences.insert(result.differences.end(),
                            {kDocumentsAreWhole, kTransformerEngineIs, kSpreadIs});
  if (!result.findings.empty()) result.differences.push_back(costs_text(all));
  return result;
}

}  // namespace

PaperTable dcp_fig14() {
  return {"dcp-fig14", "DCP (SOSP 2025), Fig. 14", "speed under sparse masks, by scale of lengths",
          make};
}

}  // namespace contextile
