#include "papers/times.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "contextile/registry.h"
#include "contextile/simulate.h"

namespace contextile {
namespace {

// Sums of logarithms, of which exp_of makes geometric means.
void add_logs(const SimulatedDirection& direction, double alone_us, GpuShare& logs) {
  double busiest_us = 0;
  for (const DeviceTimes& device : direction.devices) {
    busiest_us = std::max(busiest_us, device.of(Activity::kAttention));
  }
  logs.time_s += std::log(1e-6 * direction.time_us);
  logs.share += std::log(alone_us / direction.time_us);
  logs.limit += std::log(alone_us / busiest_us);
}

GpuShare exp_of(const GpuShare& logs, double weight) {
  return {std::exp(weight * logs.time_s), std::exp(weight * logs.share),
          std::exp(weight * logs.limit)};
}

GpuShares skipped_shares(std::string reason) {
  GpuShares shares;
  shares.skipped = std::move(reason);
  return shares;
}

}  // namespace

Predicted predict_times(const StrategyChoice& choice, const PlanInput& input,
                        std::span<const Workload> batches) {
  Predicted mean;
  std::array<double, 3> logs{};
  for (const Workload& workload : batches) {
    if (const auto reason = unsupported_reason(workload, input.cluster, choice, input.options)) {
      mean.skipped = *reason;
      return mean;
    }
    const PlannedBatch planned = plan_and_check(workload, input.cluster, choice, input.options);
    const Simulation simulation = simulate(*planned.plan, input.cluster);
    const std::array<double, 3> values = {simulation.forward->time_us, simulation.backward->time_us,
                                          simulation.time_us()};
    for (std::size_t i = 0; i < logs.size(); ++i) logs[i] += std::log(values[i]);
  }
  for (double& log : logs) log = std::exp(log / static_cast<double>(batches.size()));
  mean.forward_s = 1e-6 * logs[0];
  mean.backward_s = 1e-6 * logs[1];
  mean.total_s = 1e-6 * logs[2];
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

std::optional<double> add_times(std::span<const StrategyChoice> choices, const PlanInput& input,
                                std::span<const Workload> batches, const std::vector<Cell>& labels,
                                Progress& progress, Table& table) {
  std::vector<Predicted> times;
  for (const StrategyChoice& choice : choices) {
    progress.step(choice_text(choice));
    times.push_back(predict_times(choice, input, batches));
  }
  const bool applies = times[0].skipped.empty();
  double fastest_s = kInfinity;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    std::vector<Cell> cells = labels;
    cells.emplace_back(choice_text(choices[i]));
    if (!times[i].skipped.empty()) {
      table.add_row(std::move(cells), skipped_note(choices[i], times[i].skipped));
      continue;
    }
    cells.insert(cells.end(), {times[i].forward_s, times[i].backward_s, times[i].total_s});
    if (applies) cells.emplace_back(times[i].total_s / times[0].total_s);
    table.add_row(std::move(cells));
    if (i > 0) fastest_s = std::min(fastest_s, times[i].total_s);
  }
  if (!applies || fastest_s == kInfinity) return std::nullopt;
  return fastest_s / times[0].total_s;
}

std::string skipped_note(const StrategyChoice& choice, std::string_view reason) {
  return fmt::format("{} skipped: {}", choice_text(choice), reason);
}

PaperResult timed_result(const BenchSetting& setting, Table table) {
  return {.setting = setting.description(),
          .table = std::move(table),
          .findings = {},
          .differences = {kTimesAreSimulated, kLengthsAreSampled}};
}

void refuse_nodes(const BenchOverrides& overrides, std::string_view table) {
  const std::string_view text = overrides.cluster;
  const bool is_file = text.ends_with(".json") || text.find('/') != std::string_view::npos;
  if (is_file || text.find(':') == std::string_view::npos) return;
  fail_argument(
      "{}: --cluster: expected a machine without a number of nodes, which the table sets, found "
      "'{}'",
      table, text);
}

double single_gpu_us(const Workload& workload, const Cluster& cluster, Direction direction) {
  const TileCosts costs(workload.shape, cluster);
  double us = 0;
  for (const Range& document : workload.sequences) {
    const std::int64_t length = document.size();
    us += costs.piece_us(direction, length, length, length * (length + 1) / 2, 1);
  }
  return us / cluster.num_devices();
}

std::vector<GpuShares> predict_shares(const StrategyChoice& choice, const PlanInput& input,
                                      std::span<const Workload> batches,
                                      std::span<const Cluster> machines) {
  std::vector<GpuShares> shares(machines.size());
  for (const Workload& workload : batches) {
    if (const auto reason = unsupported_reason(workload, input.cluster, choice, input.options)) {
      return std::vector(machines.size(), skipped_shares(*reason));
    }
    const PlannedBatch planned = plan_and_check(workload, input.cluster, choice, input.options);
    double bytes = 0;
    for (const auto& direction : {planned.statistics.forward, planned.statistics.backward}) {
      if (direction) bytes += static_cast<double>(direction->total_bytes());
    }
    for (std::size_t m = 0; m < machines.size(); ++m) {
      const Simulation simulation = simulate(*planned.plan, machines[m]);
      add_logs(*simulation.forward, single_gpu_us(workload, machines[m], Direction::kForward),
               shares[m].forward);
      if (simulation.backward) {
        add_logs(*simulation.backward, single_gpu_us(workload, machines[m], Direction::kBackward),
                 shares[m].backward);
      }
      shares[m].device_bytes += bytes / machines[m].num_devices();
    }
  }
  const double weight = 1.0 / static_cast<double>(batches.size());
  for (GpuShares& mean : shares) {
    mean.forward = exp_of(mean.forward, weight);
    if (input.options.backward) mean.backward = exp_of(mean.backward, weight);
    mean.device_bytes *= weight;
  }
  return shares;
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

std::int64_t fcp_block(const BenchOverrides& overrides) {
  return overrides.block_size.value_or(kFcpBlock);
}

std::pair<std::string, std::string> fcp_block_setting(const BenchOverrides& overrides) {
  return {"fcp", fmt::format("blocks of {} tokens{}; every verdict on FCP is of these",
                             fcp_block(overrides), overrides.block_size ? "" : ", the paper's")};
}

}  // namespace contextile
