// FCP (flexible context parallelism, MLSys 2026), Fig. 11: speed by the number of devices. The
// paper measured GPUs; here everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <cstdint>
#include <iterator>
#include <string>
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

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "fcp-fig11",
                   {"--dataset", "--batches", "--seed", "--heads", "--kv-heads", "--head-dim",
                    "--block-size", "--wire"});
  const std::string methods = "fcp,magi,bytescale,bytescale:sync=step";
  Table table(
      time_columns({{"lengths", "lengths"}, {"devices", "devices"}, {"strategy", "strategy"}}));
  const std::vector<std::string> datasets = fcp_lengths_compared(overrides);
  Progress progress(overrides, std::ssize(datasets) * num_with_ring(methods, kFcpDevices));
  Extent gains;
  for (const std::string& dataset : datasets) {
    for (const std::int32_t devices : kFcpDevices) {
      const PaperSetting setting = fcp_setting(overrides, devices);
      const auto batches = setting.batches(dataset, "causal");
      const auto gain = add_times(with_ring(methods, devices), setting.input, batches,
                                  {dataset, std::int64_t{devices}}, progress, table);
      if (gain && dataset == datasets.front()) gains.take(*gain);
    }
  }
  PaperSetting largest = fcp_setting(overrides, kFcpDevices.back());
  largest.datasets = datasets;
  PaperResult result = timed_result(largest, std::move(table));
  result.setting.push_back(fcp_block_setting(overrides));
  result.plots = {
      {.x = "devices", .y = {"total_s"}, .series = {"strategy"}, .panels = {"lengths"}}};
  if (gains.any()) {
    result.findings.push_back(
        {"1.13x to 2.21x the attention MFU of the baselines, 16 to 256 GPUs",
         fmt::format("{:.2f}x to {:.2f}x, {} to {} devices", gains.least, gains.most,
                     kFcpDevices.front(), kFcpDevices.back()),
         gains.within(1.13, 2.21),
         "the gain over the fastest baseline lies in that range at every number of devices"});
  }
  result.differences.emplace_back(kFcpLengthsAre);
  result.differences.emplace_back(kFcpRingNote);
  result.differences.push_back(fmt::format(
      "GPU-X is the paper's ratio of FLOPs to network bytes on our dgx-h100 preset; {} tokens per "
      "device.",
      kFcpTokensPerDevice));
  return result;
}

}  // namespace

PaperTable fcp_fig11() {
  return {"fcp-fig11", "FCP, Fig. 11", "speed, weak scaling over 16 to 256 devices", make};
}

}  // namespace contextile
