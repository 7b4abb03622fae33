// FCP (flexible context parallelism, MLSys 2026), Fig. 12: speed against the block size. The paper
// measured GPUs; here everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "labs/papers/fcp/setting.h"
#include "labs/papers/findings.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"
#include "labs/papers/times.h"

namespace contextile {
namespace {

constexpr std::array<std::int64_t, 5> kBlocks = {1024, 2048, 4096, 6144, 8192};
constexpr std::size_t kBlock2048 = 1;
constexpr std::size_t kBlock6144 = 3;

std::vector<Finding> block_findings(std::span<const double> totals_s) {
  constexpr double kPaperChange = 0.07;
  constexpr double kSlack = 0.05;
  const std::int64_t best =
      kBlocks[static_cast<std::size_t>(std::ranges::min_element(totals_s) - totals_s.begin())];
  Extent middle;
  for (std::size_t i = kBlock2048; i <= kBlock6144; ++i) middle.take(totals_s[i]);
  const double change = middle.most / middle.least - 1;
  return {
      {fmt::format("best at {}", kFcpBlock), fmt::format("best at {}", best), best == kFcpBlock},
      {"about 7% between 2048 and 6144", whole_percent(change),
       std::abs(change - kPaperChange) <= kSlack,
       "the slowest of 2048, 4096 and 6144 takes 2% to 12% longer than the fastest"}};
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(
      overrides, "fcp-fig12",
      {"--dataset", "--batches", "--seed", "--heads", "--kv-heads", "--head-dim", "--wire"});
  const PaperSetting setting = fcp_setting(overrides, kFcpFigureDevices);
  const auto batches = setting.batches(setting.datasets.front(), "causal");
  Table table({{"block", "block"},
               {"forward_s", "forward\nms", Format::kMilliseconds},
               {"backward_s", "backward\nms", Format::kMilliseconds},
               {"total_s", "total\nms", Format::kMilliseconds}});
  Progress progress(overrides, std::ssize(kBlocks));
  std::vector<double> totals_s;
  for (const std::int64_t block : kBlocks) {
    progress.step(fmt::format("{}", block));
    const StrategyChoice choice{"fcp", {{"block", fmt::format("{}", block)}}};
    const Predicted predicted = predict_times(choice, setting.input, batches);
    if (!predicted.skipped.empty()) {
      table.add_row({block}, skipped_note(choice, predicted.skipped));
      continue;
    }
    table.add_row({block, predicted.forward_s, predicted.backward_s, predicted.total_s});
    totals_s.push_back(predicted.total_s);
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.plots = {{.x = "block", .y = {"forward_s", "backward_s", "total_s"}}};
  if (totals_s.size() == kBlocks.size()) result.findings = block_findings(totals_s);
  result.differences.emplace_back(kFcpLengthsAre);
  return result;
}

}  // namespace

PaperTable fcp_fig12() {
  return {"fcp-fig12", "FCP, Fig. 12", "speed against the block size", make};
}

}  // namespace contextile
