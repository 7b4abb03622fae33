// FCP (flexible context parallelism, MLSys 2026), Fig. 13 (section 6.6): MFU by the tokens of a
// GPU. The paper measured GPUs; here everything is simulated on a preset's constants.
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

constexpr std::array<std::int64_t, 4> kTokensPerDevice = {8192, 16384, 32768, 65536};

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "fcp-fig13",
                   {"--dataset", "--batches", "--seed", "--heads", "--kv-heads", "--head-dim",
                    "--block-size", "--wire"});
  const auto choices = parse_strategies(fmt::format("{},{}", kFcpMethods, kFcpSmallBlocks));
  const std::vector<std::string> datasets = fcp_lengths_compared(overrides);
  Table table(method_columns(
      {{"lengths", "lengths"}, {"tokens_per_device", "tokens\na GPU"}, {"strategy", "strategy"}}));
  Progress progress(overrides,
                    std::ssize(datasets) * std::ssize(kTokensPerDevice) * std::ssize(choices));
  std::vector<std::string> gains;
  Extent gain;
  for (const std::string& dataset : datasets) {
    for (const std::int64_t tokens : kTokensPerDevice) {
      PaperSetting setting = fcp_setting(overrides, kFcpFigureDevices);
      setting.batch.tokens = tokens * kFcpFigureDevices;
      const ComparedMethods compared =
          add_methods(choices, setting.input, setting.batches(dataset, "causal"), {dataset, tokens},
                      progress, table);
      if (compared.fastest.empty() || dataset != datasets.front()) continue;
      gain.take(compared.gain);
      gains.push_back(fmt::format("{} at {}", compared.text(), tokens));
    }
  }
  PaperSetting shown = fcp_setting(overrides, kFcpFigureDevices);
  shown.datasets = datasets;
  PaperResult result = timed_result(shown, std::move(table));
  result.setting.push_back(fcp_block_setting(overrides));
  const auto plot = [](const char* mfu) {
    return TablePlot{
        .x = "tokens_per_device", .y = {mfu}, .series = {"strategy"}, .panels = {"lengths"}};
  };
  result.plots = {plot("forward_mfu"), plot("backward_mfu")};
  if (gain.any()) {
    result.findings = {{"ahead of all baselines at every number of tokens per GPU, 128 GPUs",
                        fmt::format("over the fastest: {}", fmt::join(gains, ", ")),
                        gain.least > 1}};
  }
  for (const char* difference : {kFcpLengthsAre, kFcpMachinesAre, kFcpSmsAre}) {
    result.differences.emplace_back(difference);
  }
  result.differences.emplace_back("The figure's numbers of tokens are not in the paper's text.");
  return result;
}

}  // namespace

PaperTable fcp_fig13() {
  return {"fcp-fig13", "FCP, Fig. 13", "attention's MFU by tokens per device, 128 devices", make};
}

}  // namespace contextile
