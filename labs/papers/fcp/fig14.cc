// FCP (flexible context parallelism, MLSys 2026), Fig. 14: the share of one GPU's MFU on GPU-Y. The
// paper measured GPUs; here everything is simulated on a preset's constants.
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

// The quantities that the claims are about, over all numbers of devices.
struct ShareSummary {
  Extent share;
  std::vector<std::string> shares;
  Extent gain;
  std::vector<std::string> gains;

  void take(const ComparedMethods& compared, std::int32_t devices) {
    if (!compared.fcp) return;
    share.take(compared.fcp->forward.share);
    shares.push_back(fmt::format("{:.2f} on {}", compared.fcp->forward.share, devices));
    if (compared.fastest.empty()) return;
    gain.take(compared.gain);
    gains.push_back(fmt::format("{} on {}", compared.text(), devices));
  }
  [[nodiscard]] std::vector<Finding> findings() const {
    std::vector<Finding> findings;
    if (share.any()) {
      findings.push_back({"over 70% of one GPU's MFU, forward",
                          fmt::format("{}", fmt::join(shares, ", ")), share.least > 0.7,
                          "at every number of devices"});
    }
    if (gain.any()) {
      findings.push_back({"ahead of every baseline",
                          fmt::format("over the fastest: {}", fmt::join(gains, ", ")),
                          gain.least > 1, "at every number of devices"});
    }
    return findings;
  }
};

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "fcp-fig14",
                   {"--dataset", "--tokens", "--batches", "--seed", "--heads", "--kv-heads",
                    "--head-dim", "--cluster", "--block-size"});
  std::vector<std::int32_t> all_devices(kFcpDevices.begin(), kFcpDevices.end());
  if (!overrides.cluster.empty() || overrides.tokens) all_devices = {kFcpDevices.front()};
  const auto choices = parse_strategies(fmt::format("{},{}", kFcpMethodsOnY, kFcpSmallBlocks));
  const std::vector<std::string> datasets = fcp_lengths_compared(overrides);
  Table table(forward_method_columns(
      {{"lengths", "lengths"}, {"devices", "GPUs"}, {"strategy", "strategy"}}));
  Progress progress(overrides,
                    std::ssize(datasets) * std::ssize(all_devices) * std::ssize(choices));
  ShareSummary summary;
  PaperSetting last;
  for (const std::string& dataset : datasets) {
    for (const std::int32_t of_paper : all_devices) {
      PaperSetting setting = fcp_setting(overrides, of_paper, kGpuY);
      setting.input.options.backward = false;
      const std::int32_t devices = setting.input.cluster.num_devices();
      const ComparedMethods compared =
          add_methods(choices, setting.input, setting.batches(dataset, "causal"),
                      {dataset, std::int64_t{devices}}, progress, table);
      if (dataset == datasets.front()) summary.take(compared, devices);
      last = std::move(setting);
    }
  }
  last.datasets = datasets;
  PaperResult result = timed_result(last, std::move(table));
  result.setting.push_back(fcp_block_setting(overrides));
  result.plots = {
      {.x = "devices", .y = {"forward_share"}, .series = {"strategy"}, .panels = {"lengths"}}};
  result.findings = summary.findings();
  for (const char* difference : {kFcpLengthsAre, kFcpMachinesAre, kFcpSmsAre}) {
    result.differences.emplace_back(difference);
  }
  result.differences.emplace_back(
      "One GPU's MFU: every document whole on one device, which keeps no multiprocessors for "
      "transfers. MagiAttention is not in the figure. More than 72 devices are domains of 64.");
  return result;
}

}  // namespace

PaperTable fcp_fig14() {
  return {"fcp-fig14", "FCP, Fig. 14", "share of one GPU's MFU on GPU-Y, forward", make};
}

}  // namespace contextile
