#include "report/step_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

#include "base/quote.h"
#include "contextile/plan.h"
#include "contextile/planner.h"
#include "report/json.h"
#include "report/plan_tables.h"

namespace contextile {
namespace {

constexpr std::size_t kWidestLabel = 16;  // leaves room for long steps and sizes

std::int64_t tokens_of(const TrainingJob& job) {
  std::int64_t tokens = 0;
  for (const BatchLengths& lengths : job.micro_batches) {
    tokens = std::accumulate(lengths.begin(), lengths.end(), tokens);
  }
  return tokens;
}

std::int64_t longest_of(const TrainingJob& job) {
  std::int64_t longest = 0;
  for (const BatchLengths& lengths : job.micro_batches) {
    longest = std::max(longest, *std::max_element(lengths.begin(), lengths.end()));
  }
  return longest;
}

// The header of sizes. EP is shown for models with experts only.
std::string sizes_header(const ModelSpec& model) {
  return model.has_experts() ? "TPxCPxDPxPP/EP" : "TPxCPxDPxPP";
}

// "8x4x2x1" or "8x4x2x1/8", in the order of the header.
std::string sizes_text(const ModelSpec& model, const StepSetting& setting) {
  const ParallelSizes& sizes = setting.sizes;
  return fmt::format("{}x{}x{}x{}{}", sizes.tp, sizes.cp, sizes.dp, sizes.pp,
                     model.has_experts() ? fmt::format("/{}", sizes.ep) : "");
}

Cell seconds(double us) { return 1e-6 * us; }

Table stage_time_table(const ModelSpec& model, const StepPrediction& prediction) {
  // Without experts their column is in JSON only. With it the others are narrower: 80 columns.
  const bool experts = model.has_experts();
  Table table(
      {{"stage", "stage"},
       {"linear_s", "linear\nms", Format::kMilliseconds},
       {"attention_s", "atten-\ntion", Format::kMilliseconds},
       {"exposed_attention_s", "exposed\nattn.", Format::kMilliseconds},
       {"tensor_parallel_s", experts ? "expo-\nsed TP" : "exposed\nTP", Format::kMilliseconds},
       {"expert_parallel_s", experts ? "expo-\nsed EP" : "", Format::kMilliseconds},
       {"gradients_s", experts ? "exposed\ngrads" : "exposed\ngradients", Format::kMilliseconds},
       {"recompute_s", "re-\ncompute", Format::kMilliseconds},
       {"optimizer_s", "opti-\nmizer", Format::kMilliseconds},
       {"bubble_s", "bubbles", Format::kMilliseconds}});
  for (std::size_t r = 0; r < prediction.stages.size(); ++r) {
    const StageTimes& stage = prediction.stages[r];
    table.add_row({static_cast<std::int64_t>(r), seconds(stage.linear_us),
                   seconds(stage.attention_us), seconds(stage.exposed_attention_us),
                   seconds(stage.tensor_parallel_us), seconds(stage.expert_parallel_us),
                   seconds(stage.gradients_us), seconds(stage.recompute_us),
                   seconds(stage.optimizer_us), seconds(stage.bubble_us)});
  }
  return table;
}

Table stage_memory_table(const std::vector<StageMemory>& memory) {
  Table table({{"stage", "stage"},
               {"in_flight", "in\nflight"},
               {"weights_bytes", "weights\nGB", Format::kGigabytes},
               {"gradients_bytes", "gradi-\nents", Format::kGigabytes},
               {"optimizer_bytes", "opti-\nmizer", Format::kGigabytes},
               {"activations_bytes", "activ-\nations", Format::kGigabytes},
               {"working_bytes", "work-\ning", Format::kGigabytes},
               {"attention_bytes", "atten-\ntion", Format::kGigabytes},
               {"reserve_bytes", "", Format::kGigabytes},
               {"total_bytes", "all", Format::kGigabytes}});
  for (std::size_t r = 0; r < memory.size(); ++r) {
    const StageMemory& stage = memory[r];
    table.add_row({static_cast<std::int64_t>(r), std::int64_t{stage.in_flight}, stage.weights_bytes,
                   stage.gradients_bytes, stage.optimizer_bytes, stage.activations_bytes,
                   stage.working_bytes, stage.attention_bytes, stage.reserve_bytes,
                   stage.total_bytes()});
  }
  return table;
}

std::size_t count_of(std::span<const StepOutcome> outcomes, Verdict verdict) {
  return static_cast<std::size_t>(
      std::count_if(outcomes.begin(), outcomes.end(),
                    [&](const StepOutcome& outcome) { return outcome.verdict == verdict; }));
}

// True if the verdict is about the sizes, whatever the strategy, and the verdict before is the
// same.
bool repeats(const StepOutcome& outcome, const StepOutcome& before) {
  return !outcome.planned && !before.planned && outcome.verdict == before.verdict &&
         outcome.setting.sizes == before.setting.sizes && outcome.reason == before.reason;
}

std::string strategy_text(const StepOutcome& outcome) {
  return outcome.planned ? choice_text(outcome.setting.strategy) : "any";
}

// The outcomes out of memory: by how much, and what fills it.
Table full_table(const ModelSpec& model, std::span<const StepOutcome> outcomes) {
  Table table({{"strategy", "strategy"},
               {"placement", sizes_header(model)},
               {"memory_bytes", "GB", Format::kGigabytes},
               {"stage", "stage"},
               {"mostly", "most of it"},
               {"mostly_bytes", "GB", Format::kGigabytes}},
              kWidestLabel);
  const StepOutcome* before = nullptr;
  for (const StepOutcome& outcome : outcomes) {
    if (outcome.verdict != Verdict::kOutOfMemory) continue;
    if (before == nullptr || !repeats(outcome, *before)) {
      const std::size_t stage = fullest_stage(outcome.memory);
      const LargestPart largest = largest_part(outcome.memory[stage]);
      table.add_row({strategy_text(outcome), sizes_text(model, outcome.setting),
                     outcome.memory[stage].total_bytes(), static_cast<std::int64_t>(stage),
                     std::string(largest.name), largest.bytes});
    }
    before = &outcome;
  }
  return table;
}

// A line for each impossible outcome: strategy, sizes, why.
std::string impossible_text(const ModelSpec& model, std::span<const StepOutcome> outcomes) {
  Table table({{"strategy", "impossible"}, {"reason", sizes_header(model)}}, kWidestLabel);
  const StepOutcome* before = nullptr;
  for (const StepOutcome& outcome : outcomes) {
    if (outcome.verdict != Verdict::kImpossible) continue;
    if (before == nullptr || !repeats(outcome, *before)) {
      table.add_row({strategy_text(outcome)},
                    fmt::format("{}: {}", sizes_text(model, outcome.setting), outcome.reason));
    }
    before = &outcome;
  }
  return before == nullptr ? "" : table.text();
}

// The line of a model with experts; empty for another.
std::string experts_line(const ModelSpec& model) {
  if (!model.has_experts()) return "";
  return fmt::format("experts   {} of {} for a token, {:.2f}e9 weights active\n",
                     model.experts.per_token, model.experts.experts,
                     1e-9 * static_cast<double>(weights_of(model).active(model.layers)));
}

Json masks_json(std::span<const MaskUse> masks) {
  Json uses = Json::array();
  for (const MaskUse& use : masks) {
    uses.push_back({{"mask", to_string(use.spec)}, {"layers", use.layers}});
  }
  return uses;
}

// The line of the masks, each of several with its layers; empty if all layers are causal.
std::string masks_line(std::span<const MaskUse> masks) {
  if (masks.empty()) return "";
  if (masks.size() == 1) return fmt::format("masks     {}\n", to_string(masks.front().spec));
  std::vector<std::string> texts;
  for (const MaskUse& use : masks) {
    texts.push_back(fmt::format("{} ({})", to_string(use.spec), count(use.layers, "layer")));
  }
  return fmt::format("masks     {}\n", fmt::join(texts, ", "));
}

}  // namespace

std::string describe_job(const TrainingJob& job, const std::string& notes) {
  const ModelSpec& model = job.model;
  const IterationOptions& options = job.options;
  const auto weights = static_cast<double>(weights_of(model).total(model.layers));
  std::string memory =
      job.cluster.memory_bytes > 0
          ? fmt::format("{} GB each", static_cast<double>(job.cluster.memory_bytes) * 1e-9)
          : std::string("memory unknown, no verdict");
  return fmt::format("model     {}, {} layers, {:.2f}e9 weights\n", model.name, model.layers,
                     1e-9 * weights) +
         experts_line(model) + masks_line(job.masks) + notes +
         fmt::format("batch     {} tokens in {}, longest document {}\n", tokens_of(job),
                     count(static_cast<std::int64_t>(job.micro_batches.size()), "micro-batch"),
                     longest_of(job)) +
         fmt::format("cluster   {}, {} x {} = {} devices, {}\n", printable(job.cluster.name),
                     job.cluster.nodes, job.cluster.devices_per_node, job.cluster.num_devices(),
                     memory) +
         fmt::format("training  recompute {}, optimizer {}, gradient overlap {}\n",
                     to_string(options.recompute), to_string(options.optimizer),
                     to_string(options.gradient_overlap)) +
         fmt::format("linear    MFU {} of {:.4g} TFLOP/s\n",
                     format_cell(Cell{options.linear_mfu}, Format::kPercent),
                     peak_tflops_of(job.cluster));
}

std::string scheduled_text(std::span<const StepOutcome> outcomes) {
  std::vector<std::string> names;
  for (const StepOutcome& outcome : outcomes) {
    const std::string& name = outcome.setting.strategy.name;
    if (outcome.prediction && is_scheduled(outcome.setting) && !std::ranges::count(names, name)) {
      names.push_back(name);
    }
  }
  if (names.empty()) return "";
  return '\n' +
         wrap(
             fmt::format("{}: sequences of the step scheduled over DP x CP ranks; a rank holds one "
                         "micro-batch at a time (with --one-plan those of all rounds)",
                         fmt::join(names, ", ")),
             kTextColumns) +
         '\n';
}

Json job_json(const TrainingJob& job) {
  const ModelSpec& model = job.model;
  const IterationOptions& options = job.options;
  return {{"model",
           {{"name", model.name},
            {"layers", model.layers},
            {"hidden", model.hidden},
            {"heads", model.q_heads},
            {"kv_heads", model.kv_heads},
            {"head_dim", model.head_dim},
            {"ffn", model.ffn},
            {"vocabulary", model.vocabulary},
            {"value_dim", model.value_elements()},
            {"experts", model.experts.experts},
            {"experts_per_token", model.experts.per_token},
            {"weights", weights_of(model).total(model.layers)},
            {"active_weights", weights_of(model).active(model.layers)}}},
          {"masks", masks_json(job.masks)},
          {"cluster", cluster_json(job.cluster)},
          {"tokens", tokens_of(job)},
          {"micro_batches", job.micro_batches.size()},
          {"device_memory_bytes", job.cluster.memory_bytes},
          {"recompute", to_string(options.recompute)},
          {"optimizer", to_string(options.optimizer)},
          {"gradient_overlap", to_string(options.gradient_overlap)},
          {"linear_mfu", options.linear_mfu},
          {"peak_tflops", peak_tflops_of(job.cluster)}};
}

void sort_outcomes(std::vector<StepOutcome>& outcomes) {
  const auto value = [](const StepOutcome& outcome) {
    if (outcome.verdict == Verdict::kFits) return outcome.prediction->time_us;
    return static_cast<double>(outcome.memory_bytes());
  };
  std::stable_sort(outcomes.begin(), outcomes.end(),
                   [&](const StepOutcome& a, const StepOutcome& b) {
                     if (a.verdict != b.verdict) return a.verdict < b.verdict;
                     return value(a) < value(b);
                   });
}

Table outcome_table(const TrainingJob& job, std::span<const StepOutcome> outcomes) {
  const ModelSpec& model = job.model;
  Table table({{"strategy", "strategy"},
               {"placement", sizes_header(model)},
               {"tp", ""},
               {"cp", ""},
               {"dp", ""},
               {"pp", ""},
               {"ep", ""},
               {"time_s", "step\nms", Format::kMilliseconds},
               {"tokens_per_s", "tokens/s"},
               {"mfu", "MFU", Format::kPercent},
               {"bubble_share", "bubbles", Format::kPercent},
               {"exposed_share", "exposed", Format::kPercent},
               {"memory_bytes", "GB", Format::kGigabytes},
               {"verdict", ""},
               {"reason", ""}},
              kWidestLabel);
  for (const StepOutcome& outcome : outcomes) {
    const ParallelSizes& sizes = outcome.setting.sizes;
    std::vector<Cell> cells = {choice_text(outcome.setting.strategy),
                               sizes_text(model, outcome.setting),
                               std::int64_t{sizes.tp},
                               std::int64_t{sizes.cp},
                               std::int64_t{sizes.dp},
                               std::int64_t{sizes.pp},
                               std::int64_t{sizes.ep}};
    if (outcome.prediction) {
      const StepPrediction& step = *outcome.prediction;
      for (const double value : {1e-6 * step.time_us, step.tokens_per_s(), step.mfu,
                                 step.bubble_share, step.exposed_share}) {
        cells.emplace_back(value);
      }
    } else {
      cells.resize(cells.size() + 5);
    }
    cells.push_back(outcome.memory.empty() ? Cell{} : Cell{outcome.memory_bytes()});
    cells.emplace_back(std::string(to_string(outcome.verdict)));
    cells.push_back(outcome.reason.empty() ? Cell{} : Cell{outcome.reason});
    table.add_row(std::move(cells),
                  outcome.verdict == Verdict::kFits
                      ? ""
                      : fmt::format("{}: {}", sizes_text(model, outcome.setting), outcome.reason));
  }
  return table;
}

std::string outcomes_text(const TrainingJob& job, std::span<const StepOutcome> outcomes,
                          std::size_t top) {
  std::vector<StepOutcome> fitting;
  std::size_t slower = 0;
  for (const StepOutcome& outcome : outcomes) {
    if (outcome.verdict != Verdict::kFits) continue;
    if (fitting.size() < top) {
      fitting.push_back(outcome);
    } else {
      ++slower;
    }
  }
  std::string text;
  if (!fitting.empty()) text += outcome_table(job, fitting).text();
  if (slower > 0) text += fmt::format("{} slower ones that fit are left out (--top)\n", slower);
  const std::string full = full_table(job.model, outcomes).text();
  const std::string impossible = impossible_text(job.model, outcomes);
  if (count_of(outcomes, Verdict::kOutOfMemory) > 0) {
    text += (text.empty() ? "" : "\n") + std::string("out of memory\n\n") + full;
  }
  if (!impossible.empty()) text += (text.empty() ? "" : "\n") + impossible;
  return text;
}

std::string stages_text(const TrainingJob& job, const StepOutcome& outcome) {
  std::string text;
  if (outcome.prediction) {
    text += "time of a device, ms; the parts of a row add up to the step\n\n" +
            stage_time_table(job.model, *outcome.prediction).text() + "\n";
  }
  text += fmt::format("memory of a device, GB; all: with {:.1f} held in reserve\n\n",
                      1e-9 * static_cast<double>(outcome.memory.front().reserve_bytes));
  return text + stage_memory_table(outcome.memory).text();
}

Json outcome_json(const TrainingJob& job, const StepOutcome& outcome) {
  Json document = outcome_table(job, {&outcome, 1}).json().front();
  document["options"] = outcome.setting.strategy.options;
  document["strategy"] = outcome.setting.strategy.name;
  document["schedule"] = to_string(outcome.setting.schedule);
  document["chunks"] = outcome.setting.chunks;
  document["scheduled"] = is_scheduled(outcome.setting);
  document["ping_pong"] = outcome.setting.nano_batches == NanoBatches::kPingPong;
  if (outcome.prediction) {
    document["model_flops"] = outcome.prediction->model_flops;
    document["replica_imbalance"] = outcome.prediction->replica_imbalance;
  }
  if (outcome.memory.empty()) return document;
  document["stages"] = stage_memory_table(outcome.memory).json();
  if (!outcome.prediction) return document;
  const Json times = stage_time_table(job.model, *outcome.prediction).json();
  for (std::size_t r = 0; r < times.size(); ++r) document["stages"][r].update(times[r]);
  return document;
}

}  // namespace contextile
