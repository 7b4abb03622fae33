#include "cli/paper_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "contextile/simulate.h"

namespace contextile {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

Predicted predict_times(const StrategyChoice& choice, const Input& input,
                        std::span<const Workload> batches) {
  Predicted mean;
  std::array<double, 5> logs{};
  for (const Workload& workload : batches) {
    if (const auto reason = unsupported_reason(choice, input, workload)) {
      mean.skipped = *reason;
      return mean;
    }
    const PlannedBatch planned = plan_and_check(choice, input, workload);
    const Simulation simulation = simulate(*planned.plan, input.cluster);
    const SimulatedDirection& forward = *simulation.forward;
    const SimulatedDirection& backward = *simulation.backward;
    const std::array<double, 5> values = {
        forward.time_us, backward.time_us, forward.attention_us / forward.time_us,
        backward.attention_us / backward.time_us, simulation.time_us()};
    for (std::size_t i = 0; i < logs.size(); ++i) logs[i] += std::log(values[i]);
  }
  for (double& log : logs) log = std::exp(log / static_cast<double>(batches.size()));
  mean.forward_s = 1e-6 * logs[0];
  mean.backward_s = 1e-6 * logs[1];
  mean.forward_mfu = logs[2];
  mean.backward_mfu = logs[3];
  mean.total_s = 1e-6 * logs[4];
  return mean;
}

std::vector<Column> time_columns(std::vector<Column> first) {
  for (const Column& column :
       std::vector<Column>{{"forward_s", "forward\nms", Format::kMilliseconds},
                           {"backward_s", "backward\nms", Format::kMilliseconds},
                           {"total_s", "total\nms", Format::kMilliseconds},
                           {"gain", "gain"}}) {
    first.push_back(column);
  }
  return first;
}

// A method and its baselines on one setting: a row each, `gain` the first one's over it. Returns
// the gain over the fastest baseline.
double add_times(std::span<const StrategyChoice> choices, const Input& input,
                 std::span<const Workload> batches, const std::vector<Cell>& labels,
                 Progress& progress, Table& table) {
  std::vector<Predicted> times;
  for (const StrategyChoice& choice : choices) {
    progress.step(choice_text(choice));
    times.push_back(predict_times(choice, input, batches));
  }
  double fastest_s = kInfinity;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    std::vector<Cell> cells = labels;
    cells.emplace_back(choice_text(choices[i]));
    if (!times[i].skipped.empty()) {
      table.add_row(std::move(cells),
                    fmt::format("{} skipped: {}", choice_text(choices[i]), times[i].skipped));
      continue;
    }
    cells.insert(cells.end(), {times[i].forward_s, times[i].backward_s, times[i].total_s,
                               times[i].total_s / times[0].total_s});
    table.add_row(std::move(cells));
    if (i > 0) fastest_s = std::min(fastest_s, times[i].total_s);
  }
  return fastest_s / times[0].total_s;
}

PaperResult timed_result(const BenchSetting& setting, Table table) {
  return {.setting = setting.description(),
          .table = std::move(table),
          .findings = {},
          .differences = {kTimesAreSimulated, kLengthsAreModelled}};
}

BenchSetting fcp_setting(const BenchOverrides& overrides, std::int32_t devices, const FcpGpu& gpu) {
  constexpr double kGbytesPerS = 50;
  BenchSetting setting;
  setting.datasets = {"lognormal512k"};
  setting.batch.tokens = kFcpTokensPerDevice * devices;
  setting.batch.batches = 2;
  setting.shape.q_heads = 64;
  setting.shape.kv_heads = 8;
  setting.cluster_name = fmt::format("dgx-h100:{}x8", devices / 8);
  apply_overrides(overrides, setting);
  if (overrides.cluster.empty()) {
    setting.input.cluster.name = gpu.name;
    setting.input.cluster.attention_tflops = gpu.flops_per_byte * kGbytesPerS * 1e-3;
  }
  setting.batch.max_length = std::min<std::int64_t>(setting.batch.tokens, 524288);
  return setting;
}

void refuse_cluster(const BenchOverrides& overrides, std::string_view table) {
  if (overrides.cluster.empty() && !overrides.tokens) return;
  fail_argument("{}: expected no --cluster or --tokens: it varies the number of devices", table);
}

}  // namespace contextile
