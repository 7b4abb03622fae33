// DCP (Jiang et al., SOSP 2025), Fig. 13: speed under a causal mask. The paper measured GPUs; here
// everything is simulated on a preset's constants.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "contextile/planner.h"
#include "contextile/workload.h"
#include "labs/papers/dcp/setting.h"
#include "labs/papers/dcp/speed.h"
#include "labs/papers/findings.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/tables.h"
#include "labs/papers/times.h"
#include "report/table.h"

namespace contextile {
namespace {

// The baselines of one scale of the lengths.
struct ScaleTimes {
  std::optional<Gain> gain;  // of DCP over the fastest baseline; none if one is missing
  std::string order;         // baselines, fastest first, with their times over DCP's
  std::string fastest;
  std::string slowest;
  double te_s = 0;
  double loongtrain_s = 0;
  double padding = 0;    // LoongTrain's tokens over the batch's
  double sequences = 0;  // of a batch, on average
};

double mean_tokens(std::span<const Workload> batches) {
  double tokens = 0;
  for (const Workload& batch : batches) tokens += static_cast<double>(batch.num_tokens());
  return tokens / static_cast<double>(batches.size());
}

// LoongTrain does not know packed batches, so it gets as many sequences, each padded to the
// longest.
std::vector<Workload> padded_to_longest(std::span<const Workload> batches) {
  std::vector<Workload> padded;
  for (const Workload& batch : batches) {
    std::int64_t longest = 0;
    for (const Range& sequence : batch.sequences) longest = std::max(longest, sequence.size());
    padded.push_back(
        make_workload(std::vector<std::int64_t>(batch.sequences.size(), longest), batch.shape));
  }
  return padded;
}

// Every inner ring that the paper's evaluation tries.
std::vector<StrategyChoice> loongtrain_ways() {
  std::vector<StrategyChoice> ways;
  for (const std::int32_t inner : {1, 2, 4, 8}) {
    ways.push_back(
        parse_strategies(fmt::format("double_ring:head_parallel=2,inner_ring={}", inner)).front());
  }
  return ways;
}

// A method and its name in the paper.
struct NamedMethod {
  const char* name;
  TimedMethod method;
};

// DCP and the methods that the paper compares it with.
std::vector<NamedMethod> methods_of() {
  return {{"DCP", {.ways = parse_strategies("dcp"), .engine = "dcp"}},
          {"RFA", {.ways = parse_strategies("ring"), .engine = "ring"}},
          {"RFA", {.ways = parse_strategies("zigzag"), .engine = "ring"}},
          {"TE", {.ways = {transformer_engine_choice()}, .engine = "te"}},
          {"LoongTrain", {.ways = loongtrain_ways(), .engine = "ring"}}};
}

constexpr std::size_t kTotalCell = 4;  // of a row: behind scale, strategy, forward and backward

// Returns what the rows of one scale, which begin at `first`, say of the baselines' order.
void take_order(const std::vector<NamedMethod>& methods, const Table& table, std::size_t first,
                ScaleTimes& times) {
  std::vector<std::pair<double, std::string>> by_time;
  for (std::size_t i = 1; i < methods.size(); ++i) {
    const auto* over_dcp = std::get_if<double>(&table.cells(first + i).back());
    if (over_dcp == nullptr) return;
    by_time.emplace_back(*over_dcp, methods[i].name);
    const std::string_view name = methods[i].name;
    const double total_s = std::get<double>(table.cells(first + i)[kTotalCell]);
    if (name == "TE") times.te_s = total_s;
    if (name == "LoongTrain") times.loongtrain_s = total_s;
  }
  std::ranges::sort(by_time);
  times.fastest = by_time.front().second;
  times.slowest = by_time.back().second;
  std::vector<std::string> texts;
  texts.reserve(by_time.size());
  for (const auto& [over_dcp, name] : by_time)
    texts.push_back(fmt::format("{} {:.2f}x", name, over_dcp));
  times.order = fmt::format("{}", fmt::join(texts, ", "));
}

std::vector<Finding> order_findings(std::span<const ScaleTimes> scales) {
  std::vector<std::string> texts;
  bool rfa_is_slowest = true;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    if (scales[i].order.empty()) return {};
    texts.push_back(fmt::format("{} at scale {}", scales[i].order, kDcpScales[i]));
    rfa_is_slowest = rfa_is_slowest && scales[i].slowest == "RFA";
  }
  const std::string ours = fmt::format("of DCP's time: {}", fmt::join(texts, "; "));
  const double te = scales.back().te_s / scales.front().te_s;
  const double loongtrain = scales.back().loongtrain_s / scales.front().loongtrain_s;
  return {{"LoongTrain is the fastest baseline at scale 0.5", ours,
           scales.front().fastest == "LoongTrain"},
          {"RingFlashAttention is the slowest baseline", ours, rfa_is_slowest,
           "one of its two layouts is the slowest at every scale"},
          {"LoongTrain and TE become faster as the scale grows",
           fmt::format("at scale {} they take {:.2f} and {:.2f} of their time at {}",
                       kDcpScales.back(), loongtrain, te, kDcpScales.front()),
           loongtrain < 1 && te < 1}};
}

std::vector<Finding> scale_findings(std::span<const ScaleTimes> scales) {
  constexpr double kLeast = 1.19;
  constexpr double kMost = 2.45;
  constexpr double kNear = 0.15;
  std::vector<std::string> texts;
  std::vector<double> gains;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    if (!scales[i].gain) return {};  // compared with nothing
    gains.push_back(scales[i].gain->mean);
    texts.push_back(fmt::format("{:.2f}x ({}) at scale {}", gains.back(),
                                scales[i].gain->spread.text(), kDcpScales[i]));
  }
  const bool within =
      std::ranges::all_of(gains, [](double gain) { return gain >= kLeast && gain <= kMost; });
  const bool falls =
      std::ranges::max(gains) == gains.front() && std::abs(gains.back() - 1) <= kNear;
  const std::string ours = fmt::format("{}", fmt::join(texts, ", "));
  return {
      {"1.19x to 2.45x over the fastest baseline", ours, within, "every scale lies in that range"},
      {"2.45x at scale 0.5", fmt::format("{:.2f}x", gains.front()),
       std::abs(gains.front() - kMost) <= kNear, fmt::format("within {} of it", kNear)},
      {"most at scale 0.5, near 1 at large scales", ours, falls,
       fmt::format("no scale gains more than 0.5, and scale 4 gains {:.2f}x to {:.2f}x", 1 - kNear,
                   1 + kNear)}};
}

std::string padding_text(std::span<const ScaleTimes> scales) {
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    texts.push_back(fmt::format("{:.1f} at scale {} ({:.0f} sequences)", scales[i].padding,
                                kDcpScales[i], scales[i].sequences));
  }
  return fmt::format(
      "LoongTrain (double_ring) is the fastest of inner rings of 1, 2, 4 and 8, and computes every "
      "sequence padded to the longest of its batch, as in the paper. It has so many times the "
      "batch's tokens: {}.",
      fmt::join(texts, ", "));
}

PaperResult make(const TableOverrides& overrides) {
  PaperSetting setting = dcp_speed_setting(overrides);
  Table table(time_columns({{"scale", "scale"}, {"strategy", "strategy"}}));
  std::vector<NamedMethod> methods = methods_of();
  std::size_t ways = 0;
  for (const NamedMethod& named : methods) ways += named.method.ways.size();
  Progress progress(overrides, static_cast<std::int64_t>(kDcpScales.size() * ways));
  std::vector<ScaleTimes> scales;
  for (const double scale : kDcpScales) {
    setting.batch.scale = scale;
    const std::vector<Workload> batches = setting.batches(setting.datasets.front(), "causal");
    std::vector<TimedMethod> timed;
    const std::vector<Workload> padded = padded_to_longest(batches);
    for (const NamedMethod& named : methods) {
      timed.push_back(named.method);
      if (timed.back().ways.size() > 1) timed.back().own_batches = padded;
    }
    ScaleTimes& times = scales.emplace_back();
    const std::size_t first = table.num_rows();
    times.gain =
        add_times(timed, setting.input, batches, {scale}, progress, table, Mean::kArithmetic);
    take_order(methods, table, first, times);
    times.padding = mean_tokens(padded) / mean_tokens(batches);
    times.sequences = mean_sequences(batches);
  }
  PaperResult result = timed_result(setting, std::move(table));
  result.setting.push_back(kDcpIs);
  result.plots = {{.x = "scale", .y = {"total_s"}, .series = {"strategy"}}};
  result.findings = scale_findings(scales);
  for (Finding& finding : order_findings(scales)) result.findings.push_back(std::move(finding));
  result.differences.insert(
      result.differences.end(),
      {kDocumentsAreWhole, kTransformerEngineIs, kEnginesAre, kSpreadIs, padding_text(scales)});
  return result;
}

}  // namespace

PaperTable dcp_fig13() {
  return {"dcp-fig13", "DCP (SOSP 2025), Fig. 13", "speed under a causal mask, by scale of lengths",
          make};
}

}  // namespace contextile
