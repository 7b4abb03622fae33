// DCP (Jiang et al., SOSP 2025), Figs. 15 and 16: whole training steps. The paper measured GPUs;
// here attention is simulated and everything outside it comes from the model's sizes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/advanced/step_planner.h"
#include "labs/papers/dcp/setting.h"
#include "labs/papers/findings.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/steps.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

constexpr std::array<std::int64_t, 4> kMaxLengths = {16384, 32768, 65536, 131072};

PaperSetting setting_of(const TableOverrides& overrides) {
  PaperSetting setting;
  setting.datasets = {"longalign", "longdatacollections"};
  setting.batch.tokens = 131072;
  setting.batch.batches = 2;
  setting.cluster_name = "p4de:8x8";
  setting.input.options.wire = Dtype::kBf16;
  apply_overrides(overrides, setting);
  return setting;
}

// The time of a step of one batch; infinity if it does not fit.
double step_us(const StrategyChoice& choice, const PaperSetting& setting, const std::string& mask,
               const BatchLengths& lengths) {
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
  return outcome.verdict == Verdict::kFits ? outcome.prediction->time_us : kInfinity;
}

// Geometric mean of a strategy's steps over the batches of all samples.
double mean_step_us(const StrategyChoice& choice, const PaperSetting& setting,
                    const std::string& dataset, const std::string& mask) {
  double log_us = 0;
  std::int64_t steps = 0;
  for (std::int32_t i = 0; i < kDcpSeeds; ++i) {
    const PaperSetting sample = sample_of(setting, i);
    for (const BatchLengths& lengths : batches_from_dataset(dataset, sample.batch)) {
      const double us = step_us(choice, sample, mask, lengths);
      if (us == kInfinity) return us;
      log_us += std::log(us);
      ++steps;
    }
  }
  return std::exp(log_us / static_cast<double>(steps));
}

// DCP and the fastest way to set up TransformerEngine, under one mask. Infinite if nothing fits.
struct Compared {
  double dcp_us = kInfinity;
  double baseline_us = kInfinity;
  std::string baseline = {};  // which way that is

  [[nodiscard]] bool both() const { return dcp_us < kInfinity && baseline_us < kInfinity; }
  [[nodiscard]] double gain() const { return baseline_us / dcp_us; }
};

Compared compared(const PaperSetting& setting, const std::string& dataset,
                  const std::string& mask) {
  Compared steps;
  steps.dcp_us = mean_step_us({"dcp", {}}, setting, dataset, mask);
  for (const StrategyChoice& choice : transformer_engine_choices()) {
    const double us = mean_step_us(choice, setting, dataset, mask);
    if (us < steps.baseline_us) steps.baseline = table_name(choice);
    steps.baseline_us = std::min(steps.baseline_us, us);
  }
  return steps;
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(
      overrides, "dcp-fig15",
      {"--dataset", "--tokens", "--batches", "--seed", "--cluster", "--block-size", "--wire"});
  PaperSetting setting = setting_of(overrides);
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
                                                         kDcpMasks.size() * kMaxLengths.size()));
  for (const std::string& dataset : setting.datasets) {
    for (const auto& [name, mask] : kDcpMasks) {
      for (const std::int64_t max_length : kMaxLengths) {
        progress.step(fmt::format("{}, {}, {}", dataset, name, max_length));
        setting.batch.max_length = max_length;
        const Compared steps = compared(setting, dataset, mask);
        if (steps.both()) {
          (mask == std::string_view("causal") ? causal : sparse).take(steps.gain());
        }
        table.add_row({dataset, std::string(name), max_length, seconds_cell(steps.dcp_us),
                       seconds_cell(steps.baseline_us), steps.baseline,
                       steps.both() ? Cell{steps.gain()} : Cell{}});
      }
    }
  }
  PaperResult result{
      .setting = setting.description(),
      .table = std::move(table),
      .differences = {kStepsAreModelled, kLengthsAreSampled, kTransformerEngineIs},
      .plots = {{.x = "max_length", .y = {"gain"}, .series = {"mask"}, .panels = {"dataset"}}}};
  result.setting[1] = {"model",
                       fmt::format("gpt-8b, TP 4 x CP {}, ZeRO-1, {} tokens per step",
                                   setting.input.cluster.num_devices() / 4, setting.batch.tokens)};
  result.setting[0].second += fmt::format(" and the {} after it", kDcpSeeds - 1);
  result.setting.push_back(kDcpIs);
  if (causal.any()) {
    result.findings.push_back(gains_finding(causal, "causal: 0.94x to 1.16x", 0.94, 1.16));
  }
  if (sparse.any()) {
    result.findings.push_back(gains_finding(sparse, "sparse masks: 1.00x to 1.46x", 1, 1.46));
  }
  return result;
}

}  // namespace

PaperTable dcp_fig15() {
  return {"dcp-fig15", "DCP (SOSP 2025), Figs. 15 and 16", "whole steps of an 8B model, by mask",
          make};
}

}  // namespace contextile
