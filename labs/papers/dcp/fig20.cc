// DCP (Jiang et al., SOSP 2025), Fig. 20: bytes against the imbalance allowed.
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "labs/papers/dcp/ablation.h"
#include "labs/papers/dcp/setting.h"
#include "labs/papers/movement.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

constexpr std::array<const char*, 6> kEps = {"0.02", "0.05", "0.1", "0.2", "0.4", "0.8"};

// One dataset under one mask, by eps.
struct EpsCase {
  std::string name;
  std::array<MeanMovement, kEps.size()> dcp;
};

// "+12%": the growth of `now` over `before`.
std::string growth_text(double now, double before) {
  return before > 0 ? fmt::format("{:+.0f}%", 100 * (now / before - 1)) : "nothing moves";
}

void add_fall_finding(std::span<const EpsCase> cases, const Volume& volume,
                      std::vector<Finding>& findings) {
  constexpr double kSlack = 0.02;
  std::vector<std::string> texts;
  std::size_t falling = 0;
  for (const EpsCase& one : cases) {
    const double first = one.dcp.front().*volume.bytes;
    const double last = one.dcp.back().*volume.bytes;
    if (!(first > 0)) continue;
    bool falls = last < first;
    for (std::size_t i = 1; i < one.dcp.size(); ++i) {
      falls = falls && one.dcp[i].*volume.bytes <= one.dcp[i - 1].*volume.bytes + kSlack * first;
    }
    if (falls) ++falling;
    texts.push_back(fmt::format("{} {}{}", one.name, growth_text(last, first),
                                falls || last >= first ? "" : " (not at every step)"));
  }
  if (texts.empty()) return;
  findings.push_back(
      {fmt::format("{} volume falls as eps grows", volume.name),
       fmt::format("{} of {}, from eps {} to {}: {}", falling, texts.size(), kEps.front(),
                   kEps.back(), fmt::join(texts, ", ")),
       falling == texts.size(),
       fmt::format("under every mask less at the end, and no step up of more than {:.0f}% of the "
                   "first value",
                   100 * kSlack)});
}

PaperResult make(const TableOverrides& overrides) {
  PaperSetting setting = ablation_setting(overrides);
  if (!overrides.block_size) setting.input.options.block_size = kDcpBlock;
  if (overrides.dataset.empty()) setting.datasets = {"longdatacollections"};
  Table table(movement_columns(case_columns({{"eps_node", "eps"}})));
  Progress progress(overrides, static_cast<std::int64_t>(setting.datasets.size() *
                                                         kDcpMasks.size() * kEps.size()));
  std::vector<EpsCase> cases;
  for (const std::string& dataset : setting.datasets) {
    for (const auto& [name, mask] : kDcpMasks) {
      const std::vector<Workload> batches = setting.batches(dataset, mask);
      EpsCase& one = cases.emplace_back(EpsCase{.name = case_text(dataset, name), .dcp = {}});
      for (std::size_t i = 0; i < kEps.size(); ++i) {
        progress.step(name);
        one.dcp[i] = movement_of(dcp_with({{"eps_node", kEps[i]}}), setting.input, batches);
        std::vector<Cell> cells = case_cells(dataset, name);
        cells.emplace_back(std::string(kEps[i]));
        add_movement(table, std::move(cells), one.dcp[i]);
      }
    }
  }
  PaperResult result = ablation_result(setting, std::move(table));
  result.setting.emplace_back("masks", dcp_masks_text(kDcpMasks));
  result.plots = {
      {.x = "eps_node", .y = {"inter_bytes"}, .series = {"mask"}, .panels = {"dataset"}},
      {.x = "eps_node", .y = {"busiest_bytes"}, .series = {"mask"}, .panels = {"dataset"}}};
  for (const Volume& volume : kVolumes) add_fall_finding(cases, volume, result.findings);
  result.differences.push_back(kBytesDiffer);
  result.differences.emplace_back(
      "eps is what nodes may exceed the mean work by; devices inside a node may exceed theirs by "
      "0.1 throughout.");
  return result;
}

}  // namespace

PaperTable dcp_fig20() {
  return {"dcp-fig20", "DCP (SOSP 2025), Fig. 20", "bytes against the imbalance allowed, eps",
          make};
}

}  // namespace contextile
