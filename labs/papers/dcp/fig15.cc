// DCP (Jiang et al., SOSP 2025), Figs. 15 and 16: whole training steps. The paper measured GPUs;
// here attention is simulated and everything outside it comes from the model's sizes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
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

constexpr const char* kStepTokensAre =
    "A step has as many tokens as the longest length: the paper does not say, its artifact "
    "(scripts/artifact_evaluation/best_configs.json) does.";
constexpr const char* kStepSpreadIs =
    "Gains are of mean steps; p10 and p90 are those of single batches, without the tenth of them "
    "at "
    "either end.";

constexpr std::array<std::int64_t, 4> kMaxLengths = {16384, 32768, 65536, 131072};

PaperSetting setting_of(const TableOverrides& overrides) {
  PaperSetting setting;
  setting.datasets = {"longalign", "longdatacollections"};
  setting.batch.batches = 20;
  setting.batch.long_documents = LongDocuments::kDrop;
  setting.cluster_name = "p4de:8x8";
  setting.input.options.wire = Dtype::kBf16;
  apply_overrides(overrides, setting);
  return setting;
}

// The time of a step of one batch; infinity if it does not fit.
double step_us(const StrategyChoice& choice, const std::string& engine, const PaperSetting& setting,
               const std::string& mask, const BatchLengths& lengths) {
  TrainingJob job = dcp_training_job(setting.input.cluster, setting.input.options);
  use_engine_of_method(engine, job.cluster);
  job.masks = {parse_mask_use(mask)};
  job.micro_batches = {lengths};
  StepSetting step;
  step.sizes = {.tp = 4, .cp = job.cluster.num_devices() / 4, .dp = 1, .pp = 1};
  step.strategy = choice;
  const StepOutcome outcome = predict_once(job, step);
  return outcome.verdict == Verdict::kFits ? outcome.prediction->time_us : kInfinity;
}

// A strategy's steps, of every batch.
std::vector<double> steps_us(const StrategyChoice& choice, const std::string& engine,
                             const PaperSetting& setting, const std::string& dataset,
                             const std::string& mask) {
  std::vector<double> times;
  for (const BatchLengths& lengths : batches_from_dataset(dataset, setting.batch)) {
    times.push_back(step_us(choice, engine, setting, mask, lengths));
  }
  return times;
}

// DCP and TransformerEngine under one mask: mean steps. Infinite if a step does not fit.
struct Compared {
  double dcp_us = kInfinity;
  double baseline_us = kInfinity;
  Spread batches{};  // gains of single ones

  [[nodiscard]] bool both() const { return dcp_us < kInfinity && baseline_us < kInfinity; }
  [[nodiscard]] double gain() const { return baseline_us / dcp_us; }
};

Compared compared(const PaperSetting& setting, const std::string& dataset,
                  const std::string& mask) {
  const std::vector<double> dcp_us = steps_us({"dcp", {}}, "dcp", setting, dataset, mask);
  const std::vector<double> te_us =
      steps_us(transformer_engine_choice(), "te", setting, dataset, mask);
  return {.dcp_us = mean_of(dcp_us),
          .baseline_us = mean_of(te_us),
          .batches = spread_of_ratios(te_us, dcp_us)};
}

// The gains under one mask, by longest document.
struct MaskGains {
  std::string dataset;
  std::string mask;
  std::vector<double> by_length;
};

void add_range_findings(const Extent& causal, const Extent& sparse,
                        std::vector<Finding>& findings) {
  if (causal.any()) {
    findings.push_back(gains_finding(causal, "causal: 0.94x to 1.16x", 0.94, 1.16));
  }
  if (sparse.any()) {
    findings.push_back(gains_finding(sparse, "sparse masks: 1.00x to 1.46x", 1, 1.46));
  }
}

// The paper's statements about single points of the causal mask.
void add_causal_findings(std::span<const MaskGains> gains, std::vector<Finding>& findings) {
  std::vector<std::string> texts;
  for (const MaskGains& one : gains) {
    if (one.by_length.size() != kMaxLengths.size()) return;
    std::vector<std::string> numbers;
    for (const double gain : one.by_length) numbers.push_back(fmt::format("{:.2f}x", gain));
    texts.push_back(fmt::format("{} {}", one.dataset, fmt::join(numbers, ", ")));
  }
  const std::string ours = fmt::format("{}", fmt::join(texts, "; "));
  for (const MaskGains& one : gains) {
    if (one.dataset != "longalign") continue;
    findings.push_back({"causal, longalign: slower than TE at the longest length", ours,
                        one.by_length.back() < 1, "the gain at 131072 is below 1"});
  }
  const bool falls = std::ranges::all_of(
      gains, [](const MaskGains& one) { return one.by_length.front() > one.by_length.back(); });
  findings.push_back({"causal: more at smaller longest lengths", ours, falls,
                      "16384 gains more than 131072 on every dataset"});
  if (gains.size() != 2) return;
  const bool more = std::ranges::equal(gains[1].by_length, gains[0].by_length, std::greater<>());
  findings.push_back({"causal: more on LongDataCollections", ours, more, "at every length"});
}

// The paper's statements about sparse masks: all gain, lambda and causal-blockwise the most.
void add_sparse_findings(std::span<const MaskGains> gains, std::vector<Finding>& findings) {
  std::size_t points = 0;
  std::size_t faster = 0;
  std::size_t pairs = 0;
  std::size_t ordered = 0;
  double least = kInfinity;
  for (const MaskGains& shared : gains) {
    if (shared.by_length.size() != kMaxLengths.size()) return;
    for (const double gain : shared.by_length) {
      ++points;
      if (gain > 1) ++faster;
      least = std::min(least, gain);
    }
    if (shared.mask != "shared") continue;
    for (const MaskGains& other : gains) {
      if (other.dataset != shared.dataset || other.mask == "shared") continue;
      for (std::size_t i = 0; i < kMaxLengths.size(); ++i) {
        ++pairs;
        if (other.by_length[i] > shared.by_length[i]) ++ordered;
      }
    }
  }
  findings.push_back({"sparse masks: consistently faster than TE",
                      fmt::format("in {} of {} settings, least {:.2f}x", faster, points, least),
                      faster == points, "at every length of every dataset"});
  findings.push_back({"sparse masks: more for lambda and causal-blockwise than the shared question",
                      fmt::format("in {} of {} comparisons", ordered, pairs), ordered == pairs,
                      "both gain more at every length of every dataset"});
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
               {"gain", "gain"},
               {"gain_p10", "p10"},
               {"gain_p90", "p90"}},
              20);
  Extent causal;
  Extent sparse;
  std::vector<MaskGains> causal_gains;
  std::vector<MaskGains> sparse_gains;
  Progress progress(overrides, static_cast<std::int64_t>(setting.datasets.size() *
                                                         kDcpMasks.size() * kMaxLengths.size()));
  for (const std::string& dataset : setting.datasets) {
    for (const auto& [name, mask] : kDcpMasks) {
      const bool is_causal = mask == std::string_view("causal");
      MaskGains& gains =
          (is_causal ? causal_gains : sparse_gains).emplace_back(MaskGains{dataset, name, {}});
      for (const std::int64_t max_length : kMaxLengths) {
        progress.step(fmt::format("{}, {}, {}", dataset, name, max_length));
        setting.batch.max_length = max_length;
        setting.batch.tokens = overrides.tokens.value_or(max_length);
        const Compared steps = compared(setting, dataset, mask);
        const bool both = steps.both();
        if (both) {
          (is_causal ? causal : sparse).take(steps.gain());
          gains.by_length.push_back(steps.gain());
        }
        table.add_row({dataset, std::string(name), max_length, seconds_cell(steps.dcp_us),
                       seconds_cell(steps.baseline_us), both ? Cell{steps.gain()} : Cell{},
                       both ? Cell{steps.batches.p10} : Cell{},
                       both ? Cell{steps.batches.p90} : Cell{}});
      }
    }
  }
  PaperResult result{
      .setting = setting.description(),
      .table = std::move(table),
      .differences = {kDcpStepsAre, kDocumentsAreWhole, kTransformerEngineIs, kEnginesAre},
      .plots = {{.x = "max_length", .y = {"gain"}, .series = {"mask"}, .panels = {"dataset"}}}};
  result.setting[0].second = fmt::format("{}; {} of as many tokens as the longest length, seed {}",
                                         fmt::join(setting.datasets, ", "),
                                         count(setting.batch.batches, "batch"), setting.batch.seed);
  if (overrides.tokens) result.setting[0] = setting.description()[0];
  result.setting[1] = {"model", fmt::format("gpt-8b, TP 4 x CP {}, ZeRO-1",
                                            setting.input.cluster.num_devices() / 4)};
  result.setting.push_back(kDcpIs);
  result.differences.insert(result.differences.end(), {kStepTokensAre, kStepSpreadIs});
  add_range_findings(causal, sparse, result.findings);
  add_causal_findings(causal_gains, result.findings);
  add_sparse_findings(sparse_gains, result.findings);
  return result;
}

}  // namespace

PaperTable dcp_fig15() {
  return {"dcp-fig15", "DCP (SOSP 2025), Figs. 15 and 16", "whole steps of an 8B model, by mask",
          make};
}

}  // namespace contextile
