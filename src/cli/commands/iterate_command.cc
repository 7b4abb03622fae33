// contextile iterate: one training step of a model, or which parallel sizes make it fastest.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cli/commands/contextile_program.h"
#include "cli/commands/plan_schedules.h"
#include "cli/help.h"
#include "cli/options/input.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/advanced/advise.h"
#include "contextile/advanced/step_planner.h"
#include "contextile/advanced/training.h"
#include "contextile/extend/strategy.h"
#include "contextile/planner.h"
#include "report/json.h"
#include "report/step_tables.h"
#include "report/table.h"

namespace contextile {
namespace {

struct IterateOptions {
  InputOptions input;  // lengths, masks, cluster, planning; its heads are not used
  std::string model = "llama-3-8b";
  std::optional<std::int32_t> gpus;
  GivenSizes sizes;
  std::optional<std::int32_t> micro_batches;  // of a replica
  std::optional<std::int64_t> batch_tokens;   // of the whole step
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  std::optional<std::int32_t> chunks;
  std::int32_t group = 0;
  bool ping_pong = false;
  bool one_plan = false;
  std::vector<StrategyChoice> group_strategy;  // empty: that of the original
  IterationOptions iteration;
  std::vector<StrategyChoice> strategies;
  bool sweep = false;
  std::int64_t top = 20;
  bool json = false;
  bool csv = false;
};

Cluster load_machine(const IterateOptions& options) {
  Cluster cluster = load_cluster(options.input.cluster);
  return options.gpus ? with_gpus(std::move(cluster), *options.gpus, "--gpus") : cluster;
}

std::int32_t chunks_of(const IterateOptions& options) {
  return options.chunks.value_or(options.schedule == PipelineSchedule::kInterleaved ? 2 : 1);
}

// Micro-batches of all replicas together; `dp` is unset in a sweep.
std::int64_t num_micro_batches(const IterateOptions& options, std::optional<std::int32_t> dp) {
  if (options.micro_batches && options.batch_tokens) {
    fail_argument("expected either --micro-batches or --batch-tokens, found both");
  }
  if (!options.batch_tokens) {
    if (!dp) {
      fail_argument(
          "--sweep: expected --batch-tokens, the tokens of a step whatever its sizes, found "
          "none");
    }
    return std::int64_t{options.micro_batches.value_or(1)} * *dp;
  }
  const std::int64_t tokens = options.input.batch.tokens;
  if (tokens == 0) {
    fail_argument(
        "--batch-tokens: expected --tokens, those of a micro-batch, as well, found "
        "none");
  }
  if (*options.batch_tokens % tokens != 0) {
    fail_argument("--batch-tokens: expected a multiple of {} (--tokens, one micro-batch), found {}",
                  tokens, *options.batch_tokens);
  }
  return *options.batch_tokens / tokens;
}

// Sizes to try, and the micro-batches of a step, all replicas together. Given sizes that are
// impossible are an error; a sweep leaves them out.
std::vector<ParallelSizes> sizes_to_try(const IterateOptions& options, const ModelSpec& model,
                                        const Cluster& cluster, std::int64_t& micro_batches) {
  const std::int32_t chunks = chunks_of(options);
  if (options.sweep) {
    micro_batches = num_micro_batches(options, std::nullopt);
    auto candidates = all_sizes(options.sizes, model, cluster, micro_batches, chunks);
    if (candidates.empty()) {
      fail_argument(
          "--sweep: expected sizes with a product of {} devices that the model allows, found none",
          cluster.num_devices());
    }
    return candidates;
  }
  const ParallelSizes sizes = complete_sizes(options.sizes, cluster.num_devices());
  micro_batches = num_micro_batches(options, sizes.dp);
  if (const auto problem = parallel_sizes_problem(model, cluster, sizes, chunks)) {
    fail_argument("iterate: {}", *problem);
  }
  if (micro_batches % sizes.dp != 0) {
    fail_argument(
        "--batch-tokens: expected as many micro-batches for each of {} replicas, found "
        "{} in all",
        sizes.dp, micro_batches);
  }
  check_pipeline(
      {.schedule = options.schedule,
       .stages = sizes.pp,
       .micro_batches = checked_cast<std::int32_t>(micro_batches / sizes.dp, "--micro-batches"),
       .chunks = chunks,
       .group = options.group});
  return {sizes};
}

std::vector<StepSetting> settings_of(const IterateOptions& options,
                                     const std::vector<ParallelSizes>& candidates) {
  std::vector<StepSetting> settings;
  for (const ParallelSizes& sizes : candidates) {
    for (const StrategyChoice& choice : options.strategies) {
      StepSetting& setting = settings.emplace_back();
      setting.sizes = sizes;
      setting.strategy = choice;
      setting.one_plan = options.one_plan;
      if (!options.group_strategy.empty()) setting.group_strategy = options.group_strategy.front();
      setting.nano_batches = options.ping_pong ? NanoBatches::kPingPong : NanoBatches::kOne;
      // A pipeline of one stage has nothing to schedule; a sweep meets such pipelines.
      if (options.sweep && sizes.pp == 1) continue;
      setting.schedule = options.schedule;
      setting.chunks = chunks_of(options);
      setting.group = options.group;
    }
  }
  return settings;
}

// Refuses --one-plan and --group-strategy where no strategy schedules micro-batches.
void check_schedule_options(const IterateOptions& options) {
  const bool has_groups = !options.group_strategy.empty();
  if (!options.one_plan && !has_groups) return;
  const std::string_view option = options.one_plan ? "--one-plan" : "--group-strategy";
  if (options.one_plan && has_groups) {
    fail_argument("--group-strategy: expected groups of ranks, found --one-plan");
  }
  if (has_groups) {
    static_cast<void>(
        find_strategy(single_choice("--group-strategy", options.group_strategy).name));
  }
  check_any_schedules(option, options.strategies);
  // Pools and ping-pong have one plan in any case.
  if (options.ping_pong) {
    fail_argument("{}: expected micro-batches that are scheduled, found --ping-pong", option);
  }
  if (options.schedule == PipelineSchedule::kSamePhase) {
    fail_argument("{}: expected micro-batches that are scheduled, found --schedule same_phase",
                  option);
  }
}

// The largest number of plans of one placement and strategy.
std::size_t num_plans(const StepSetting& setting, const TrainingJob& job) {
  std::size_t plans = job.micro_batches.size();
  if (setting.schedule == PipelineSchedule::kSamePhase) {
    plans *= static_cast<std::size_t>(setting.chunks);
    plans += static_cast<std::size_t>(setting.sizes.dp * (setting.sizes.pp - 1));
  }
  return setting.nano_batches == NanoBatches::kPingPong ? 2 * plans : plans;
}

// Lines about the model's file: where the masks are from, and what is left out. Every line ends
// with a line feed.
std::string model_notes(const IterateOptions& options, const LoadedModel& model) {
  std::string text;
  if (!model.masks.empty()) {
    text += fmt::format("          masks of {}\n", options.input.workload.masks.empty()
                                                       ? "the model's file (--mask gives others)"
                                                       : "--mask, not those of the model's file");
  }
  for (const std::string& part : model.left_out)
    text += fmt::format("          left out: {}\n", part);
  return text;
}

void print_outcomes(const IterateOptions& options, const LoadedModel& model, const TrainingJob& job,
                    const std::vector<StepOutcome>& outcomes) {
  if (options.json) {
    Json document = {{"command", "iterate"}, {"seed", options.input.plan.seed}};
    document.update(job_json(job));
    document["masks_of_model"] = !model.masks.empty() && options.input.workload.masks.empty();
    document["left_out"] = model.left_out;
    document["steps"] = Json::array();
    for (const StepOutcome& outcome : outcomes)
      document["steps"].push_back(outcome_json(job, outcome));
    print_json(document);
    return;
  }
  if (options.csv) {
    print(outcome_table(job, outcomes).csv());
    return;
  }
  std::string text = describe_job(job, model_notes(options, model));
  text += fmt::format(
      "pipeline  {}{}{}\n", to_string(options.schedule),
      chunks_of(options) > 1 ? fmt::format(", {} chunks a stage", chunks_of(options)) : "",
      options.ping_pong ? "; two nano-batches in ping-pong" : "");
  text += "\nexposed: communication that nothing hides; GB: of the fullest device\n\n" +
          outcomes_text(job, outcomes, static_cast<std::size_t>(options.top));
  text += scheduled_text(outcomes);
  const StepOutcome& best = outcomes.front();
  if (!best.memory.empty()) {
    text += fmt::format("\n{}: {}\n", best.setting.strategy.name, sizes_text(best.setting.sizes)) +
            stages_text(job, best);
  }
  print(text);
}

int run(const IterateOptions& options) {
  check_formats(options.json, options.csv);
  check_schedule_options(options);
  const LoadedModel model = load_described_model(options.model);
  const std::vector<MaskUse>& masks = options.input.workload.masks;
  TrainingJob job{.model = model.model,
                  .cluster = load_machine(options),
                  .masks = masks.empty() ? model.masks : masks,
                  .plan = options.input.plan,
                  .options = options.iteration,
                  .micro_batches = {}};
  InputOptions input = options.input;
  const std::vector<ParallelSizes> candidates =
      sizes_to_try(options, job.model, job.cluster, input.batch.batches);
  job.micro_batches = load_lengths(input);
  const std::vector<StepSetting> settings = settings_of(options, candidates);
  std::vector<StepOutcome> outcomes;
  try {
    // A sweep counts sizes, one step its plans.
    const std::size_t plans_of_one = options.sweep ? 1 : num_plans(settings.front(), job);
    ProgressBar progress(static_cast<std::int64_t>(settings.size() * plans_of_one));
    StepPlanner planner(job, [&](const std::string& what) {
      if (!options.sweep) progress.step(what);
    });
    for (const StepSetting& setting : settings) {
      if (options.sweep) {
        progress.step(fmt::format("{}, {}", sizes_text(setting.sizes), setting.strategy.name));
      }
      outcomes.push_back(planner.predict(setting));
    }
  } catch (const CheckFailed& failure) {
    print_check_failed(failure.what());
    return kExitCheckFailed;
  }
  sort_outcomes(outcomes);
  print_outcomes(options, model, job, outcomes);
  return outcomes.front().verdict == Verdict::kFits ? kExitOk : kExitCheckFailed;
}

void add_parallel_options(CLI::App& app, IterateOptions& options) {
  add_cluster_option(app, options.input.cluster, "the whole machine");
  add_size_as<std::int32_t>(
      app, "--gpus", options.gpus, 1,
      {"N", "that many devices of --cluster's kind, in whole nodes", "as --cluster says"});
  add_size_as<std::int32_t>(app, "--tp", options.sizes.tp, 1,
                            {"N", "tensor parallelism, inside a node", "1"});
  add_size_as<std::int32_t>(app, "--cp", options.sizes.cp, 1,
                            {"N", "context-parallel ranks", "what is left"});
  add_size_as<std::int32_t>(app, "--dp", options.sizes.dp, 1,
                            {"N", "data-parallel replicas", "1, or what --cp leaves"});
  add_size_as<std::int32_t>(app, "--pp", options.sizes.pp, 1, {"N", "pipeline stages", "1"});
  add_size_as<std::int32_t>(
      app, "--ep", options.sizes.ep, 1,
      {"N", "experts are spread over N devices of a stage, each of them whole on one", "1"});
  add_switch(app, "--sweep", options.sweep,
             "all sizes TP x CP x DP x PP, and EP of models with experts, instead of one; those "
             "that are given stay");
  add_size<std::int64_t>(app, "--top", options.top, 1,
                         {"N", "how many that fit the table of a sweep shows", ""});
}

void add_pipeline_options(CLI::App& app, IterateOptions& options) {
  add_size_as<std::int32_t>(app, "--micro-batches", options.micro_batches, 1,
                            {"N", "micro-batches (of --tokens) of every replica", "1"});
  add_size_as<std::int64_t>(app, "--batch-tokens", options.batch_tokens, 1,
                            {"N", "tokens of the whole step instead of --micro-batches", ""});
  add_value(
      app, "--schedule",
      {"1f1b|interleaved|same_phase",
       "of the pipeline; same_phase: all stages forward or all backward, the attention of a tick "
       "balanced over all of them",
       "1f1b"},
      [&options](const std::string& text) { options.schedule = parse_pipeline_schedule(text); });
  add_size_as<std::int32_t>(
      app, "--chunks", options.chunks, 1,
      {"N", "interleaved, same_phase: model chunks of a stage", "interleaved 2, same_phase 1"});
  add_size<std::int32_t>(
      app, "--group", options.group, 0,
      {"N", "with chunks: micro-batches a chunk runs in a row; 0: the stages", ""});
  add_switch(
      app, "--one-plan", options.one_plan,
      "count bytescale, megatron_dynamic and megatron_packed as one plan for each micro-batch, "
      "instead of scheduling the step's sequences over DP x CP ranks");
  add_group_strategy_option(app, options.group_strategy,
                            "the strategy inside the groups of bytescale, megatron_dynamic and "
                            "megatron_packed");
  add_switch(app, "--ping-pong", options.ping_pong,
             "every micro-batch in two halves that run in turns, the transfers of one under the "
             "compute of the other");
}

void add_training_options(CLI::App& app, IterationOptions& options) {
  add_value(app, "--recompute",
            {"none|selective|full", "activations computed again in backward", "none"},
            [&options](const std::string& text) { options.recompute = parse_recompute(text); });
  add_value(
      app, "--optimizer",
      {"zero1|replicated|fsdp",
       "what DP x CP ranks share: optimizer state, nothing, or gradients and weights, too",
       "zero1"},
      [&options](const std::string& text) { options.optimizer = parse_optimizer_shards(text); });
  add_value(app, "--gradient-overlap",
            {"on|off", "gradient and weight collectives during the layers", "on"},
            [&options](const std::string& text) {
              options.gradient_overlap = parse_gradient_overlap(text);
            });
  add_value(app, "--linear-mfu",
            {"X", "share of the peak that everything outside attention reaches", "0.5"},
            [&options](const std::string& text) {
              options.linear_mfu = parse_number("--linear-mfu", text);
              check_iteration_options(options);
            });
  add_value(app, "--tp-overlap",
            {"X", "share of TP's collectives hidden under matrix products", "0"},
            [&options](const std::string& text) {
              options.tensor_parallel_overlap = parse_number("--tp-overlap", text);
              check_iteration_options(options);
            });
  add_size<std::int64_t>(app, "--reserve", options.reserve_bytes, 0,
                         {"BYTES", "memory of a device that the model does not account for", ""});
}

}  // namespace

Action add_iterate_command(CLI::App& app) {
  auto options = std::make_shared<IterateOptions>();
  options->input.cluster = "dgx-h200:4x8";
  std::vector<std::string> models;
  for (const ModelPreset& preset : model_presets()) models.push_back(preset.model.name);
  add_text(app, "--model", options->model,
           {"NAME|FILE", "{}, a .json file or its folder", "", std::move(models)});
  add_strategy_option(app, options->strategies, "auto", "which ones, comma-separated");
  add_parallel_options(app, *options);
  add_pipeline_options(app, *options);
  add_batch_options(app, options->input);
  add_mask_rule_option(app, options->input);
  add_training_options(app, options->iteration);
  add_blocking_options(app, options->input);
  add_json_option(app, options->json);
  add_csv_option(app, options->csv, "the table");
  add_examples(app, {"contextile iterate --dataset prolong --tokens 32K --gpus 16 --tp 2 "
                     "--strategy zigzag,hybrid",
                     "contextile iterate --sweep --dataset prolong --tokens 32K --batch-tokens "
                     "128K --gpus 8 --strategy hybrid"});
  show_first(app, {"--model", "--strategy", "--cluster", "--gpus", "--tp", "--cp", "--dp", "--pp",
                   "--sweep", "--dataset", "--tokens", "--batch-tokens"});
  return [options] { return run(*options); };
}

}  // namespace contextile
