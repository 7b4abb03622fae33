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
#include "cli/options/machine.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "contextile/advanced/advise.h"
#include "contextile/advanced/engine_setup.h"
#include "contextile/data.h"
#include "report/advice_tables.h"
#include "report/json.h"
#include "report/table.h"

namespace contextile {
namespace {

// Tokens that are drawn of a built-in distribution: enough for every step that is drawn.
constexpr std::int64_t kDatasetTokens = std::int64_t{1} << 26;
constexpr double kMostPadding = 1.05;  // of a vocabulary

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
  const bool is_file = !now.starts_with('-') && std::filesystem::is_regular_file(now);
  return read_megatron_arguments(is_file ? read_text_file(now) : now, devices);
}

std::string settings_text(const std::vector<SetupSetting>& settings) {
  std::string text;
  for (const SetupSetting& setting : settings) {
    text += fmt::format("{}{}{}{}{}", text.empty() ? "" : ", ", setting.key,
                        setting.value.empty() ? "" : " ", setting.value,
                        setting.note.empty() ? "" : " (" + setting.note + ")");
  }
  return text;
}

// Throws InvalidArgument where flags describe another model than --model. Vocabularies differ by
// their padding.
void check_model_of(const ReadSetup& read, const ModelSpec& model) {
  const std::pair<std::string_view, std::int64_t> sizes[] = {
      {"layers", model.layers},
      {"hidden", model.hidden},
      {"q_heads", model.q_heads},
      {"kv_heads", model.kv_heads},
      {"head_dim", model.head_dim},
      {"ffn", model.ffn},
      {"gated_ffn", model.gated_ffn ? 1 : 0},
      {"experts", model.experts.experts},
      {"active_experts", model.experts.per_token},
      {"expert_ffn", model.experts.ffn},
      {"shared_expert_ffn", model.experts.shared_ffn},
      {"untied", model.tied_embeddings ? 0 : 1},
      {"expert_tp", 1}};  // as expert parallelism is predicted
  for (const auto& [name, size] : sizes) {
    const auto given = read.model.find(std::string(name));
    if (given == read.model.end() || given->second == size) continue;
    fail_argument("--now: expected {} {}, as predicted for the model {}, found {}", name, size,
                  model.name, given->second);
  }
  const auto vocabulary = read.model.find("vocabulary");
  if (vocabulary == read.model.end()) return;
  const double ratio = static_cast<double>(vocabulary->second) / model.vocabulary;
  if (ratio < 1 / kMostPadding || ratio > kMostPadding) {
    fail_argument("--now: expected a vocabulary of about {}, that of the model {}, found {}",
                  model.vocabulary, model.name, vocabulary->second);
  }
}

std::string flags_text(const Advice& advice, TrainingEngine engine) {
  const std::vector<AdvisedSetup>& list =
      engine == TrainingEngine::kContextile ? advice.own : advice.engines;
  for (const AdvisedSetup& one : list) {
    if (engine_problem(one.setup, engine)) continue;
    const EngineFlags flags = engine_flags(one.setup, engine);
    std::string text =
        fmt::format("\nfor {}: {}\n\n{}", to_string(engine), setup_text(one.setup), flags.flags);
    if (const auto note = engine_note(one.setup, engine)) text += fmt::format("\n{}\n", *note);
    if (!flags.script.empty()) text += fmt::format("\nelsewhere:\n\n{}", flags.script);
    return text;
  }
  if (list.empty()) return "";
  return fmt::format("\nfor {}: none of these set-ups runs there: {}\n", to_string(engine),
                     *engine_problem(list.front().setup, engine));
}

std::string now_text(const ReadSetup& read, const AdvisedSetup& now, const Cluster& cluster) {
  std::string text = fmt::format(
      "\nnow: {}\n{:.4g} s a step, {:.0f} tokens/s, {:.1f} GB, predicted\n", setup_text(now.setup),
      1e-6 * now.step_us, now.tokens_per_s, 1e-9 * static_cast<double>(now.memory_bytes));
  text += wait_sentence(now) + "\n";
  if (cluster.memory_bytes > 0 && now.memory_bytes > cluster.memory_bytes) {
    text += fmt::format(
        "predicted not to fit the {:.1f} GB of a device; if it runs, memory is "
        "predicted too high for the set-ups below, too\n",
        1e-9 * static_cast<double>(cluster.memory_bytes));
  }
  if (!read.approximated.empty()) {
    text += fmt::format("predicted otherwise: {}\n", settings_text(read.approximated));
  }
  if (!read.without_effect.empty()) {
    text +=
        fmt::format("without effect on time and memory: {}\n", settings_text(read.without_effect));
  }
  return text;
}

void print_answer(const AdviseCommandOptions& options, const AdviceReport& report,
                  const std::optional<ReadSetup>& read) {
  const Advice& advice = report.advice;
  std::string text = job_lines(report);
  if (read) text += now_text(*read, *report.now, report.job.cluster);
  text += fmt::format("\n{}\n", verdict_sentence(report));
  if (!advice.engines.empty()) {
    text += "\nset-ups that the engines have; all times predicted\n\n" +
            setup_table(report, advice.engines).text();
  }
  if (!advice.own.empty()) {
    text += "\nthe same with contextile's plans\n\n" + setup_table(report, advice.own).text();
  }
  if (options.engine) text += flags_text(advice, *options.engine);
  text += "\n" + search_lines(report) +
          "trust      medians of published steps were predicted within a factor of 1.1\n"
          "           (docs/results/measured.md)\n";
  print(text);
}

int run(const AdviseCommandOptions& options) {
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
    check_model_of(*read, job.model);
    // Set-ups are compared on the same micro-batches and steps.
    if (job.tokens == 0 && read->has("tokens")) job.tokens = read->setup.tokens;
    if (job.step_tokens == 0 && read->has("step_tokens")) job.step_tokens = read->setup.step_tokens;
    read->setup.tokens = read->setup.step_tokens = 0;
    if (read->gradient_overlap) job.options.gradient_overlap = *read->gradient_overlap;
    now = options.measured_s ? fit_setup(job, read->setup, 1e6 * *options.measured_s)
                             : predict_setup(job, read->setup);
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
    print_json(advice_json(report));
  } else {
    print_answer(options, report, read);
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
