// Whole training steps, predicted: DCP (SOSP 2025) Figs. 15 and 16, DistCA Figs. 9 and 10. The
// papers measured GPUs; here everything outside attention comes from the model's sizes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contextile/registry.h"
#include "contextile/step_planner.h"
#include "papers/paper_table.h"
#include "papers/steps.h"
#include "papers/times.h"

namespace contextile {
namespace {

// The fastest of some settings that fits, by its step's time.
struct Best {
  double time_us = kInfinity;  // infinity: none fits
  StepOutcome outcome;

  void take(StepOutcome other) {
    if (other.verdict != Verdict::kFits || other.prediction->time_us >= time_us) return;
    time_us = other.prediction->time_us;
    outcome = std::move(other);
  }
  [[nodiscard]] bool found() const { return time_us < kInfinity; }
};

// "1.07x to 1.20x".
std::string range_text(double least, double most) {
  return fmt::format("{:.2f}x to {:.2f}x", least, most);
}

std::string gains_text(const Extent& gains) { return range_text(gains.least, gains.most); }

// Whether gains lie in what the paper says.
Finding gains_finding(const Extent& gains, std::string claim, double paper_least,
                      double paper_most) {
  constexpr double kSlack = 0.05;
  return {std::move(claim), gains_text(gains),
          gains.within(paper_least - kSlack, paper_most + kSlack),
          fmt::format("every gain lies in that range, give or take {}", kSlack)};
}

// ------------------------------------------------------------------------------------------ DCP

constexpr std::array<std::int64_t, 4> kDcpMaxLengths = {16384, 32768, 65536, 131072};

BenchSetting dcp_setting(const BenchOverrides& overrides) {
  BenchSetting setting;
  setting.datasets = {"longalign", "longdatacollections"};
  setting.batch.tokens = 131072;
  setting.batch.batches = 2;
  setting.cluster_name = "p4de:8x8";
  setting.input.options.wire = Dtype::kBf16;
  apply_overrides(overrides, setting);
  return setting;
}

// Geometric mean of a strategy's steps over the batches, one batch a step.
double dcp_step_us(const StrategyChoice& choice, const BenchSetting& setting,
                   const std::string& dataset, const std::string& mask) {
  const std::vector<BatchLengths> batches = batches_from_dataset(dataset, setting.batch);
  double log_us = 0;
  for (const BatchLengths& lengths : batches) {
    TrainingJob job;
    job.model = load_model("gpt-8b");
    job.cluster = setting.input.cluster;
    job.masks = {parse_mask_use(mask)};
    job.plan = setting.input.options;
    job.micro_batches = {lengths};
    StepSetting step;
    step.sizes = {.tp = 4, .cp = job.cluster.num_devices() / 4, .dp = 1, .pp = 1};
    step.strategy = choice;
    const StepOutcome outcome = predict_once(job, step);
    if (outcome.verdict != Verdict::kFits) return kInfinity;
    log_us += std::log(outcome.prediction->time_us);
  }
  return std::exp(log_us / static_cast<double>(batches.size()));
}

// Empty where no setting fits.
Cell seconds_cell(double us) { return us < kInfinity ? Cell{1e-6 * us} : Cell{}; }

PaperResult dcp_fig15(const BenchOverrides& overrides) {
  refuse_overrides(
      overrides, "dcp-fig15",
      {"--dataset", "--tokens", "--batches", "--seed", "--cluster", "--block-size", "--wire"});
  BenchSetting setting = dcp_setting(overrides);
  const auto baselines = transformer_engine_choices();
  Table table({{"dataset", "dataset"},
               {"mask", "mask"},
               {"max_length", "longest"},
               {"dcp_s", "dcp\nms", Format::kMilliseconds},
               {"baseline_s", "TE\nms", Format::kMilliseconds},
               {"baseline", "TE is"},
               {"gain", "gain"}},
              20);
  Extent causal;
  Extent sparse;
  Progress progress(overrides, static_cast<std::int64_t>(setting.datasets.size() *
                                                         kDcpMasks.size() * kDcpMaxLengths.size()));
  for (const std::string& dataset : setting.datasets) {
    for (const auto& [name, mask] : kDcpMasks) {
      for (const std::int64_t max_length : kDcpMaxLengths) {
        progress.step(fmt::format("{}, {}, {}", dataset, name, max_length));
        setting.batch.max_length = max_length;
        const double dcp_us = dcp_step_us({"dcp", {}}, setting, dataset, mask);
        double baseline_us = kInfinity;
        std::string fastest;
        for (const StrategyChoice& choice : baselines) {
          const double us = dcp_step_us(choice, setting, dataset, mask);
          if (us < baseline_us) fastest = choice_text(choice);
          baseline_us = std::min(baseline_us, us);
        }
        const bool both = dcp_us < kInfinity && baseline_us < kInfinity;
        if (both) {
          (mask == std::string_view("causal") ? causal : sparse).take(baseline_us / dcp_us);
        }
        table.add_row({dataset, std::string(name), max_length, seconds_cell(dcp_us),
                       seconds_cell(baseline_us), fastest,
                       both ? Cell{baseline_us / dcp_us} : Cell{}});
      }
    }
  }
  PaperResult result{.setting = setting.description(),
                     .table = std::move(table),
                     .findings = {},
                     .differences = {kStepsAreModelled, kLengthsAreSampled}};
  result.plots = {{.x = "max_length", .y = {"gain"}, .series = {"mask"}, .panels = {"dataset"}}};
  result.setting[1] = {"model",
                       fmt::format("gpt-8b, TP 4 x CP {}, ZeRO-1, {} tokens a step",
                                   setting.input.cluster.num_devices() / 4, setting.batch.tokens)};
  if (causal.any()) {
    result.findings.push_back(gains_finding(causal, "causal: 0.94x to 1.16x", 0.94, 1.16));
  }
  if (sparse.any()) {
    result.findings.push_back(gains_finding(sparse, "sparse masks: 1.00x to 1.46x", 1, 1.46));
  }
  result.differences.push_back(
      "TE: the faster of a ring and of two head-parallel ranks in rings, which send every key "
      "around whatever the mask. The preset's nodes share one uplink of 50 GB/s.");
  return result;
}

// --------------------------------------------------------------------------------------- DistCA

// Fig. 9: batches for 64, 128, 256 devices by the longest document.
constexpr DistcaPoint kFig9[] = {
    {"llama-3-8b", 64, 131072, 8}, {"llama-3-8b", 128, 131072, 16}, {"llama-3-8b", 256, 131072, 32},
    {"llama-3-8b", 64, 262144, 4}, {"llama-3-8b", 128, 262144, 8},  {"llama-3-8b", 256, 262144, 16},
    {"llama-3-8b", 64, 524288, 2}, {"llama-3-8b", 128, 524288, 4},  {"llama-3-8b", 256, 524288, 8},
    {"llama-34b", 64, 131072, 4},  {"llama-34b", 128, 131072, 8},   {"llama-34b", 256, 131072, 16},
    {"llama-34b", 64, 262144, 2},  {"llama-34b", 128, 262144, 4},   {"llama-34b", 256, 262144, 8},
    {"llama-34b", 64, 524288, 2},  {"llama-34b", 128, 524288, 4},   {"llama-34b", 256, 524288, 8}};
// Fig. 10, with pipelines.
constexpr DistcaPoint kFig10[] = {{"llama-3-8b", 64, 131072, 32},   {"llama-3-8b", 128, 131072, 64},
                                  {"llama-3-8b", 256, 131072, 128}, {"llama-3-8b", 64, 262144, 16},
                                  {"llama-3-8b", 128, 262144, 32},  {"llama-3-8b", 256, 262144, 32},
                                  {"llama-3-8b", 64, 524288, 8},    {"llama-3-8b", 128, 524288, 8},
                                  {"llama-3-8b", 256, 524288, 16},  {"llama-34b", 128, 131072, 32},
                                  {"llama-34b", 256, 131072, 64},   {"llama-34b", 512, 131072, 128},
                                  {"llama-34b", 128, 262144, 16},   {"llama-34b", 256, 262144, 32},
                                  {"llama-34b", 512, 262144, 32},   {"llama-34b", 128, 393216, 8},
                                  {"llama-34b", 256, 393216, 8},    {"llama-34b", 512, 393216, 16}};

// The step with as little recomputation as memory allows; nothing where a micro-batch is empty.
void take_step(TrainingJob& job, const StepSetting& setting, std::vector<BatchLengths> batches,
               Best& best) {
  for (const BatchLengths& lengths : batches) {
    if (lengths.empty()) return;
  }
  job.micro_batches = std::move(batches);
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    job.options.recompute = recompute;
    StepOutcome outcome = predict_once(job, setting);
    const Verdict verdict = outcome.verdict;
    best.take(std::move(outcome));
    if (verdict != Verdict::kOutOfMemory) return;
  }
}

// Micro-batches of a replica to try: two and four a stage, fewer bubbles or larger batches.
std::vector<std::int32_t> micro_batch_counts(std::int32_t pp) {
  return pp == 1 ? std::vector<std::int32_t>{1} : std::vector<std::int32_t>{2 * pp, 4 * pp};
}

// Stages to try: Fig. 9 has none.
constexpr std::array<std::int32_t, 1> kNoPipeline = {1};
constexpr std::array<std::int32_t, 2> kPipelines = {2, 4};

// WLB-LLM at its best: every DP x CP (x PP, 1F1B), documents packed for equal work.
Best best_wlb(TrainingJob& job, const DistcaPoint& point, const BatchLengths& documents,
              std::span<const std::int32_t> pipelines) {
  Best best;
  const std::int32_t ranks = point.devices / kDistcaTp;
  for (const std::int32_t pp : pipelines) {
    for (std::int32_t dp = 1; dp <= ranks / pp; dp *= 2) {
      for (const std::int32_t m : micro_batch_counts(pp)) {
        StepSetting setting;
        setting.sizes = {.tp = kDistcaTp, .cp = ranks / pp / dp, .dp = dp, .pp = pp};
        setting.strategy = {"wlb", {}};
        take_step(job, setting, packed_for_work(documents, m * dp), best);
      }
    }
  }
  return best;
}

// DistCA: one pool of all devices (of a pipeline: in ticks of one phase), ping-pong.
Best best_distca(TrainingJob& job, const DistcaPoint& point, const BatchLengths& documents,
                 std::span<const std::int32_t> pipelines) {
  Best best;
  const std::int32_t ranks = point.devices / kDistcaTp;
  for (const std::int32_t pp : pipelines) {
    for (const std::int32_t m : micro_batch_counts(pp)) {
      StepSetting setting;
      setting.sizes = {.tp = kDistcaTp, .cp = ranks / pp, .dp = 1, .pp = pp};
      setting.schedule = pp == 1 ? PipelineSchedule::k1F1B : PipelineSchedule::kSamePhase;
      setting.nano_batches = NanoBatches::kPingPong;
      setting.strategy = {"distca", {{"nano_batches", "1"}, {"resend", "on"}}};
      take_step(job, setting, packed_for_tokens(documents, m), best);
    }
  }
  return best;
}

std::string placement_text(const Best& best) {
  const ParallelSizes& sizes = best.outcome.setting.sizes;
  return best.found() ? fmt::format("{}x{}x{}", sizes.cp, sizes.dp, sizes.pp) : "none fits";
}

struct DistcaClaim {
  std::string_view model;  // empty: both
  std::string_view dataset;
  double least;
  double most;
};

struct DistcaFigure {
  Table table{{{"model", "model"},
               {"dataset", "dataset"},
               {"devices", "GPUs"},
               {"max_length", "longest"},
               {"wlb_s", "WLB\nms", Format::kMilliseconds},
               {"wlb_placement", "WLB's\nCPxDPxPP"},
               {"distca_s", "DistCA\nms", Format::kMilliseconds},
               {"distca_placement", "DistCA's\nCPxDPxPP"},
               {"gain", "gain"}}};
  std::vector<Extent> gains;  // of every claim
  std::vector<std::string> losses;
  std::int64_t compared = 0;
};

void add_comparison(const std::string& dataset, const DistcaPoint& point, const Best& wlb,
                    const Best& distca, std::span<const DistcaClaim> claims, DistcaFigure& figure) {
  const bool both = wlb.found() && distca.found();
  const double gain = both ? wlb.time_us / distca.time_us : 0;
  for (std::size_t i = 0; i < claims.size() && both; ++i) {
    if (claims[i].dataset != dataset) continue;
    if (claims[i].model.empty() || claims[i].model == point.model) figure.gains[i].take(gain);
  }
  figure.compared += both ? 1 : 0;
  if (both && gain < 1) {
    figure.losses.push_back(fmt::format("{} {} {}K on {} GPUs {:.2f}x", point.model, dataset,
                                        point.max_length / 1024, point.devices, gain));
  }
  figure.table.add_row({std::string(point.model), dataset, std::int64_t{point.devices},
                        point.max_length, seconds_cell(wlb.time_us), placement_text(wlb),
                        seconds_cell(distca.time_us), placement_text(distca),
                        both ? Cell{gain} : Cell{}});
}

PaperResult distca_figure(const BenchOverrides& overrides, std::string_view name,
                          std::span<const DistcaPoint> points,
                          std::span<const std::int32_t> pipelines,
                          std::span<const DistcaClaim> claims) {
  refuse_overrides(overrides, name, {"--dataset", "--seed", "--cluster", "--block-size", "--wire"});
  refuse_nodes(overrides, name);
  std::vector<std::string> datasets = {"pretrain", "prolong"};
  if (!overrides.dataset.empty()) datasets = {overrides.dataset};
  DistcaFigure figure;
  figure.gains.resize(claims.size());
  Progress progress(overrides, static_cast<std::int64_t>(points.size() * datasets.size()));
  for (const DistcaPoint& point : points) {
    TrainingJob job = distca_job(point, overrides);
    for (const std::string& dataset : datasets) {
      progress.step(fmt::format("{}, {} devices, {}, {}", point.model, point.devices,
                                point.max_length, dataset));
      const BatchLengths documents = stretched_documents(dataset, point.batch * point.max_length,
                                                         point.max_length, job.plan.seed)
                                         .front();
      add_comparison(dataset, point, best_wlb(job, point, documents, pipelines),
                     best_distca(job, point, documents, pipelines), claims, figure);
    }
  }
  PaperResult result{
      .setting = {{"models",
                   "llama-3-8b, llama-34b, TP 8, ZeRO-1, as little recomputation as fits"},
                  {"lengths", fmt::format("{}, stretched to the longest document",
                                          fmt::join(datasets, ", "))}},
      .table = std::move(figure.table),
      .findings = {},
      .differences = {kStepsAreModelled, kLengthsAreSampled}};
  result.plots = {
      {.x = "devices", .y = {"gain"}, .series = {"max_length"}, .panels = {"model", "dataset"}}};
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const DistcaClaim& claim = claims[i];
    if (!figure.gains[i].any()) continue;
    result.findings.push_back(
        gains_finding(figure.gains[i],
                      fmt::format("{}{}: {} over WLB at its best",
                                  claim.model.empty() ? "" : fmt::format("{}, ", claim.model),
                                  claim.dataset, range_text(claim.least, claim.most)),
                      claim.least, claim.most));
  }
  result.differences.push_back(
      "How lengths reach 256K, 384K and 512K is not in the paper's text: here all are multiplied "
      "by longest / 128K and cut there.");
  result.differences.push_back(
      "DistCA's migration does not look at the sender: where some devices send several times the "
      "mean, the other half's compute does not hide it.");
  if (!figure.losses.empty()) {
    result.differences.push_back(fmt::format("Slower than WLB in {} of {} settings: {}.",
                                             figure.losses.size(), figure.compared,
                                             fmt::join(figure.losses, ", ")));
  }
  return result;
}

PaperResult distca_fig9(const BenchOverrides& overrides) {
  constexpr DistcaClaim kClaims[] = {{"", "pretrain", 1.07, 1.20}, {"", "prolong", 1.05, 1.12}};
  PaperResult result = distca_figure(overrides, "distca-fig9", kFig9, kNoPipeline, kClaims);
  result.differences.push_back(
      "WLB: fastest of all CP x DP that fit, documents packed for equal work in variable lengths. "
      "DistCA: all devices one pool, two nano-batches in ping-pong.");
  return result;
}

PaperResult distca_fig10(const BenchOverrides& overrides) {
  constexpr DistcaClaim kClaims[] = {{"llama-3-8b", "pretrain", 1.15, 1.30},
                                     {"llama-3-8b", "prolong", 1.10, 1.35},
                                     {"llama-34b", "pretrain", 1.00, 1.15},
                                     {"llama-34b", "prolong", 1.00, 1.25}};
  PaperResult result = distca_figure(overrides, "distca-fig10", kFig10, kPipelines, kClaims);
  result.differences.push_back(
      "Both: fastest of 2 and 4 stages with 2 or 4 micro-batches a stage that fits. WLB in 1F1B, "
      "every CP x DP; DistCA in ticks of one "
      "phase, DP 1.");
  return result;
}

constexpr std::array<PaperTable, 3> kTables = {
    {{"dcp-fig15", "DCP (SOSP 2025), Figs. 15 and 16", "whole steps of an 8B model, by mask",
      dcp_fig15},
     {"distca-fig9", "DistCA, Fig. 9", "whole steps without pipelines, 64 to 256 GPUs",
      distca_fig9},
     {"distca-fig10", "DistCA, Fig. 10", "whole steps with pipelines, 64 to 512 GPUs",
      distca_fig10}}};

}  // namespace

std::span<const PaperTable> iteration_paper_tables() { return kTables; }

}  // namespace contextile
