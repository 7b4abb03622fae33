// Inference: the ways in which ranks that share a prompt come to attention.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "labs/papers/findings.h"
#include "labs/papers/inference/setting.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// The ring and the all-gather of keys at one rate and length.
struct RingAndGather {
  double ring_exposed_us = 0;
  double ring_hidden = 0;  // share of its exchange
  double gather_exposed_us = 0;
};

// Sections 6.2 and 3.1.
Finding gather_finding(std::span<const RingAndGather> compared) {
  std::size_t more = 0;
  bool never_less = true;
  for (const RingAndGather& one : compared) {
    if (one.gather_exposed_us > one.ring_exposed_us) ++more;
    never_less = never_less && one.gather_exposed_us >= one.ring_exposed_us;
  }
  return {"an all-gather of keys is less efficient in communication than a ring that overlaps",
          fmt::format("it leaves more exposed in {} of {} settings", more, compared.size()),
          never_less && 2 * more > compared.size(),
          "less in none of the rates and lengths, more in most"};
}

// Section 3.1. `compared` has a short and a long prompt at every rate.
Finding ring_finding(std::span<const RingAndGather> compared) {
  std::vector<std::string> texts;
  bool more = true;
  for (std::size_t i = 0; i + 1 < compared.size(); i += 2) {
    more = more && compared[i + 1].ring_hidden > compared[i].ring_hidden;
    texts.push_back(fmt::format("{} and {}", whole_percent(compared[i].ring_hidden),
                                whole_percent(compared[i + 1].ring_hidden)));
  }
  return {
      "a ring hides its transfers best if chunks are large",
      fmt::format("of 8K and of 100K tokens it hides, by falling rate: {}", fmt::join(texts, ", ")),
      more, "a larger share of 100K tokens at every rate"};
}

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
  std::vector<RingAndGather> compared;
  for (const double gbytes_per_s : {450.0, kBetweenNodes, 5.0}) {
    for (const std::int64_t tokens : {std::int64_t{8'000}, kLongPrompt}) {
      double ring_s = 0;
      RingAndGather& both = compared.emplace_back();
      for (const PrefillMode mode : {PrefillMode::kPassKv, PrefillMode::kPassQ,
                                     PrefillMode::kAllGather, PrefillMode::kUlysses}) {
        const HelixStep step =
            helix_prefill(model, h100_devices(gbytes_per_s), layout, prompt_rows(tokens), mode)
                .step;
        const double seconds = 1e-6 * step.total_us();
        if (mode == PrefillMode::kPassKv) {
          ring_s = seconds;
          both.ring_exposed_us = step.exposed_us;
          both.ring_hidden = 1 - step.exposed_us / step.exchange_us;
        }
        if (gbytes_per_s == 450 && mode == PrefillMode::kUlysses) ulysses.take(ring_s / seconds);
        if (mode == PrefillMode::kAllGather) both.gather_exposed_us = step.exposed_us;
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
      gather_finding(compared),
      ring_finding(compared)};
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
