// DistCA: the ablation of ping-pong (Fig. 11) and the sweep of the tolerance (Fig. 12). The paper
// measured GPUs; here everything outside attention comes from the model's sizes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "contextile/registry.h"
#include "papers/paper_table.h"
#include "papers/steps.h"
#include "papers/times.h"

namespace contextile {
namespace {

// "-0.3% to +1.2%".
std::string change_text(const Extent& extent) {
  return fmt::format("{:+.1f}% to {:+.1f}%", 100 * extent.least, 100 * extent.most);
}

// ----------------------------------------------------------------------------------- Fig. 11

// Both halves of a ping-pong step of DistCA.
struct NanoBatchPair {
  TrainingStep step;              // without micro-batches
  std::array<BatchPart, 2> part;  // transfers simulated apart
};

NanoBatchPair plan_halves(const TrainingJob& job, const BatchLengths& documents,
                          const std::string& tolerance) {
  CONTEXTILE_CHECK(documents.size() >= 2,
                   "expected batches of at least two documents, one for each half, found {}: more "
                   "--tokens",
                   documents.size());
  NanoBatchPair pair{.step = one_group_step(job, kDistcaTp), .part = {}};
  const StrategyChoice choice{"distca",
                              {{"nano_batches", "1"}, {"resend", "on"}, {"tolerance", tolerance}}};
  const std::vector<BatchLengths> halves = packed_for_tokens(documents, 2);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    pair.part[i] =
        planned_part(choice, job, pair.step.sizes, halves[i], AttentionDetail::kSeparately);
  }
  return pair;
}

double ping_pong_us(const NanoBatchPair& pair) {
  return predict_parts(pair.step, {pair.part[0], pair.part[1]}).time_us;
}

// Every transfer is one byte: it takes no time.
double signal_us(const NanoBatchPair& pair) {
  std::vector<BatchPart> parts(pair.part.begin(), pair.part.end());
  for (BatchPart& part : parts) {
    for (AttentionTimes* times : {&part.attention.forward, &part.attention.backward}) {
      times->input_us = 0;
      times->output_us = 0;
    }
  }
  return predict_parts(pair.step, std::move(parts)).time_us;
}

// The same tasks on one stream: attention waits for its inputs, what follows for its results.
double single_stream_us(const NanoBatchPair& pair) {
  BatchPart both;
  const auto add = [](const AttentionTimes& from, AttentionTimes& to) {
    to.time_us += from.input_us + from.compute_us + from.output_us;
    to.compute_us += from.compute_us;
  };
  for (const BatchPart& part : pair.part) {
    both.tokens += part.tokens;
    both.device_tokens += part.device_tokens;
    both.attention_flops += part.attention_flops;
    add(part.attention.forward, both.attention.forward);
    add(part.attention.backward, both.attention.backward);
  }
  return predict_parts(pair.step, {both}).time_us;
}

// Fig. 9's points with documents of 128K tokens.
constexpr DistcaPoint kAblation[] = {
    {"llama-3-8b", 64, 131072, 8}, {"llama-3-8b", 128, 131072, 16}, {"llama-3-8b", 256, 131072, 32},
    {"llama-34b", 64, 131072, 4},  {"llama-34b", 128, 131072, 8},   {"llama-34b", 256, 131072, 16}};

// As many tokens a node as the command line says; documents no longer than both.
DistcaPoint with_tokens(DistcaPoint point, const BenchOverrides& overrides) {
  if (!overrides.tokens) return point;
  const std::int64_t nodes = point.devices / kDistcaTp;
  point.batch = nodes;
  point.max_length = *overrides.tokens;
  return point;
}

// With one byte, in ping-pong, on one stream: means.
std::array<double, 3> ablation_us(const DistcaPoint& point, const BenchOverrides& overrides,
                                  std::int64_t batches) {
  const TrainingJob job = unlimited_job(point, overrides);
  const double share = 1.0 / static_cast<double>(batches);
  std::array<double, 3> mean{};
  for (const BatchLengths& documents :
       stretched_documents(distca_dataset(overrides), point.batch * point.max_length,
                           point.max_length, job.plan.seed, batches)) {
    const NanoBatchPair pair = plan_halves(job, documents, "0.1");
    mean[0] += share * signal_us(pair);
    mean[1] += share * ping_pong_us(pair);
    mean[2] += share * single_stream_us(pair);
  }
  return mean;
}

PaperResult fig11(const BenchOverrides& overrides) {
  refuse_overrides(
      overrides, "distca-fig11",
      {"--dataset", "--tokens", "--batches", "--seed", "--cluster", "--block-size", "--wire"});
  refuse_nodes(overrides, "distca-fig11");
  const std::int64_t batches = overrides.batches.value_or(30);
  Table table({{"model", "model"},
               {"nodes", "nodes"},
               {"signal_s", "one byte\nms", Format::kMilliseconds},
               {"ping_pong_s", "ping-pong\nms", Format::kMilliseconds},
               {"single_s", "one stream\nms", Format::kMilliseconds},
               {"over_signal", "ping-pong\nover byte", Format::kPercent},
               {"single_slower", "one stream\nslower", Format::kPercent}});
  Progress progress(overrides, static_cast<std::int64_t>(std::size(kAblation)));
  Extent slower;
  Extent exposed;       // all but the exception
  double small_8b = 0;  // 8B on 8 nodes
  for (const DistcaPoint& paper : kAblation) {
    const DistcaPoint point = with_tokens(paper, overrides);
    progress.step(fmt::format("{}, {} devices", point.model, point.devices));
    const std::array<double, 3> us = ablation_us(point, overrides, batches);
    const double over = us[1] / us[0] - 1;
    const double single = us[2] / us[1] - 1;
    slower.take(single);
    if (point.model == "llama-3-8b" && point.devices == 64) {
      small_8b = over;
    } else {
      exposed.take(over);
    }
    table.add_row({std::string(point.model), std::int64_t{point.devices / kDistcaTp}, 1e-6 * us[0],
                   1e-6 * us[1], 1e-6 * us[2], over, single});
  }
  PaperResult result = paper_result(
      {{"models", "llama-3-8b and llama-34b, TP 8, all nodes one pool, tolerance 0.1"},
       {"lengths", fmt::format("{}, {}, {}", distca_dataset(overrides), count(batches, "batch"),
                               overrides.tokens ? fmt::format("{} tokens a node", *overrides.tokens)
                                                : "as Fig. 9 with documents up to 128K")},
       {"cluster", distca_cluster_text(overrides)}},
      std::move(table), {kStepsAreModelled, kLengthsAreSampled});
  result.findings = {
      {"one stream is 10% to 17% slower", change_text(slower), slower.within(0.08, 0.19),
       "every point lies in 8% to 19%"},
      {"ping-pong takes as long as with signals of one byte, all but 8B on 8 nodes",
       fmt::format("{} above them; 8B on 8 nodes {:+.1f}%", change_text(exposed), 100 * small_8b),
       exposed.within(-0.01, 0.02) && small_8b > exposed.most,
       "all others are at most 2% above, and 8B on 8 nodes is more than any of them"}};
  result.differences.emplace_back(
      "One stream: the two halves one after the other, nothing moves while anything computes. One "
      "byte: the same plans, transfers take no time. Ticks end when the slower of compute and "
      "transfer does.");
  result.differences.emplace_back(
      "Lengths and batches of the ablation are not in the paper's text.");
  result.plots = {
      {.x = "nodes", .y = {"signal_s", "ping_pong_s", "single_s"}, .panels = {"model"}}};
  return result;
}

// ----------------------------------------------------------------------------------- Fig. 12

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
  // Beside none: "within noise".
  [[nodiscard]] std::string change_text() const {
    return text() + (std::abs(mean) <= noise ? " (within noise)" : "");
  }
};

// Of mean(values) / mean(base) - 1, by what the batches differ from that ratio.
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

PaperResult fig12(const BenchOverrides& overrides) {
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
    double fastest_us = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < kTolerances.size(); ++i) {
      progress.step(fmt::format("{}, {}", kDistcaModels[m], kTolerances[i]));
      points[m][i] = tolerance_point(job, documents, fmt::format("{}", kTolerances[i]));
      fastest_us = std::min(fastest_us, mean_of(points[m][i].step_us));
    }
    for (std::size_t i = 0; i < kTolerances.size(); ++i) {
      const TolerancePoint& at = points[m][i];
      const double step_us = mean_of(at.step_us);
      const double buffer_bytes = mean_of(at.buffer_bytes);
      table.add_row({std::string(kDistcaModels[m]), kTolerances[i], 1e-6 * step_us,
                     step_us / fastest_us - 1, buffer_bytes,
                     1 - buffer_bytes / mean_of(points[m].front().buffer_bytes),
                     mean_of(at.overload)});
    }
  }
  PaperResult result = paper_result(
      {{"models", fmt::format("llama-3-8b and llama-34b, TP 8, {} nodes", kNodes)},
       {"lengths", fmt::format("{}, up to 512K; {} of {} a node", dataset, count(batches, "batch"),
                               distca_tokens_text(overrides))},
       {"cluster", distca_cluster_text(overrides)}},
      std::move(table), {kStepsAreModelled, kLengthsAreSampled});
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

constexpr std::array<PaperTable, 2> kTables = {
    {{"distca-fig11", "DistCA, Fig. 11",
      "one stream, ping-pong, and transfers of one byte, 8 to 32 nodes", fig11},
     {"distca-fig12", "DistCA, Fig. 12", "step time and largest buffer against the tolerance",
      fig12}}};

}  // namespace

std::span<const PaperTable> distca_overlap_paper_tables() { return kTables; }

}  // namespace contextile
