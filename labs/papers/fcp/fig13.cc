// FCP (flexible context parallelism, MLSys 2026), Fig. 13 (section 6.6): speed by the tokens of a
// GPU. The paper measured GPUs; here everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <utility>

#include "labs/papers/fcp/setting.h"
#include "labs/papers/findings.h"
#include "labs/papers/gpu_share.h"
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
  constexpr std::int32_t kDevices = 64;
  const auto choices =
      parse_strategies(fmt::format("fcp,{},magi,bytescale,zigzag", kFcpSmallBlocks));
  Table table({{"tokens_per_device", "tokens a\ndevice"},
               {"strategy", "strategy"},
               {"forward_s", "forward\nms", Format::kMilliseconds},
               {"forward_share", "of one\nGPU"},
               {"backward_s", "backward\nms", Format::kMilliseconds},
               {"backward_share", "of one\nGPU"}});
  Progress progress(overrides, static_cast<std::int64_t>(kTokensPerDevice.size() * choices.size()));
  for (const std::int64_t tokens : kTokensPerDevice) {
    PaperSetting setting = fcp_setting(overrides, kDevices);
    setting.batch.tokens = tokens * kDevices;
    const auto batches = setting.batches(setting.datasets.front(), "causal");
    for (const StrategyChoice& choice : choices) {
      progress.step(fmt::format("{}, {} tokens", choice_text(choice), tokens));
      const GpuShares shares =
          predict_shares(choice, setting.input, batches, {&setting.input.cluster, 1}).front();
      if (!shares.skipped.empty()) {
        table.add_row({tokens, choice_text(choice)}, skipped_note(choice, shares.skipped));
        continue;
      }
      table.add_row({tokens, choice_text(choice), shares.forward.time_s, shares.forward.share,
                     shares.backward.time_s, shares.backward.share});
    }
  }
  PaperResult result = timed_result(fcp_setting(overrides, kDevices), std::move(table));
  result.setting.push_back(fcp_block_setting(overrides));
  result.plots = {{.x = "tokens_per_device", .y = {"forward_share"}, .series = {"strategy"}},
                  {.x = "tokens_per_device", .y = {"backward_share"}, .series = {"strategy"}}};
  result.differences.emplace_back(kFcpLengthsAre);
  result.differences.emplace_back(
      "What the figure shows is not in the paper's text, so nothing is compared.");
  return result;
}

}  // namespace

PaperTable fcp_fig13() {
  return {"fcp-fig13", "FCP, Fig. 13", "speed by tokens per device, 64 devices", make};
}

}  // namespace contextile
