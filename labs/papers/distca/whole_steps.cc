#include "labs/papers/distca/whole_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "contextile/advanced/step_planner.h"
#include "labs/papers/findings.h"
#include "labs/papers/progress.h"
#include "labs/papers/setting.h"
#include "labs/papers/steps.h"

namespace contextile {
namespace {

// The step of one batch with as little recomputation as memory allows. Infinity if none fits or a
// micro-batch is empty.
double step_us(TrainingJob& job, const StepSetting& setting, std::vector<BatchLengths> batches) {
  for (const BatchLengths& lengths : batches) {
    if (lengths.empty()) return kInfinity;
  }
  job.micro_batches = std::move(batches);
  double least_us = kInfinity;
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    job.options.recompute = recompute;
    const StepOutcome outcome = predict_once(job, setting);
    if (outcome.verdict == Verdict::kFits) {
      least_us = std::min(least_us, outcome.prediction->time_us);
    }
    if (outcome.verdict != Verdict::kOutOfMemory) break;
  }
  return least_us;
}

// A setting is given up if the first batches take this many times as long as with another one.
constexpr std::size_t kBatchesToJudge = 5;
constexpr double kHopeless = 1.25;

// The setting whose steps take the least time on average, among those that fit every batch.
struct Best {
  double mean_us = kInfinity;    // infinity: none fits
  std::vector<double> times_us;  // of every batch
  ParallelSizes sizes;

  [[nodiscard]] bool found() const { return mean_us < kInfinity; }

  // pack(documents): a batch's micro-batches.
  template <typename Pack>
  void take(TrainingJob& job, const StepSetting& setting, std::span<const BatchLengths> batches,
            const Pack& pack) {
    std::vector<double> times;
    for (const BatchLengths& documents : batches) {
      times.push_back(step_us(job, setting, pack(documents)));
      if (times.back() == kInfinity || is_hopeless(times)) return;
    }
    const double mean = mean_of(times);
    if (mean >= mean_us) return;
    mean_us = mean;
    times_us = std::move(times);
    sizes = setting.sizes;
  }

  // True if it is far slower than the best so far on the first batches.
  [[nodiscard]] bool is_hopeless(std::span<const double> times) const {
    return found() && times.size() == kBatchesToJudge &&
           mean_of(times) > kHopeless * mean_of(std::span(times_us).first(kBatchesToJudge));
  }
};

// Micro-batches of a replica to try: two and four per stage, for fewer bubbles or larger batches.
std::vector<std::int32_t> micro_batch_counts(std::int32_t pp) {
  return pp == 1 ? std::vector<std::int32_t>{1} : std::vector<std::int32_t>{2 * pp, 4 * pp};
}

// WLB-LLM at its best: every DP x CP (x PP, 1F1B), documents packed for equal work.
Best best_wlb(TrainingJob& job, const DistcaPoint& point, std::span<const BatchLengths> batches,
              std::span<const std::int32_t> pipelines) {
  Best best;
  const std::int32_t ranks = point.devices / kDistcaTp;
  for (const std::int32_t pp : pipelines) {
    for (std::int32_t dp = 1; dp <= ranks / pp; dp *= 2) {
      for (const std::int32_t m : micro_batch_counts(pp)) {
        StepSetting setting;
        setting.sizes = {.tp = kDistcaTp, .cp = ranks / pp / dp, .dp = dp, .pp = pp};
        setting.strategy = {"wlb", {}};
        best.take(job, setting, batches, [&](const BatchLengths& documents) {
          return packed_for_work(documents, m * dp);
        });
      }
    }
  }
  return best;
}

// DistCA: one pool of all devices (of a pipeline: in ticks of one phase), ping-pong. `relays`: "on"
// or "off", as published.
Best best_distca(TrainingJob& job, const DistcaPoint& point, std::span<const BatchLengths> batches,
                 std::span<const std::int32_t> pipelines, const std::string& relays) {
  Best best;
  const std::int32_t ranks = point.devices / kDistcaTp;
  for (const std::int32_t pp : pipelines) {
    for (const std::int32_t m : micro_batch_counts(pp)) {
      StepSetting setting;
      setting.sizes = {.tp = kDistcaTp, .cp = ranks / pp, .dp = 1, .pp = pp};
      setting.schedule = PipelineSchedule::kSamePhase;
      setting.nano_batches = NanoBatches::kPingPong;
      setting.strategy = {"distca", {{"nano_batches", "1"}, {"resend", "on"}, {"relays", relays}}};
      best.take(job, setting, batches,
                [&](const BatchLengths& documents) { return packed_for_tokens(documents, m); });
    }
  }
  return best;
}

std::string sizes_text(const Best& best) {
  const ParallelSizes& sizes = best.sizes;
  return best.found() ? fmt::format("{}x{}x{}", sizes.cp, sizes.dp, sizes.pp) : "none fits";
}

struct DistcaFigure {
  Table table{{{"model", ""},
               {"size", "size"},
               {"dataset", "dataset"},
               {"devices", "GPUs"},
               {"max_length", "up to"},
               {"wlb_s", "WLB\nms", Format::kMilliseconds},
               {"wlb_placement", "WLB's\nCPxDPxPP"},
               {"distca_s", "DistCA\nms", Format::kMilliseconds},
               {"distca_placement", ""},
               {"distca_pp", "its\nPP"},
               {"gain", "gain"},
               {"gain_noise", "±", Format::kPercent},
               {"relays_s", "", Format::kMilliseconds},
               {"relays_gain", "relays\ngain"}}};
  std::vector<Extent> gains;  // of every claim
  std::vector<Extent> relays_gains;
  std::vector<std::string> losses;
  std::vector<std::string> relays_losses;
  std::int64_t compared = 0;
  std::vector<DistcaOutcome> outcomes;  // as published
};

// The three methods in one setting.
struct Compared {
  Best wlb;
  Best distca;  // as published
  Best relays;  // the same tasks, and servers that pass keys on to each other
};

void add_comparison(const std::string& dataset, const DistcaPoint& point, const Compared& of,
                    std::span<const DistcaClaim> claims, DistcaFigure& figure) {
  const bool both = of.wlb.found() && of.distca.found() && of.relays.found();
  const Estimate change = both ? change_of(of.wlb.times_us, of.distca.times_us) : Estimate{};
  const double gain = 1 + change.mean;
  const double relays_gain = both ? of.wlb.mean_us / of.relays.mean_us : 0;
  for (std::size_t i = 0; i < claims.size() && both; ++i) {
    if (claims[i].dataset != dataset) continue;
    if (!claims[i].model.empty() && claims[i].model != point.model) continue;
    figure.gains[i].take(gain);
    figure.relays_gains[i].take(relays_gain);
  }
  figure.compared += both ? 1 : 0;
  if (both) {
    figure.outcomes.push_back(
        {.model = point.model,
         .dataset = dataset,
         .devices = point.devices,
         .max_length = point.max_length,
         .tokens = static_cast<double>(point.batch) * static_cast<double>(point.max_length),
         .wlb_us = of.wlb.mean_us,
         .distca_us = of.distca.mean_us});
  }
  const auto note_loss = [&](double of_gain, std::vector<std::string>& losses) {
    if (!both || of_gain >= 1) return;
    losses.push_back(fmt::format("{} {} {}K on {} GPUs {:.2f}x", point.model, dataset,
                                 point.max_length / 1024, point.devices, of_gain));
  };
  note_loss(gain, figure.losses);
  note_loss(relays_gain, figure.relays_losses);
  figure.table.add_row({std::string(point.model), distca_size(point.model), dataset,
                        std::int64_t{point.devices}, point.max_length, seconds_cell(of.wlb.mean_us),
                        sizes_text(of.wlb), seconds_cell(of.distca.mean_us), sizes_text(of.distca),
                        of.distca.found() ? Cell{std::int64_t{of.distca.sizes.pp}} : Cell{},
                        both ? Cell{gain} : Cell{}, both ? Cell{change.noise} : Cell{},
                        seconds_cell(of.relays.mean_us), both ? Cell{relays_gain} : Cell{}});
}

// "8 of 36 settings: llama-3-8b ...".
std::string losses_text(const std::vector<std::string>& losses, std::int64_t compared) {
  return fmt::format("{} of {} settings{}{}", losses.size(), compared, losses.empty() ? "" : ": ",
                     fmt::join(losses, ", "));
}

Finding most_finding(const Extent& gains, std::string claim, double paper_most) {
  constexpr double kSlack = 0.05;
  return {std::move(claim), range_text(gains.least, gains.most),
          std::abs(gains.most - paper_most) <= kSlack,
          fmt::format("the largest gain is that, give or take {}", kSlack)};
}

// `how`: appended to the claims.
void add_findings(const std::vector<Extent>& gains, std::span<const DistcaClaim> claims,
                  std::string_view how, PaperResult& result) {
  for (std::size_t i = 0; i < claims.size(); ++i) {
    const DistcaClaim& claim = claims[i];
    if (!gains[i].any()) continue;
    const bool is_range = claim.least > 0;
    const std::string text = fmt::format(
        "{}{}: {} over WLB at its best{}",
        claim.model.empty() ? "" : fmt::format("{}, ", claim.model), claim.dataset,
        is_range ? range_text(claim.least, claim.most) : fmt::format("up to {:.2f}x", claim.most),
        how);
    result.findings.push_back(is_range ? gains_finding(gains[i], text, claim.least, claim.most)
                                       : most_finding(gains[i], text, claim.most));
  }
}

}  // namespace

PaperResult distca_whole_steps(const TableOverrides& overrides, std::string_view name,
                               std::span<const DistcaPoint> points,
                               std::span<const std::int32_t> pipelines,
                               std::span<const DistcaClaim> claims, Trends trends) {
  refuse_overrides(overrides, name,
                   {"--dataset", "--batches", "--seed", "--cluster", "--block-size", "--wire"});
  refuse_nodes(overrides, name);
  std::vector<std::string> datasets = {"pretrain", "prolong"};
  if (!overrides.dataset.empty()) datasets = {overrides.dataset};
  const std::int64_t batches = overrides.batches.value_or(30);
  DistcaFigure figure;
  figure.gains.resize(claims.size());
  figure.relays_gains.resize(claims.size());
  Progress progress(overrides, static_cast<std::int64_t>(points.size() * datasets.size()));
  for (const DistcaPoint& point : points) {
    TrainingJob job = distca_job(point, overrides);
    for (const std::string& dataset : datasets) {
      progress.step(fmt::format("{}, {} devices, {}, {}", point.model, point.devices,
                                point.max_length, dataset));
      const std::vector<BatchLengths> documents = stretched_documents(
          dataset, point.batch * point.max_length, point.max_length, job.plan.seed, batches);
      add_comparison(dataset, point,
                     {best_wlb(job, point, documents, pipelines),
                      best_distca(job, point, documents, pipelines, "off"),
                      best_distca(job, point, documents, pipelines, "on")},
                     claims, figure);
    }
  }
  PaperResult result{
      .setting = {{"models",
                   "llama-3-8b, llama-34b, TP 8, ZeRO-1, as little recomputation as fits"},
                  {"lengths", fmt::format("{}, stretched to the longest document; means of {}",
                                          fmt::join(datasets, ", "), count(batches, "batch"))}},
      .table = std::move(figure.table),
      .differences = {kStepsAreModelled, kLengthsAreSampled}};
  result.plots = {
      {.x = "devices", .y = {"gain"}, .series = {"max_length"}, .panels = {"model", "dataset"}}};
  add_findings(figure.gains, claims, "", result);
  if (!figure.outcomes.empty()) {
    for (Finding& finding : trends(figure.outcomes)) result.findings.push_back(std::move(finding));
  }
  add_findings(figure.relays_gains, claims, "; here with relays=on", result);
  result.differences.push_back(
      "How lengths reach 256K, 384K and 512K is not in the paper's text: here all are multiplied "
      "by longest / 128K and cut there.");
  result.differences.push_back(
      "Gains are of means over batches, ± two standard errors; of every method the setting that is "
      "fastest on average. One that takes 1.25 times as long as another on the first five batches "
      "is "
      "given up.");
  result.differences.push_back(
      fmt::format("DistCA is slower than WLB in {}.", losses_text(figure.losses, figure.compared)));
  result.differences.push_back(
      fmt::format("With relays=on, which the paper does not have, servers pass keys on to each "
                  "other. DistCA is "
                  "then slower than WLB in {}.",
                  losses_text(figure.relays_losses, figure.compared)));
  return result;
}

}  // namespace contextile
