// DCP (Jiang et al., SOSP 2025), Fig. 22: the parts of the time of a step. The paper measured GPUs;
// here everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "labs/papers/dcp/setting.h"
#include "labs/papers/dcp/step_parts.h"
#include "labs/papers/findings.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// DCP and TransformerEngine under one mask.
struct MaskParts {
  std::string_view mask;
  StepParts dcp;
  StepParts te;
};

// The paper's statements about the causal mask.
void add_causal_findings(const MaskParts& causal, std::vector<Finding>& findings) {
  const auto share = [](const StepParts& parts) {
    return parts.communication_s() > 0 ? parts.overlapped_s / parts.communication_s() : 0;
  };
  findings.push_back(
      {"causal: noticeably less time in which communication overlaps with computation",
       fmt::format("{:.0f} ms, {:.0f} ms of TE's ({} and {} of their communication)",
                   1e3 * causal.dcp.overlapped_s, 1e3 * causal.te.overlapped_s,
                   whole_percent(share(causal.dcp)), whole_percent(share(causal.te))),
       causal.dcp.overlapped_s < 0.9 * causal.te.overlapped_s, "below 0.9 of TE's time"});
  const double gain = causal.te.step_s / causal.dcp.step_s;
  findings.push_back({"causal: slightly slower than TE", fmt::format("{:.2f}x as fast", gain),
                      gain > 0.9 && gain < 1, "0.9x to 1x as fast"});
}

std::vector<Finding> fig22_findings(std::span<const MaskParts> masks) {
  constexpr double kSlightly = 0.75;
  bool less = true;
  bool slightly = true;
  std::vector<std::string> communication;
  std::vector<std::string> attention;
  std::vector<double> ratios;  // in the order of masks
  for (const auto& [mask, dcp, te] : masks) {
    if (!(te.communication_s() > 0)) return {};  // one device: nothing to compare
    communication.push_back(
        fmt::format("{} {:.2f}", mask, dcp.communication_s() / te.communication_s()));
    less = less && dcp.communication_s() < te.communication_s();
    if (mask == "causal") continue;
    const double ratio = dcp.attention_s / te.attention_s;
    attention.push_back(fmt::format("{} {:.2f}", mask, ratio));
    ratios.push_back(ratio);
    slightly = slightly && ratio >= kSlightly && ratio < 1;
  }
  std::vector<Finding> findings;
  if (masks.size() == kDcpMasks.size()) {
    findings = {{"less communication in all, exposed and overlapped together, under every mask",
                 fmt::format("of TE's: {}", fmt::join(communication, ", ")), less},
                {"slightly less time in attention under sparse masks",
                 fmt::format("of TE's: {}", fmt::join(attention, ", ")), slightly,
                 fmt::format("{} of TE's or more, and less than it, under each", kSlightly)},
                {"less of it under lambda and causal-blockwise than under the shared question",
                 fmt::format("of TE's: {}", fmt::join(attention, ", ")),
                 std::max(ratios[0], ratios[1]) < ratios[2]}};
  }
  for (const MaskParts& parts : masks) {
    if (parts.mask == "causal") add_causal_findings(parts, findings);
  }
  return findings;
}

PaperResult make(const TableOverrides& overrides) {
  const PaperSetting setting = step_setting(overrides, "dcp-fig22", "p4de:8x8");
  Table table(part_columns({{"mask", "mask"}, {"strategy", "strategy"}}));
  Progress progress(overrides, 2 * std::ssize(kDcpMasks));
  std::vector<MaskParts> compared;
  for (const auto& [name, mask] : kDcpMasks) {
    progress.step(fmt::format("{}, dcp", name));
    const StepParts dcp = step_parts({"dcp", {}}, setting, mask);
    progress.step(fmt::format("{}, TransformerEngine", name));
    const StepParts te = transformer_engine(setting, mask);
    add_parts(dcp, {std::string(name), std::string("dcp")}, table);
    add_parts(te, {std::string(name), table_name(transformer_engine_choice())}, table);
    if (dcp.skipped.empty() && te.skipped.empty()) compared.push_back({name, dcp, te});
  }
  PaperResult result = steps_result(setting, std::move(table));
  result.setting.push_back(kDcpIs);
  result.setting.emplace_back("masks", dcp_masks_text(kDcpMasks));
  result.plots = {{.x = "strategy",
                   .y = {"attention_s", "exposed_s", "overlapped_s", "idle_s", "other_s"},
                   .panels = {"mask"}}};
  result.findings = fig22_findings(compared);
  result.differences.insert(result.differences.end(), {kOverlapMeans, kTransformerEngineIs});
  return result;
}

}  // namespace

PaperTable dcp_fig22() {
  return {"dcp-fig22", "DCP (SOSP 2025), Fig. 22", "where the time of a step goes, by mask", make};
}

}  // namespace contextile
