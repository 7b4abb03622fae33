// Inference: the ways in which ranks that share a prompt come to attention.
#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <utility>

#include "labs/papers/findings.h"
#include "labs/papers/inference/setting.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "inference-modes", {});
  const HelixModel model = bf16_model("llama-3-8b");
  HelixLayout layout = {8, 1, 8};
  layout.prompts = HelixPrompts::kOwnRows;
  Table table({{"gbytes_per_s", "GB/s"},
               {"tokens", "tokens"},
               {"mode", "mode"},
               {"exchange_s", "exchange\nms", Format::kMilliseconds},
               {"exposed_s", "exposed\nms", Format::kMilliseconds},
               {"ttft_s", "TTFT\nms", Format::kMilliseconds}});
  Extent ulysses;
  Extent gather;
  for (const double gbytes_per_s : {450.0, kBetweenNodes, 5.0}) {
    for (const std::int64_t tokens : {std::int64_t{8'000}, kLongPrompt}) {
      double ring_s = 0;
      for (const PrefillMode mode : {PrefillMode::kPassKv, PrefillMode::kPassQ,
                                     PrefillMode::kAllGather, PrefillMode::kUlysses}) {
        const HelixStep step =
            helix_prefill(model, h100_devices(gbytes_per_s), layout, prompt_rows(tokens), mode)
                .step;
        const double seconds = 1e-6 * step.total_us();
        if (mode == PrefillMode::kPassKv) ring_s = seconds;
        if (gbytes_per_s == 450 && mode == PrefillMode::kUlysses) ulysses.take(ring_s / seconds);
        if (mode == PrefillMode::kAllGather) gather.take(ring_s / seconds);
        table.add_row({gbytes_per_s, tokens, std::string(to_string(mode)), 1e-6 * step.exchange_us,
                       1e-6 * step.exposed_us, seconds});
      }
    }
  }
  PaperResult result{.setting = {{"model", "llama-3-8b, bf16, CP 8"},
                                 {"devices", "H100 at 50% of 989 TFLOP/s, 7 us a message"}},
                     .table = std::move(table)};
  result.findings = {
      {"Ulysses is faster than a ring where links are fast",
       fmt::format("{} as fast as pass_kv at 450 GB/s", range_text(ulysses.least, ulysses.most)),
       ulysses.least > 1, "for both prompts"},
      {"an all-gather of keys costs communication that a ring hides",
       fmt::format("{} as fast as pass_kv", range_text(gather.least, gather.most)), gather.most < 1,
       "at every rate and length"}};
  result.differences = {
      "All modes have kernels of one rate. The source says that Ulysses and the all-gather run "
      "faster ones, which would speak for them."};
  result.plots = {{.x = "gbytes_per_s", .y = {"ttft_s"}, .series = {"mode"}, .panels = {"tokens"}}};
  return result;
}

}  // namespace

PaperTable inference_modes() {
  return {"inference-modes", "survey of inference, sections 3.2 and 6.2",
          "ring, all-gather and Ulysses of a shared prompt", make};
}

}  // namespace contextile
