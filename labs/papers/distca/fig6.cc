// DistCA, Fig. 6 (section 3.2): per-document context parallelism compared with data parallelism, in
// idle time and memory. The paper measured GPUs; here everything outside attention comes from the
// model's sizes.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "labs/papers/distca/setting.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/steps.h"
#include "labs/papers/tables.h"

namespace contextile {
namespace {

constexpr std::int32_t kRanks = 8;  // 64 GPUs, TP 8

// Means over batches.
struct SplitCosts {
  double step_us = 0;
  double idle = 0;    // share of the step in which a replica waits for the slowest
  double gather = 0;  // share of it in which keys move and nothing is computed
  double memory_bytes = 0;
};

// Costs of CP with `cp` ranks in every replica, and whole documents in replicas of about equal
// work.
SplitCosts split_costs(std::string_view model, std::int32_t cp, const TableOverrides& overrides,
                       std::int64_t tokens, std::int64_t batches) {
  TrainingJob job = unlimited_job({.model = model, .devices = kRanks * kDistcaTp}, overrides);
  job.options.recompute = Recompute::kSelective;
  StepSetting setting;
  setting.sizes = {.tp = kDistcaTp, .cp = cp, .dp = kRanks / cp, .pp = 1};
  setting.strategy = {"all_gather", {{"layout", "per_document"}}};
  const double share = 1.0 / static_cast<double>(batches);
  SplitCosts mean;
  for (const BatchLengths& documents :
       stretched_documents(distca_dataset(overrides), tokens,
                           std::min(tokens, kDistcaAblationLongest), job.plan.seed, batches)) {
    job.micro_batches = packed_for_work(documents, kRanks / cp);
    for (BatchLengths& lengths : job.micro_batches) {
      if (lengths.empty()) lengths.push_back(1);  // a replica cannot have nothing to do
    }
    const StepOutcome outcome = predict_once(job, setting);
    if (outcome.verdict != Verdict::kFits) fail_argument("{}", outcome.reason);
    const StepPrediction& step = *outcome.prediction;
    mean.step_us += share * step.time_us;
    mean.idle += share * step.stages.front().bubble_us / step.time_us;
    mean.gather += share * step.stages.front().exposed_attention_us / step.time_us;
    mean.memory_bytes += share * static_cast<double>(outcome.memory.front().total_bytes());
  }
  return mean;
}

PaperResult make(const TableOverrides& overrides) {
  refuse_overrides(overrides, "distca-fig6",
                   {"--dataset", "--tokens", "--batches", "--seed", "--cluster"});
  refuse_nodes(overrides, "distca-fig6");
  constexpr std::array<std::int32_t, 4> kCp = {1, 2, 4, 8};
  const std::int64_t tokens = overrides.tokens.value_or(524288);
  const std::int64_t batches = overrides.batches.value_or(30);
  Table table({{"model", "model"},
               {"cp", "CP"},
               {"dp", "DP"},
               {"step_s", "step\nms", Format::kMilliseconds},
               {"idle", "idle", Format::kPercent},
               {"gather", "all-gather", Format::kPercent},
               {"memory_bytes", "memory\nMB", Format::kMegabytes}});
  Progress progress(overrides, static_cast<std::int64_t>(kDistcaModels.size() * kCp.size()));
  bool is_trade = true;  // more CP: less idle, more all-gather
  for (const std::string_view model : kDistcaModels) {
    SplitCosts before{.idle = 1, .gather = -1};
    for (const std::int32_t cp : kCp) {
      progress.step(fmt::format("{}, CP {}", model, cp));
      const SplitCosts costs = split_costs(model, cp, overrides, tokens, batches);
      is_trade = is_trade && costs.idle <= before.idle && costs.gather >= before.gather;
      before = costs;
      table.add_row({std::string(model), std::int64_t{cp}, std::int64_t{kRanks / cp},
                     1e-6 * costs.step_us, costs.idle, costs.gather, costs.memory_bytes});
    }
  }
  PaperResult result{
      .setting = {{"models", "llama-3-8b and llama-34b, 64 GPUs, TP 8, selective recomputation"},
                  {"lengths",
                   fmt::format("{}, documents up to 128K; {} of {} tokens",
                               distca_dataset(overrides), count(batches, "batch"), tokens)},
                  {"cluster", distca_cluster_text(overrides)}},
      .table = std::move(table),
      .differences = {kStepsAreModelled, kLengthsAreSampled}};
  result.findings = {{"a higher CP degree is better balanced, and gathering costs more (3.2)",
                      is_trade ? "both, at every step" : "not at every step", is_trade,
                      "idle time never rises and the share of the all-gather never falls with CP"}};
  result.differences.emplace_back(
      "The points of the figure are not in the paper's text, so none is compared. Documents go "
      "whole to the replica with the least work; memory is the fullest rank's, keys are gathered "
      "again in backward.");
  result.plots = {{.x = "cp", .y = {"idle", "gather"}, .panels = {"model"}},
                  {.x = "cp", .y = {"memory_bytes"}, .series = {"model"}}};
  return result;
}

}  // namespace

PaperTable distca_fig6() {
  return {"distca-fig6", "DistCA, Fig. 6",
          "per-document context parallelism and data parallelism: idle time and memory", make};
}

}  // namespace contextile
