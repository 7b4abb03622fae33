// DCP (Jiang et al., SOSP 2025), Fig. 17: bytes against the block size.
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "labs/papers/dcp/ablation.h"
#include "labs/papers/dcp/setting.h"
#include "labs/papers/findings.h"
#include "labs/papers/movement.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// One dataset under one mask: dcp by block size, and the baseline that moves least.
struct BlockSizeCase {
  std::string name;
  std::array<MeanMovement, kDcpBlockSizes.size()> dcp;
  MeanMovement baseline;
};

// Returns the ring whose busiest device moves the fewest bytes.
MeanMovement add_baselines(const PaperSetting& setting, std::span<const Workload> batches,
                           const std::vector<Cell>& labels, Progress& progress, Table& table) {
  std::optional<MeanMovement> least;
  for (const char* text : {"ring", "zigzag", "hybrid:head_parallel=2"}) {
    const StrategyChoice baseline = parse_strategies(text).front();
    progress.step(text);
    std::vector<Cell> cells = labels;
    cells.insert(cells.end(), {table_name(baseline), Cell{}});
    if (const auto reason = unsupported_reason(batches.front(), setting.input.cluster, baseline,
                                               setting.input.options)) {
      table.add_row(std::move(cells), fmt::format("{} skipped: {}", text, *reason));
      continue;
    }
    const MeanMovement movement = movement_of(baseline, setting.input, batches);
    add_movement(table, std::move(cells), movement);
    if (!least || movement.busiest_bytes < least->busiest_bytes) least = movement;
  }
  return *least;  // a ring applies to everything
}

BlockSizeCase add_block_sizes(const PaperSetting& setting, const std::string& dataset,
                              const PaperMask& mask, Progress& progress, Table& table) {
  const std::vector<Workload> batches = setting.batches(dataset, mask.spec);
  const std::vector<Cell> labels = case_cells(dataset, mask.name);
  BlockSizeCase one{.name = case_text(dataset, mask.name), .dcp = {}, .baseline = {}};
  one.baseline = add_baselines(setting, batches, labels, progress, table);
  PlanInput input = setting.input;
  const auto plan = [&](const StrategyChoice& choice, std::int64_t block) {
    progress.step(choice.name);
    input.options.block_size = block;
    const MeanMovement movement = movement_of(choice, input, batches);
    std::vector<Cell> cells = labels;
    cells.insert(cells.end(), {table_name(choice), block});
    add_movement(table, std::move(cells), movement);
    return movement;
  };
  for (std::size_t i = 0; i < kDcpBlockSizes.size(); ++i)
    one.dcp[i] = plan(dcp_with(), kDcpBlockSizes[i]);
  (void)plan(dcp_with({{"relays", "on"}}), kDcpBlock);
  return one;
}

// Considers only the cases in which something moves at all.
void add_growth_finding(std::span<const BlockSizeCase> cases, const Volume& volume,
                        std::vector<Finding>& findings) {
  constexpr double kLeast = -0.02;
  constexpr double kMost = 0.5;
  std::vector<std::string> texts;
  std::size_t slightly = 0;
  for (const BlockSizeCase& one : cases) {
    const double before = one.dcp.front().*volume.bytes;
    if (!(before > 0)) continue;
    const double growth = one.dcp.back().*volume.bytes / before - 1;
    if (growth >= kLeast && growth <= kMost) ++slightly;
    texts.push_back(fmt::format("{} {:+.0f}%", one.name, 100 * growth));
  }
  if (texts.empty()) return;
  findings.push_back(
      {fmt::format("{} volume grows slightly with the block size", volume.name),
       fmt::format("{} of {} from 512 to 4096: {}", slightly, texts.size(), fmt::join(texts, ", ")),
       slightly == texts.size(),
       fmt::format("every dataset and mask grows by {:.0f}% to {:.0f}%", 100 * kLeast,
                   100 * kMost)});
}

void add_distance_finding(std::span<const BlockSizeCase> cases, const Volume& volume,
                          std::vector<Finding>& findings) {
  constexpr double kFarBelow = 0.5;
  Extent shares;
  for (const BlockSizeCase& one : cases) {
    const double baseline = one.baseline.*volume.bytes;
    if (!(baseline > 0)) continue;
    for (const MeanMovement& dcp : one.dcp) shares.take(dcp.*volume.bytes / baseline);
  }
  if (!shares.any()) return;
  findings.push_back(
      {fmt::format("{} volume is far below the baseline's", volume.name),
       fmt::format("{:.3f} to {:.2f} of it", shares.least, shares.most), shares.most < kFarBelow,
       fmt::format("below {} of it for every dataset, mask and block size", kFarBelow)});
}

// The other effects of a larger block.
std::string overload_text(std::span<const BlockSizeCase> cases) {
  double small = 0;
  double large = 0;
  for (const BlockSizeCase& one : cases) {
    small += one.dcp.front().token_overload / static_cast<double>(cases.size());
    large += one.dcp.back().token_overload / static_cast<double>(cases.size());
  }
  return fmt::format(
      "The fullest device has {} more tokens than the mean at blocks of {} and {} more at {} "
      "(tokens over): as much as packing whole blocks longest first needs.",
      whole_percent(small), kDcpBlockSizes.front(), whole_percent(large), kDcpBlockSizes.back());
}

PaperResult make(const TableOverrides& overrides) {
  refuse_block_size(overrides, "dcp-fig17");
  const PaperSetting setting = ablation_setting(overrides);
  Table table(
      movement_columns(case_columns({{"strategy", "strategy"}, {"block_tokens", "block"}})));
  std::vector<BlockSizeCase> cases;
  Progress progress(overrides,
                    static_cast<std::int64_t>(setting.datasets.size() * kDcpMasks.size() *
                                              (kDcpBlockSizes.size() + 4)));
  for (const std::string& dataset : setting.datasets) {
    for (const PaperMask& mask : kDcpMasks) {
      cases.push_back(add_block_sizes(setting, dataset, mask, progress, table));
    }
  }
  PaperResult result = ablation_result(setting, std::move(table));
  result.setting.emplace_back("masks", dcp_masks_text(kDcpMasks));
  result.plots = {{.x = "block_tokens",
                   .y = {"inter_bytes"},
                   .series = {"strategy"},
                   .panels = {"dataset", "mask"}},
                  {.x = "block_tokens",
                   .y = {"busiest_bytes"},
                   .series = {"strategy"},
                   .panels = {"dataset", "mask"}}};
  for (const Volume& volume : kVolumes) {
    add_growth_finding(cases, volume, result.findings);
    add_distance_finding(cases, volume, result.findings);
  }
  result.differences.push_back(kBytesDiffer);
  result.differences.insert(
      result.differences.end(),
      {"The baseline is the one of ring, zigzag and hybrid whose busiest device moves least.",
       "The rows relays=on are ours: a unit crosses a node boundary once and is passed on.",
       overload_text(cases)});
  return result;
}

}  // namespace

PaperTable dcp_fig17() {
  return {"dcp-fig17", "DCP (SOSP 2025), Fig. 17",
          "inter-node and per-device bytes against the block size, with rings", make};
}

}  // namespace contextile
