// FCP (flexible context parallelism, MLSys 2026), Fig. 10 (section 6.3): the share of one GPU's MFU
// with documents of one length, the average. The paper measured GPUs; here everything is simulated
// on a preset's constants.
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <iterator>
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

// The average of the sampled lengths.
std::int64_t average_length(const PaperSetting& setting, const std::string& dataset) {
  std::int64_t tokens = 0;
  std::int64_t documents = 0;
  for (const auto& batch : batches_from_dataset(dataset, setting.batch)) {
    for (const std::int64_t length : batch) tokens += length;
    documents += std::ssize(batch);
  }
  return (tokens + documents / 2) / documents;
}

// A batch of documents of one length; the last may be shorter.
Workload equal_lengths(const PaperSetting& setting, std::int64_t length) {
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(setting.batch.tokens / length),
                                    length);
  if (setting.batch.tokens % length > 0) lengths.push_back(setting.batch.tokens % length);
  const MaskUse causal = parse_mask_use("causal");
  return make_workload(lengths, setting.shape, {&causal, 1});
}

// Over all lengths and numbers of devices, forward and backward.
std::vector<Finding> equal_length_findings(const Extent& fcp, const Extent& ring) {
  constexpr double kFarLower = 0.1;
  std::vector<Finding> findings;
  const auto range = [](const Extent& extent) {
    return fmt::format("{} to {}", whole_percent(extent.least), whole_percent(extent.most));
  };
  if (fcp.any()) {
    findings.push_back({"fcp: above 90% of one GPU's MFU", range(fcp), fcp.least > 0.9,
                        "every length and number of devices, forward and backward"});
  }
  if (fcp.any() && ring.any()) {
    findings.push_back(
        {"ring: far lower", range(ring), ring.most < fcp.least - kFarLower,
         "the zigzag ring's largest share is 10 percentage points or more below FCP's smallest"});
  }
  return findings;
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "fcp-fig10",
                   {"--heads", "--kv-heads", "--head-dim", "--block-size", "--wire"});
  constexpr std::array<std::int32_t, 4> kDevices = {16, 32, 64, 128};
  const auto choices = parse_strategies(kFcpMethods);
  const std::vector<std::string> datasets = fcp_lengths_compared(overrides);
  Table table({{"lengths", "average of"},
               {"length", "tokens of a\ndocument"},
               {"devices", "devices"},
               {"strategy", "strategy"},
               {"forward_share", "forward\nshare"},
               {"backward_share", "backward\nshare"}});
  Progress progress(overrides, std::ssize(datasets) * std::ssize(kDevices) * std::ssize(choices));
  Extent fcp;
  Extent ring;
  for (const std::string& dataset : datasets) {
    for (const std::int32_t devices : kDevices) {
      const PaperSetting setting = fcp_setting(overrides, devices);
      const std::int64_t length =
          average_length(fcp_setting(overrides, kFcpFigureDevices), dataset);
      const Workload workload = equal_lengths(setting, length);
      for (const StrategyChoice& choice : choices) {
        progress.step(choice_text(choice));
        const GpuShares of = predict_shares(choice, setting.input, {&workload, 1});
        const std::vector<Cell> labels = {dataset, length, std::int64_t{devices},
                                          choice_text(choice)};
        if (!of.skipped.empty()) {
          table.add_row(labels, skipped_note(choice, of.skipped));
          continue;
        }
        table.add_row(
            {labels[0], labels[1], labels[2], labels[3], of.forward.share, of.backward.share});
        if (choice.name != "fcp" && choice.name != "zigzag") continue;
        for (const GpuShare& share : {of.forward, of.backward}) {
          (choice.name == "fcp" ? fcp : ring).take(share.share);
        }
      }
    }
  }
  PaperSetting shown = fcp_setting(overrides, kDevices.back());
  PaperResult result = timed_result(shown, std::move(table));
  const auto plot = [](const char* share) {
    return TablePlot{.x = "devices", .y = {share}, .series = {"strategy"}, .panels = {"lengths"}};
  };
  result.plots = {plot("forward_share"), plot("backward_share")};
  result.setting[0] = {"lengths", "documents of one length, the average of a distribution"};
  result.setting.push_back(fcp_block_setting(overrides));
  result.findings = equal_length_findings(fcp, ring);
  result.differences = {
      kTimesAreSimulated,
      "Shares: the time of one GPU that does a device's part in whole documents and keeps no "
      "multiprocessors for transfers, over the plan's time.",
      kFcpMachinesAre, kFcpSmsAre};
  return result;
}

}  // namespace

PaperTable fcp_fig10() {
  return {"fcp-fig10", "FCP, Fig. 10", "share of one device's MFU with documents of one length",
          make};
}

}  // namespace contextile
