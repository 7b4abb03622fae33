// DistCA, Fig. 12: the sweep of the tolerance. The paper measured GPUs; here
// everything outside attention comes from the model's sizes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "papers/distca/ping_pong.h"
#include "papers/distca/setting.h"
#include "papers/findings.h"
#include "papers/progress.h"
#include "papers/setting.h"
#include "papers/steps.h"
#include "papers/tables.h"

namespace contextile {
namespace {

// The largest a device sends or receives at once in forward: inputs (Q, KV), or outputs.
std::int64_t largest_buffer_bytes(const Plan& plan) {
  std::int64_t most = 0;
  for (const PlanRound& round : plan.rounds) {
    for (const DeviceProgram& device : round.devices) {
      std::array<std::int64_t, 4> bytes{};  // sent, received; inputs, then outputs
      for (const Instruction& instruction : device.programs.front().forward->instructions) {
        const auto* launch = std::get_if<LaunchOp>(&instruction);
        if (launch == nullptr) continue;
        const auto add = [&](const std::vector<TransferEnd>& ends, std::size_t way) {
          for (const TransferEnd& end : ends) {
            bytes[way + (is_result(end.kind) ? 2 : 0)] +=
                unit_bytes(end.kind, round.blocks.num_tokens(end.block), plan.shape,
                           round.head_groups, end.wire);
          }
        };
        add(launch->sends, 0);
        add(launch->recvs, 1);
      }
      most = std::max(most, *std::max_element(bytes.begin(), bytes.end()));
    }
  }
  return most;
}

// The original's code wants even lengths: an odd document gives a token to the last one.
BatchLengths even_lengths(BatchLengths lengths) {
  std::int64_t spare = 0;
  for (std::int64_t& length : lengths) {
    spare += length % 2;
    length -= length % 2;
  }
  lengths.back() += spare;
  std::erase(lengths, 0);
  return lengths;
}

// One tolerance: a number for each batch.
struct TolerancePoint {
  std::vector<double> buffer_bytes;
  std::vector<double> overload;
  std::vector<double> step_us;
};

double mean_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

TolerancePoint tolerance_point(const TrainingJob& job, std::span<const BatchLengths> batches,
                               const std::string& tolerance) {
  const ParallelSizes sizes{
      .tp = kDistcaTp, .cp = job.cluster.num_devices() / kDistcaTp, .dp = 1, .pp = 1};
  PlanInput input;
  input.cluster = context_parallel_cluster(job.cluster, sizes);
  input.options = job.plan;
  const StrategyChoice original{
      "distca", {{"nano_batches", "1"}, {"upstream", "on"}, {"tolerance", tolerance}}};
  const MaskUse causal;
  TolerancePoint point;
  for (const BatchLengths& documents : batches) {
    const Workload workload = make_workload(even_lengths(documents),
                                            attention_shape_of(job.model, kDistcaTp), {&causal, 1});
    const PlannedBatch planned = plan_and_check(workload, input.cluster, original, input.options);
    point.buffer_bytes.push_back(static_cast<double>(largest_buffer_bytes(*planned.plan)));
    point.overload.push_back(planned.statistics.forward->compute_overload);
    point.step_us.push_back(ping_pong_us(plan_halves(job, documents, tolerance)));
  }
  return point;
}

constexpr std::array<double, 6> kTolerances = {0, 0.05, 0.10, 0.15, 0.20, 0.30};
constexpr std::size_t kAtTenth = 2;
constexpr std::size_t kAt15 = 3;
constexpr std::size_t kAtFifth = 4;

using ToleranceSweep = std::array<TolerancePoint, kTolerances.size()>;

// What a sample of batches says of the mean, and how far it can be off.
struct Estimate {
  double mean = 0;
  double noise = 0;  // two standard errors

  [[nodiscard]] std::string text() const {
    return fmt::format("{:+.1f}% ± {:.1f}%", 100 * mean, 100 * noise);
  }
  // Says "within noise" where that is what it is.
  [[nodiscard]] std::string change_text() const {
    return text() + (std::abs(mean) <= noise ? " (within noise)" : "");
  }
};

// Estimates mean(values) / mean(base) - 1, the noise from what the batches differ from that ratio.
Estimate change_of(std::span<const double> values, std::span<const double> base) {
  const auto count = static_cast<double>(values.size());
  const double mean = mean_of(base);
  const double ratio = mean_of(values) / mean;
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double off = (values[i] - ratio * base[i]) / mean;
    squares += off * off;
  }
  return {.mean = ratio - 1, .noise = 2 * std::sqrt(squares / (count - 1) / count)};
}

Finding flat_finding(const ToleranceSweep& small) {
  constexpr double kFlat = 0.02;
  std::vector<std::string> texts;
  bool flat = true;
  for (std::size_t i = 0; i <= kAtFifth; ++i) {
    if (i == kAtTenth) continue;
    const Estimate change = change_of(small[i].step_us, small[kAtTenth].step_us);
    flat = flat && std::abs(change.mean) <= kFlat;
    texts.push_back(fmt::format("{:.2f}: {}", kTolerances[i], change.change_text()));
  }
  return {"8B: flat up to 0.20", fmt::format("beside 0.10, {}", fmt::join(texts, ", ")), flat,
          "all within 2% of the step at 0.10; ± is two standard errors over batches"};
}

Finding below_finding(const ToleranceSweep& large) {
  std::vector<std::string> texts;
  bool worse = true;
  for (std::size_t i = 0; i < kAtTenth; ++i) {
    const Estimate change = change_of(large[i].step_us, large[kAtTenth].step_us);
    worse = worse && change.mean > change.noise;
    texts.push_back(fmt::format("{:.2f}: {}", kTolerances[i], change.change_text()));
  }
  return {"34B: worse below 0.10", fmt::format("beside 0.10, {}", fmt::join(texts, ", ")), worse,
          "slower at 0 and at 0.05 by more than the noise, two standard errors over batches"};
}

Finding buffer_finding(const std::array<ToleranceSweep, kDistcaModels.size()>& points) {
  constexpr double kLeast = 0.20;
  constexpr double kMost = 0.25;
  std::vector<std::string> texts;
  bool agrees = true;
  for (std::size_t m = 0; m < points.size(); ++m) {
    const Estimate change = change_of(points[m][kAt15].buffer_bytes, points[m][0].buffer_bytes);
    const double saved = -change.mean;
    const bool inside = saved >= kLeast && saved <= kMost;
    const bool near = saved + change.noise >= kLeast && saved - change.noise <= kMost;
    agrees = agrees && inside;
    texts.push_back(fmt::format("{} {}{}", kDistcaModels[m], change.text(),
                                inside ? "" : (near ? " (within noise of it)" : "")));
  }
  return {"from 0 to 0.15 buffers shrink by 20% to 25%", fmt::format("{}", fmt::join(texts, ", ")),
          agrees, "both means lie in that range; ± is two standard errors over batches"};
}

std::vector<Finding> tolerance_findings(
    const std::array<ToleranceSweep, kDistcaModels.size()>& points) {
  return {flat_finding(points[0]), below_finding(points[1]), buffer_finding(points)};
}

std::vector<BatchLengths> tolerance_documents(const std::string& dataset, std::int64_t tokens,
                                              std::int64_t batches, std::uint64_t seed) {
  BatchOptions options;
  options.tokens = tokens;
  options.max_length = 524288;
  options.batches = batches;
  options.seed = seed;
  return batches_from_dataset(dataset, options);
}

// A row for every tolerance.
void add_sweep(std::string_view model, const ToleranceSweep& sweep, Table& table) {
  double fastest_us = kInfinity;
  for (const TolerancePoint& at : sweep) fastest_us = std::min(fastest_us, mean_of(at.step_us));
  for (std::size_t i = 0; i < kTolerances.size(); ++i) {
    const double step_us = mean_of(sweep[i].step_us);
    const double buffer_bytes = mean_of(sweep[i].buffer_bytes);
    table.add_row({std::string(model), kTolerances[i], 1e-6 * step_us, step_us / fastest_us - 1,
                   buffer_bytes, 1 - buffer_bytes / mean_of(sweep.front().buffer_bytes),
                   mean_of(sweep[i].overload)});
  }
}

PaperResult make(const BenchOverrides& overrides) {
  refuse_overrides(
      overrides, "distca-fig12",
      {"--dataset", "--tokens", "--batches", "--seed", "--cluster", "--block-size", "--wire"});
  refuse_nodes(overrides, "distca-fig12");
  constexpr std::int32_t kNodes = 16;
  const std::int64_t batches = overrides.batches.value_or(30);
  const std::string dataset = overrides.dataset.empty() ? "prolong" : overrides.dataset;
  Table table({{"model", "model"},
               {"tolerance", "tolerance"},
               {"step_s", "step\nms", Format::kMilliseconds},
               {"step_change", "over\nfastest", Format::kPercent},
               {"buffer_bytes", "buffer\nMB", Format::kMegabytes},
               {"buffer_saved", "buffer\nsaved", Format::kPercent},
               {"overload", "FLOPs\noverload", Format::kPercent}});
  Progress progress(overrides,
                    static_cast<std::int64_t>(kDistcaModels.size() * kTolerances.size()));
  std::array<ToleranceSweep, kDistcaModels.size()> points;
  for (std::size_t m = 0; m < kDistcaModels.size(); ++m) {
    const std::int64_t tokens = overrides.tokens.value_or(distca_tokens_of_node(kDistcaModels[m]));
    const TrainingJob job =
        unlimited_job({.model = kDistcaModels[m], .devices = kNodes * kDistcaTp}, overrides);
    const std::vector<BatchLengths> documents =
        tolerance_documents(dataset, kNodes * tokens, batches, job.plan.seed);
    for (std::size_t i = 0; i < kTolerances.size(); ++i) {
      progress.step(fmt::format("{}, {}", kDistcaModels[m], kTolerances[i]));
      points[m][i] = tolerance_point(job, documents, fmt::format("{}", kTolerances[i]));
    }
    add_sweep(kDistcaModels[m], points[m], table);
  }
  PaperResult result{
      .setting = {{"models", fmt::format("llama-3-8b and llama-34b, TP 8, {} nodes", kNodes)},
                  {"lengths", fmt::format("{}, up to 512K; {} of {} a node", dataset,
                                          count(batches, "batch"), distca_tokens_text(overrides))},
                  {"cluster", distca_cluster_text(overrides)}},
      .table = std::move(table),
      .differences = {kStepsAreModelled, kLengthsAreSampled}};
  if (batches > 1) {
    result.findings = tolerance_findings(points);
  } else {
    result.differences.emplace_back("No verdict: one batch says nothing of how batches vary.");
  }
  result.differences.emplace_back(
      "Steps: two halves in ping-pong as distca plans them. Buffers: the whole batch as the "
      "original's code plans it (upstream=on, lengths made even), the largest of what a device "
      "sends or receives at once in a layer's forward, LSE included.");
  result.differences.emplace_back(
      "The paper's lengths, batches and numbers of nodes for this figure are not in its text.");
  result.plots = {{.x = "tolerance", .y = {"step_change"}, .series = {"model"}},
                  {.x = "tolerance", .y = {"buffer_saved"}, .series = {"model"}}};
  return result;
}

}  // namespace

PaperTable distca_fig12() {
  return {"distca-fig12", "DistCA, Fig. 12", "step time and largest buffer against the tolerance",
          make};
}

}  // namespace contextile
