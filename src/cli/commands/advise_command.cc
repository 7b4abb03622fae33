// contextile advise: the set-ups of a training job that are predicted to be fastest.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/file_bytes.h"
#include "cli/commands/contextile_program.h"
#include "cli/help.h"
#include "cli/options/input.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/advanced/advice_report.h"
#include "contextile/advanced/advise.h"
#include "contextile/advanced/engine_setup.h"
#include "contextile/data.h"

namespace contextile {
namespace {

// Tokens that are drawn of a built-in distribution: enough for every step that is drawn.
constexpr std::int64_t kDatasetTokens = std::int64_t{1} << 26;
constexpr double kUsPerSecond = 1e6;

struct AdviseCommandOptions {
  std::string lengths_path;
  std::string length_field = "length";
  std::string dataset;
  InputOptions input;  // its masks alone
  std::string model = "llama-3-8b";
  std::string gpus = "32xh100";
  std::string now;  // a file, or arguments
  std::optional<TrainingEngine> engine;
  std::optional<double> measured_s;
  std::optional<double> price;
  std::optional<double> seconds;
  AdviseJob job;
  AdviseOptions search;
  bool json = false;
};

std::vector<std::int64_t> load_documents(const AdviseCommandOptions& options) {
  if (options.lengths_path.empty() == options.dataset.empty()) {
    fail_argument("advise: expected either LENGTHS or --dataset NAME, found {}",
                  options.dataset.empty() ? "neither" : "both");
  }
  if (!options.lengths_path.empty()) {
    return read_lengths(options.lengths_path, options.length_field);
  }
  return batches_from_dataset(options.dataset, {.tokens = kDatasetTokens, .seed = options.job.seed})
      .front();
}

std::string read_text_file(const std::string& path) {
  const FileBytes file(path, expect_text("flags of a training job"));
  return std::string(file.text());
}

// The set-up of today: a JSON file of DeepSpeed, a shell script or arguments of Megatron.
ReadSetup read_now(const AdviseCommandOptions& options, std::int32_t devices) {
  const std::string& now = options.now;
  for (const std::string_view end : {".toml", ".yaml", ".yml"}) {
    if (now.ends_with(end)) {
      fail_argument(
          "--now: expected Megatron-LM's arguments, a script that has them, or a .json file of "
          "DeepSpeed, found '{}'",
          now);
    }
  }
  if (now.ends_with(".json")) {
    const auto flat = flatten_json(read_text_file(now));
    return read_engine_setup(TrainingEngine::kDeepspeed, flat, devices);
  }
  std::error_code not_a_path;  // a command may be no path, or too long for one
  const bool is_file = !now.starts_with('-') && std::filesystem::is_regular_file(now, not_a_path);
  return read_megatron_arguments(is_file ? read_text_file(now) : now, devices);
}

void check_numbers(const AdviseCommandOptions& options) {
  if (options.price && !(*options.price >= 0)) {
    fail_argument("--price: expected at least 0, found {}", *options.price);
  }
  if (options.measured_s && !(*options.measured_s > 0)) {
    fail_argument("--measured: expected more than 0 seconds, found {}", *options.measured_s);
  }
}

int run(const AdviseCommandOptions& options) {
  check_numbers(options);
  AdviseJob job = options.job;
  const LoadedModel loaded = load_described_model(options.model);
  job.model = loaded.model;
  job.cluster = load_gpus(options.gpus);
  job.masks = options.input.workload.masks.empty() ? loaded.masks : options.input.workload.masks;
  job.lengths = load_documents(options);
  AdviseOptions search = options.search;
  search.seconds = options.seconds.value_or(search.seconds);
  search.engine = options.engine;
  std::optional<ReadSetup> read;
  std::optional<AdvisedSetup> now;
  if (options.measured_s && options.now.empty()) {
    fail_argument("--measured: expected --now, the set-up that was measured, as well, found none");
  }
  if (!options.now.empty()) {
    read = read_now(options, job.cluster.num_devices());
    const auto measured_us =
        options.measured_s ? std::optional(kUsPerSecond * *options.measured_s) : std::nullopt;
    now = predict_read_setup(job, *read, measured_us);
  }
  ProgressBar progress(1);
  search.progress = [&](const AdviseProgress& at) {
    progress.step(at.predicted, at.predicted + at.left,
                  fmt::format("best {:.0f} tokens/s", at.best_tokens_per_s));
  };
  const Advice advice = advise(job, search);
  const AdviceReport report{job, advice, std::move(now), options.price.value_or(0), loaded.left_out,
                            read};
  if (options.json) {
    print(advice_json_text(report, options.engine));
  } else {
    print(advice_text(report, options.engine));
  }
  return advice.engines.empty() && advice.own.empty() ? kExitCheckFailed : kExitOk;
}

void add_search_options(CLI::App& app, const std::shared_ptr<AdviseCommandOptions>& options) {
  add_size_as<std::int64_t>(app, "--tokens", options->job.tokens, 1,
                            {"N", "tokens of a micro-batch of one replica",
                             "--now's, or what holds the longest document"});
  add_size_as<std::int64_t>(app, "--batch-tokens", options->job.step_tokens, 1,
                            {"N", "tokens of a step, a multiple of --tokens", "--now's, or 4M"});
  add_mask_rule_option(app, options->input);
  add_number(app, "--seconds", options->seconds, {"X", "of search; 0: no limit", "15"});
  add_size<std::int32_t>(app, "--best", options->search.best, 1,
                         {"N", "set-ups of each table", ""});
  add_size<std::uint64_t>(app, "--seed", options->job.seed, 0,
                          {"N", "seed of the order of documents", ""});
  add_value(app, "--plans",
            {"NAME,...", "strategies to search in place of an engine's exchange; auto takes long",
             "magi,distca,fcp"},
            [options](const std::string& text) {
              options->search.strategies.clear();
              for (const StrategyChoice& choice : parse_strategies(text)) {
                if (!choice.options.empty()) {
                  fail_argument("--plans: expected names without options, found '{}'", text);
                }
                options->search.strategies.push_back(choice.name);
              }
            });
}

}  // namespace

Action add_advise_command(CLI::App& app) {
  auto options = std::make_shared<AdviseCommandOptions>();
  add_value(
      app, "LENGTHS",
      {"FILE",
       "sequence lengths in tokens: one per line, a JSON array, JSONL, .npy, or a Megatron-LM "
       ".idx; either this or --dataset",
       ""},
      [options](const std::string& path) { options->lengths_path = path; });
  add_text(app, "--length-field", options->length_field,
           {"KEY", "field of a JSONL line that holds the length", ""});
  add_dataset_option(app, options->dataset, "built-in length distribution to sample");
  std::vector<std::string> models;
  for (const ModelPreset& preset : model_presets()) models.push_back(preset.model.name);
  add_text(app, "--model", options->model,
           {"NAME|FILE", "{}, or a .json file", "", std::move(models)});
  add_text(app, "--gpus", options->gpus,
           {"NxKIND|CLUSTER",
            "64xh100: so many GPUs, of a100, h100, h200, h20, b200, gb200 or gb300; or a cluster "
            "as --cluster of other commands takes it",
            ""});
  add_text(app, "--now", options->now,
           {"FILE|FLAGS",
            "the set-up of today: arguments of Megatron-LM, a script that has them, or a .json "
            "file of DeepSpeed",
            "none"});
  add_value(app, "--engine",
            {"megatron|torchtitan|trl|deepspeed|contextile", "print the flags of the best set-up",
             "none"},
            [options](const std::string& text) { options->engine = parse_training_engine(text); });
  add_number(
      app, "--measured", options->measured_s,
      {"SECONDS",
       "a step of --now as measured: the share of the peak outside attention is fitted to it",
       "not known"});
  add_number(app, "--price", options->price, {"X", "of a device-hour, in any currency", "none"});
  add_search_options(app, options);
  add_json_option(app, options->json);
  add_examples(app, {"contextile advise lengths.txt --gpus 32xh100",
                     "contextile advise --dataset prolong --gpus 64xh200 --model llama-3-8b --now "
                     "\"--tensor-model-parallel-size 4 --context-parallel-size 16 --seq-length "
                     "131072 --global-batch-size 32 --micro-batch-size 1\" --engine megatron"});
  show_first(app, {"LENGTHS", "--dataset", "--model", "--gpus", "--now", "--engine", "--measured",
                   "--price", "--seconds"});
  return [options] { return run(*options); };
}

}  // namespace contextile
