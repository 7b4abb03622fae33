// FCP (flexible context parallelism, MLSys 2026), Fig. 12: MFU against the block size. The paper
// measured GPUs; here everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "labs/papers/fcp/methods.h"
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
  const auto [less_s, more_s] = std::minmax(totals_s[kBlock2048], totals_s[kBlock6144]);
  const double change = more_s / less_s - 1;
  return {
      {fmt::format("best at {}", kFcpBlock), fmt::format("best at {}", best), best == kFcpBlock},
      {"about 7% between 2048 and 6144", whole_percent(change),
       std::abs(change - kPaperChange) <= kSlack,
       "the slower of 2048 and 6144 takes 2% to 12% longer than the other"}};
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(
      overrides, "fcp-fig12",
      {"--dataset", "--batches", "--seed", "--heads", "--kv-heads", "--head-dim", "--wire"});
  PaperSetting setting = fcp_setting(overrides, kFcpFigureDevices);
  setting.datasets = fcp_lengths_compared(overrides);
  Table table({{"lengths", "lengths"},
               {"cut_heavy", "heavy\nblocks"},
               {"block", "block"},
               {"forward_mfu", "fwd\nMFU", Format::kPercent},
               {"forward_spread", "+-", Format::kPercent},
               {"backward_mfu", "bwd\nMFU", Format::kPercent},
               {"backward_spread", "+-", Format::kPercent},
               {"total_s", "total\nms", Format::kMilliseconds}});
  Progress progress(overrides, 2 * std::ssize(setting.datasets) * std::ssize(kBlocks));
  std::vector<double> totals_s;
  for (const std::string& dataset : setting.datasets) {
    const auto batches = setting.batches(dataset, "causal");
    for (const char* cut : {"on", "off"}) {
      for (const std::int64_t block : kBlocks) {
        progress.step(fmt::format("{}, {}", dataset, block));
        const StrategyChoice choice{"fcp",
                                    {{"block", fmt::format("{}", block)}, {"cut_heavy", cut}}};
        const GpuShares of = predict_shares(choice, setting.input, batches);
        const std::string way = std::string(cut) == "on" ? "cut" : "whole";
        if (!of.skipped.empty()) {
          table.add_row({dataset, way, block}, skipped_note(choice, of.skipped));
          continue;
        }
        const double total_s = of.forward.time_s + of.backward.time_s;
        table.add_row({dataset, way, block, of.forward.mfu, of.forward.mfu_spread, of.backward.mfu,
                       of.backward.mfu_spread, total_s});
        if (dataset == setting.datasets.front() && way == "cut") totals_s.push_back(total_s);
      }
    }
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.plots = {{.x = "block",
                   .y = {"forward_mfu", "backward_mfu"},
                   .series = {"cut_heavy"},
                   .panels = {"lengths"}}};
  if (totals_s.size() == kBlocks.size()) result.findings = block_findings(totals_s);
  for (const char* difference : {kFcpLengthsAre, kFcpMachinesAre, kFcpSmsAre}) {
    result.differences.emplace_back(difference);
  }
  return result;
}

}  // namespace

PaperTable fcp_fig12() {
  return {"fcp-fig12", "FCP, Fig. 12", "attention's MFU against the block size", make};
}

}  // namespace contextile
