// FCP (flexible context parallelism, MLSys 2026), Fig. 2: the lengths, and which of them cause
// computation and communication.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
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

constexpr std::array<std::int64_t, 9> kBounds = {512,   1024,  2048,   4096,  16384,
                                                 32768, 65536, 262144, 524288};

// Shares that documents of at most one bound have of a sample.
struct SharesBelow {
  double documents = 0;
  double tokens = 0;
  double flops = 0;
};

SharesBelow shares_below(std::span<const std::int64_t> lengths, std::int64_t bound) {
  SharesBelow below;
  SharesBelow all;
  for (const std::int64_t length : lengths) {
    const auto tokens = static_cast<double>(length);
    const double pairs = tokens * (tokens + 1) / 2;
    for (SharesBelow* sum : {&all, length <= bound ? &below : nullptr}) {
      if (sum == nullptr) continue;
      sum->documents += 1;
      sum->tokens += tokens;
      sum->flops += pairs;
    }
  }
  return {below.documents / all.documents, below.tokens / all.tokens, below.flops / all.flops};
}

std::vector<std::int64_t> sampled_lengths(const PaperSetting& setting, const std::string& dataset) {
  std::vector<std::int64_t> lengths;
  for (const auto& batch : batches_from_dataset(dataset, setting.batch)) {
    lengths.insert(lengths.end(), batch.begin(), batch.end());
  }
  return lengths;
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "fcp-fig2", {"--dataset", "--batches", "--seed"});
  PaperSetting setting = fcp_setting(overrides, kFcpFigureDevices);
  setting.datasets = fcp_lengths_compared(overrides);
  Table table({{"lengths", "lengths"},
               {"length", "tokens\nup to"},
               {"documents", "documents", Format::kPercent},
               {"communication", "ring's\nbytes", Format::kPercent},
               {"flops", "FLOPs", Format::kPercent},
               {"mean_length", "mean\ntokens"},
               {"longest", "longest"}});
  Progress progress(overrides, static_cast<std::int64_t>(setting.datasets.size()));
  std::vector<Finding> findings;
  for (const std::string& dataset : setting.datasets) {
    progress.step(dataset);
    const std::vector<std::int64_t> lengths = sampled_lengths(setting, dataset);
    double tokens = 0;
    for (const std::int64_t length : lengths) tokens += static_cast<double>(length);
    const std::int64_t longest = *std::ranges::max_element(lengths);
    for (const std::int64_t bound : kBounds) {
      const SharesBelow below = shares_below(lengths, bound);
      table.add_row({dataset, bound, below.documents, below.tokens, below.flops,
                     tokens / static_cast<double>(lengths.size()), longest});
    }
    if (dataset != setting.datasets.front()) continue;
    const SharesBelow under4k = shares_below(lengths, 4096);
    const SharesBelow under32k = shares_below(lengths, kFcpTokensPerDevice);
    findings = {
        {"lengths up to 512K",
         fmt::format("the longest of {} has {} tokens", lengths.size(), longest),
         longest > kFcpLongest / 2 && longest <= kFcpLongest,
         "the longest has 256K to 512K; the distribution was made for it"},
        {"sequences under 4K cause about half of plain context parallelism's communication",
         whole_percent(under4k.tokens), std::abs(under4k.tokens - 0.5) <= 0.05,
         "within 5 percentage points of 50%; the distribution was made for it"},
        {"short and long sequences cause computation of the same magnitude",
         fmt::format("{} of FLOPs in documents of up to 32K tokens", whole_percent(under32k.flops)),
         under32k.flops > 0.1 && under32k.flops < 0.9,
         "documents of up to 32K tokens, a GPU's share, have 10% to 90%"}};
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.findings = std::move(findings);
  result.differences = {
      kLengthsAreSampled, kFcpLengthsAre,
      "Plain context parallelism moves every token's keys and values equally often, so a share of "
      "tokens is one of its communication."};
  result.plots = {
      {.x = "length", .y = {"documents", "communication", "flops"}, .panels = {"lengths"}}};
  return result;
}

}  // namespace

PaperTable fcp_fig2() {
  return {"fcp-fig2", "FCP, Fig. 2", "lengths, and which cause computation and communication",
          make};
}

}  // namespace contextile
