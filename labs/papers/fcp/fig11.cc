// FCP (flexible context parallelism, MLSys 2026), Fig. 11: MFU by the number of devices. The paper
// measured GPUs; here everything is simulated on a preset's constants.
#include <fmt/format.h>

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

// FCP alone goes on to this size.
constexpr std::int32_t kMostDevices = 512;

// The quantities that the claims are about: FCP at every number of devices, the first lengths'.
struct WeakScaling {
  Extent gains;  // over the fastest baseline
  std::vector<std::string> gain_texts;
  Extent mfu;  // both directions together
  std::vector<std::string> mfu_texts;

  void take(const ComparedMethods& compared, std::int32_t devices) {
    if (!compared.fcp) return;
    const GpuShare& forward = compared.fcp->forward;
    const GpuShare& backward = compared.fcp->backward;
    // FLOPs of both directions over their time.
    const double both = (forward.mfu * forward.time_s + backward.mfu * backward.time_s) /
                        (forward.time_s + backward.time_s);
    mfu.take(both);
    mfu_texts.push_back(fmt::format("{:.2f} on {}", both, devices));
    if (compared.fastest.empty()) return;
    gains.take(compared.gain);
    gain_texts.push_back(fmt::format("{} on {}", compared.text(), devices));
  }
  [[nodiscard]] std::vector<Finding> findings() const {
    constexpr double kNearLinear = 0.9;
    std::vector<Finding> findings;
    if (gains.any()) {
      findings.push_back({"1.13x to 2.21x the attention MFU of the baselines, 16 to 256 GPUs",
                          fmt::format("{}", fmt::join(gain_texts, ", ")), gains.within(1.13, 2.21),
                          "the mean gain over the fastest baseline lies in that range at every "
                          "number of devices"});
      findings.push_back({"ahead of every baseline at every number of GPUs",
                          fmt::format("at least {:.2f}x the fastest", gains.least),
                          gains.least > 1});
    }
    if (mfu.any()) {
      findings.push_back({"near-linear scaling", fmt::format("MFU {}", fmt::join(mfu_texts, ", ")),
                          mfu.least >= kNearLinear * mfu.most,
                          "the smallest MFU is 0.9 of the largest or more"});
    }
    return findings;
  }
};

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "fcp-fig11",
                   {"--dataset", "--batches", "--seed", "--heads", "--kv-heads", "--head-dim",
                    "--block-size", "--wire"});
  Table table(
      method_columns({{"lengths", "lengths"}, {"devices", "GPUs"}, {"strategy", "strategy"}}));
  const std::vector<std::string> datasets = fcp_lengths_compared(overrides);
  std::vector<std::int32_t> all_devices(kFcpDevices.begin(), kFcpDevices.end());
  all_devices.push_back(kMostDevices);
  const auto methods_on = [](std::int32_t devices) {
    return parse_strategies(devices == kMostDevices ? "fcp" : kFcpMethods);
  };
  std::int64_t steps = 0;
  for (const std::int32_t devices : all_devices) steps += std::ssize(methods_on(devices));
  Progress progress(overrides, std::ssize(datasets) * steps);
  WeakScaling scaling;
  for (const std::string& dataset : datasets) {
    for (const std::int32_t devices : all_devices) {
      const PaperSetting setting = fcp_setting(overrides, devices);
      const auto batches = setting.batches(dataset, "causal");
      const ComparedMethods compared =
          add_methods(methods_on(devices), setting.input, batches, {dataset, std::int64_t{devices}},
                      progress, table);
      if (dataset == datasets.front()) scaling.take(compared, devices);
    }
  }
  PaperSetting largest = fcp_setting(overrides, kFcpDevices.back());
  largest.datasets = datasets;
  PaperResult result = timed_result(largest, std::move(table));
  result.setting.push_back(fcp_block_setting(overrides));
  result.plots = {
      {.x = "devices", .y = {"forward_mfu"}, .series = {"strategy"}, .panels = {"lengths"}},
      {.x = "devices", .y = {"backward_mfu"}, .series = {"strategy"}, .panels = {"lengths"}}};
  result.findings = scaling.findings();
  for (const char* difference : {kFcpLengthsAre, kFcpMachinesAre, kFcpSmsAre}) {
    result.differences.emplace_back(difference);
  }
  result.differences.push_back(fmt::format("{} tokens per device. FCP alone is planned on {}.",
                                           kFcpTokensPerDevice, kMostDevices));
  return result;
}

}  // namespace

PaperTable fcp_fig11() {
  return {"fcp-fig11", "FCP, Fig. 11", "attention's MFU, weak scaling over 16 to 512 devices",
          make};
}

}  // namespace contextile
