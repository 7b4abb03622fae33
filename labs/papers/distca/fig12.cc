// DistCA, Fig. 12: the sweep of the tolerance. The paper measured GPUs; here
// everything outside attention comes from the model's sizes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "labs/papers/distca/ping_pong.h"
#include "labs/papers/distca/setting.h"
#include "labs/papers/findings.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/steps.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

// The most that a device sends or receives at once in forward: inputs (Q, KV), or outputs.
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
                           round.groups_of(end.block), end.wire);
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

// The original's code needs even lengths: an odd document gives a token to the last one.
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

TolerancePoint tolerance_point(const TrainingJob& job, std::span<const BatchLengths> batches,
                               const std::string& tolerance) {
  const ParallelSizes sizes{
      .tp = kDistcaTp, .cp = job.cluster.num_devices() / kDistcaTp, .dp = 1, .pp = 1};
  PlanInput input;
  input.cluster = context_parallel_cluster(job.cluster, sizes);
  input.options = job.plan;
  const StrategyChoice original{
      "distca", {{"nano_batches", "1"}, {"match_original", "on"}, {"tolerance", tolerance}}};
  const MaskUse causal;
  TolerancePoint point;
  for (const BatchLengths& documents : batches) {
    const Workload workload = make_workload(even_lengths(documents),
                                            attention_shape_of(job.model, kDistcaTp), {&causal, 1});
    const PlannedBatch planned = plan_and_check(workload, input.cluster, original, input.options);
    point.buffer_bytes.push_back(static_cast<double>(largest_buffer_bytes(*planned.plan)));
    point.overload.push_back(planned.statistics.forward->compute_overload);
    point.step_us.push_back(ping_pong_us(plan_halves(job, documents, {{"tolerance", tolerance}})));
  }
  return point;
}

constexpr std::array<double, 6> kTolerances = {0, 0.05, 0.10, 0.15, 0.20, 0.30};
constexpr std::size_t kAtTenth = 2;
constexpr std::size_t kAt15 = 3;
constexpr std::size_t kAtFifth = 4;
constexpr std::size_t kLoosest = 5;

using ToleranceSweep = std::array<TolerancePoint, kTolerances.size()>;
// For every model, one for each number of nodes.
using SweepsOfModels = std::array<std::vector<ToleranceSweep>, kDistcaModels.size()>;

Finding flat_finding(std::span<const ToleranceSweep> small) {
  constexpr double kFlat = 0.02;
  std::vector<std::string> texts;
  bool flat = true;
  for (const ToleranceSweep& sweep : small) {
    for (std::size_t i = 0; i <= kAtFifth; ++i) {
      if (i == kAtTenth) continue;
      const Estimate change = change_of(sweep[i].step_us, sweep[kAtTenth].step_us);
      flat = flat && std::abs(change.mean) <= kFlat;
      texts.push_back(fmt::format("{:.2f}: {}", kTolerances[i], change.change_text()));
    }
  }
  return {"8B: flat up to 0.20", fmt::format("against 0.10, {}", fmt::join(texts, ", ")), flat,
          "all within 2% of the step at 0.10; ± is two standard errors over batches"};
}

Finding below_finding(std::span<const ToleranceSweep> large) {
  std::vector<std::string> texts;
  bool worse = true;
  for (const ToleranceSweep& sweep : large) {
    for (std::size_t i = 0; i < kAtTenth; ++i) {
      const Estimate change = change_of(sweep[i].step_us, sweep[kAtTenth].step_us);
      worse = worse && change.mean > change.noise;
      texts.push_back(fmt::format("{:.2f}: {}", kTolerances[i], change.change_text()));
    }
  }
  return {"34B: worse below 0.10", fmt::format("against 0.10, {}", fmt::join(texts, ", ")), worse,
          "slower at 0 and at 0.05 by more than the noise, two standard errors over batches"};
}

Finding buffer_finding(const SweepsOfModels& sweeps) {
  constexpr double kLeast = 0.20;
  constexpr double kMost = 0.25;
  std::vector<std::string> texts;
  std::size_t inside_range = 0;
  for (std::size_t m = 0; m < sweeps.size(); ++m) {
    for (const ToleranceSweep& sweep : sweeps[m]) {
      const Estimate change = change_of(sweep[kAt15].buffer_bytes, sweep[0].buffer_bytes);
      const double saved = -change.mean;
      const bool inside = saved >= kLeast && saved <= kMost;
      const bool near = saved + change.noise >= kLeast && saved - change.noise <= kMost;
      if (inside) ++inside_range;
      texts.push_back(fmt::format("{} {}{}", kDistcaModels[m], change.text(),
                                  inside ? "" : (near ? " (within noise of it)" : "")));
    }
  }
  return {"from 0 to 0.15 buffers shrink by 20% to 25% in most cases",
          fmt::format("{}", fmt::join(texts, ", ")), 2 * inside_range > texts.size(),
          "more than half of the means lie in that range; ± is two standard errors over batches"};
}

Finding loose_finding(const SweepsOfModels& sweeps) {
  std::vector<std::string> texts;
  bool slower = true;
  for (std::size_t m = 0; m < sweeps.size(); ++m) {
    for (const ToleranceSweep& sweep : sweeps[m]) {
      const Estimate change = change_of(sweep[kLoosest].step_us, sweep[kAt15].step_us);
      slower = slower && change.mean > change.noise;
      texts.push_back(fmt::format("{} {}", kDistcaModels[m], change.change_text()));
    }
  }
  return {"slower with tolerances above 0.15",
          fmt::format("{:.2f} against 0.15: {}", kTolerances[kLoosest], fmt::join(texts, ", ")),
          slower, "in every case by more than the noise, two standard errors over batches"};
}

Finding stable_finding(const SweepsOfModels& sweeps) {
  constexpr double kStable = 0.05;
  std::vector<std::string> texts;
  bool stable = true;
  for (std::size_t m = 0; m < sweeps.size(); ++m) {
    for (const ToleranceSweep& sweep : sweeps[m]) {
      const Estimate change = change_of(sweep[kLoosest].buffer_bytes, sweep[kAt15].buffer_bytes);
      stable = stable && std::abs(change.mean) <= kStable;
      texts.push_back(fmt::format("{} {}", kDistcaModels[m], change.change_text()));
    }
  }
  return {"buffers hardly change above 0.15",
          fmt::format("{:.2f} against 0.15: {}", kTolerances[kLoosest], fmt::join(texts, ", ")),
          stable, "all within 5%; ± is two standard errors over batches"};
}

std::vector<Finding> tolerance_findings(const SweepsOfModels& sweeps) {
  return {flat_finding(sweeps[0]), below_finding(sweeps[1]), buffer_finding(sweeps),
          loose_finding(sweeps), stable_finding(sweeps)};
}

std::vector<BatchLengths> tolerance_documents(const std::string& dataset, std::int64_t tokens,
                                              std::int64_t batches, std::uint64_t seed) {
  BatchOptions options;
  options.tokens = tokens;
  options.max_length = kDistcaAblationLongest;
  options.batches = batches;
  options.seed = seed;
  return batches_from_dataset(dataset, options);
}

// Adds a row for every tolerance.
void add_sweep(std::string_view model, std::int32_t nodes, const ToleranceSweep& sweep,
               Table& table) {
  double fastest_us = kInfinity;
  for (const TolerancePoint& at : sweep) fastest_us = std::min(fastest_us, mean_of(at.step_us));
  for (std::size_t i = 0; i < kTolerances.size(); ++i) {
    const double step_us = mean_of(sweep[i].step_us);
    const double buffer_bytes = mean_of(sweep[i].buffer_bytes);
    table.add_row({std::string(model), std::int64_t{nodes}, kTolerances[i], 1e-6 * step_us,
                   step_us / fastest_us - 1, buffer_bytes,
                   1 - buffer_bytes / mean_of(sweep.front().buffer_bytes),
                   mean_of(sweep[i].overload)});
  }
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(
      overrides, "distca-fig12",
      {"--dataset", "--tokens", "--batches", "--seed", "--cluster", "--block-size", "--wire"});
  refuse_nodes(overrides, "distca-fig12");
  const std::int64_t batches = overrides.batches.value_or(30);
  Table table({{"model", "model"},
               {"nodes", "nodes"},
               {"tolerance", "tolerance"},
               {"step_s", "step\nms", Format::kMilliseconds},
               {"step_change", "over\nfastest", Format::kPercent},
               {"buffer_bytes", "buffer\nMB", Format::kMegabytes},
               {"buffer_saved", "buffer\nsaved", Format::kPercent},
               {"overload", "FLOPs\noverload", Format::kPercent}});
  Progress progress(overrides,
                    static_cast<std::int64_t>(kDistcaModels.size() * kDistcaAblationNodes.size() *
                                              kTolerances.size()));
  SweepsOfModels sweeps;
  for (std::size_t m = 0; m < kDistcaModels.size(); ++m) {
    for (const std::int32_t nodes : kDistcaAblationNodes) {
      const std::string_view model = kDistcaModels[m];
      const TrainingJob job =
          unlimited_job({.model = model, .devices = nodes * kDistcaTp}, overrides);
      const std::vector<BatchLengths> documents =
          tolerance_documents(distca_dataset(overrides), distca_ablation_tokens(model, overrides),
                              batches, job.plan.seed);
      ToleranceSweep& sweep = sweeps[m].emplace_back();
      for (std::size_t i = 0; i < kTolerances.size(); ++i) {
        progress.step(fmt::format("{}, {} nodes, {}", model, nodes, kTolerances[i]));
        sweep[i] = tolerance_point(job, documents, fmt::format("{}", kTolerances[i]));
      }
      add_sweep(model, nodes, sweep, table);
    }
  }
  PaperResult result{
      .setting = {{"models", "llama-3-8b and llama-34b, TP 8, all nodes one pool"},
                  {"lengths",
                   fmt::format("{}, documents up to 128K; {} of {}", distca_dataset(overrides),
                               count(batches, "batch"), distca_ablation_text(overrides))},
                  {"cluster", distca_cluster_text(overrides)}},
      .table = std::move(table),
      .differences = {kStepsAreModelled, kLengthsAreSampled}};
  if (batches > 1) {
    result.findings = tolerance_findings(sweeps);
  } else {
    result.differences.emplace_back("No verdict: one batch says nothing of how batches vary.");
  }
  result.differences.emplace_back(
      "Steps: two halves in ping-pong as distca plans them. Buffers: the whole batch as the "
      "original's code plans it (match_original=on, lengths made even), the largest of what a "
      "device "
      "sends or receives at once in a layer's forward, LSE included.");
  result.plots = {{.x = "tolerance", .y = {"step_change"}, .series = {"model", "nodes"}},
                  {.x = "tolerance", .y = {"buffer_saved"}, .series = {"model", "nodes"}}};
  return result;
}

}  // namespace

PaperTable distca_fig12() {
  return {"distca-fig12", "DistCA, Fig. 12", "step time and largest buffer against the tolerance",
          make};
}

}  // namespace contextile
