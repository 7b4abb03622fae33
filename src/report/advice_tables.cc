#include "report/advice_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "report/json.h"

namespace contextile {
namespace {

constexpr std::size_t kWidestSetup = 44;
constexpr double kSecondsPerUs = 1e-6;
constexpr double kLeastShare = 0.005;

double gain_over(const AdvisedSetup& setup, const AdvisedSetup& now) {
  return setup.tokens_per_s / now.tokens_per_s;
}

// The fastest set-up of all lists; there is one.
const AdvisedSetup* best_of(const Advice& advice) {
  const AdvisedSetup* best = advice.engines.empty() ? nullptr : &advice.engines.front();
  if (!advice.own.empty() &&
      (best == nullptr || advice.own.front().tokens_per_s > best->tokens_per_s)) {
    best = &advice.own.front();
  }
  return best;
}

Json setup_json(const AdviceReport& report, const AdvisedSetup& one) {
  const TrainingSetup& setup = one.setup;
  Json json = {
      {"text", setup_text(setup)},
      {"tp", setup.sizes.tp},
      {"cp", setup.sizes.cp},
      {"dp", setup.sizes.dp},
      {"pp", setup.sizes.pp},
      {"ep", setup.sizes.ep},
      {"exchange", to_string(setup.exchange)},
      {"a2a_ranks", setup.a2a_ranks},
      {"packing", to_string(setup.packing)},
      {"strategy", setup.strategy},
      {"recompute", to_string(setup.recompute)},
      {"optimizer", to_string(setup.optimizer)},
      {"schedule", to_string(setup.schedule)},
      {"chunks", setup.chunks},
      {"step_s", one.step_us * kSecondsPerUs},
      {"bound_s", one.bound_us * kSecondsPerUs},
      {"tokens_per_s", one.tokens_per_s},
      {"memory_bytes", one.memory_bytes},
      {"device_hours_per_billion_tokens", one.device_hours_per_billion(report.job.cluster)}};
  if (report.price > 0) {
    json["price_per_billion_tokens"] =
        report.price * one.device_hours_per_billion(report.job.cluster);
  }
  if (report.now) json["gain"] = gain_over(one, *report.now);
  json["waits"] = Json::array();
  for (const WaitShare& wait : wait_shares(one)) {
    json["waits"].push_back({{"cause", wait.cause}, {"share", wait.share}});
  }
  return json;
}

Json settings_json(std::span<const SetupSetting> settings) {
  Json json = Json::array();
  for (const SetupSetting& setting : settings) {
    json.push_back({{"key", setting.key}, {"value", setting.value}});
    if (!setting.note.empty()) json.back()["note"] = setting.note;
  }
  return json;
}

Json setups_json(const AdviceReport& report, std::span<const AdvisedSetup> setups) {
  Json json = Json::array();
  for (const AdvisedSetup& setup : setups) json.push_back(setup_json(report, setup));
  return json;
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

// The fastest set-up that the engine can run, or nothing.
const AdvisedSetup* best_in(const AdviceReport& report, TrainingEngine engine) {
  if (engine == TrainingEngine::kContextile) return best_of(report.advice);
  for (const AdvisedSetup& one : report.advice.engines) {
    if (!job_problem(one.setup, report.job.model, engine)) return &one;
  }
  return nullptr;
}

PredictedWith predicted_with(const AdviseJob& job) {
  return {.experts = job.model.has_experts(), .gradient_overlap = job.options.gradient_overlap};
}

std::string flags_text(const AdviceReport& report, TrainingEngine engine) {
  const AdvisedSetup* one = best_in(report, engine);
  if (one == nullptr) {
    const std::vector<AdvisedSetup>& list = report.advice.engines;
    if (list.empty()) return "";
    return fmt::format("\nfor {}: none of these set-ups runs there: {}\n", to_string(engine),
                       *job_problem(list.front().setup, report.job.model, engine));
  }
  const EngineFlags flags = engine_flags(one->setup, engine, predicted_with(report.job));
  std::string text =
      fmt::format("\nfor {}: {}\n\n{}", to_string(engine), setup_text(one->setup), flags.flags);
  if (const auto note = engine_note(one->setup, engine)) text += fmt::format("\n{}\n", *note);
  if (!flags.script.empty()) text += fmt::format("\nelsewhere:\n\n{}", flags.script);
  return text;
}

// Null if none of the set-ups runs in the engine.
Json flags_json(const AdviceReport& report, TrainingEngine engine) {
  const AdvisedSetup* one = best_in(report, engine);
  if (one == nullptr) return nullptr;
  const EngineFlags flags = engine_flags(one->setup, engine, predicted_with(report.job));
  return {{"engine", to_string(engine)},
          {"setup", setup_text(one->setup)},
          {"text", flags.flags},
          {"script", flags.script},
          {"note", engine_note(one->setup, engine).value_or("")}};
}

std::string table_title(std::optional<TrainingEngine> engine) {
  if (!engine) return "set-ups that the engines have";
  if (*engine == TrainingEngine::kContextile) return "set-ups with the engines' exchanges";
  return fmt::format("set-ups that {} has", to_string(*engine));
}

std::string now_text(const AdviceReport& report) {
  const AdvisedSetup& now = *report.now;
  const Cluster& cluster = report.job.cluster;
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
  if (!report.read) return text;
  const ReadSetup& read = *report.read;
  if (!read.has("tokens")) {
    text += fmt::format("predicted with {} tokens per micro-batch, which the flags do not say\n",
                        now.setup.tokens);
  }
  if (!read.has("step_tokens")) {
    text += fmt::format("predicted with {} tokens per step, which the flags do not say\n",
                        now.setup.step_tokens);
  }
  if (!read.assumed.empty()) text += fmt::format("assumed: {}\n", fmt::join(read.assumed, "; "));
  if (!read.approximated.empty()) {
    text += fmt::format("predicted otherwise: {}\n", settings_text(read.approximated));
  }
  if (!read.without_effect.empty()) {
    text +=
        fmt::format("without effect on time and memory: {}\n", settings_text(read.without_effect));
  }
  return text;
}

}  // namespace

std::vector<WaitShare> wait_shares(const AdvisedSetup& setup) {
  const StepPrediction& prediction = setup.prediction;
  StageTimes sum;
  double all = 0;
  for (const StageTimes& stage : prediction.stages) {
    sum.exposed_attention_us += stage.exposed_attention_us;
    sum.tensor_parallel_us += stage.tensor_parallel_us;
    sum.recompute_us += stage.recompute_us;
    sum.gradients_us += stage.gradients_us;
    sum.bubble_us += stage.bubble_us;
    all += stage.total_us();
  }
  if (all <= 0) return {};
  std::vector<WaitShare> shares = {
      {"transfers and imbalance of attention", sum.exposed_attention_us / all},
      {"collectives of tensor parallelism", sum.tensor_parallel_us / all},
      {"collectives of gradients and weights", sum.gradients_us / all},
      {"other stages and replicas", sum.bubble_us / all},
      {"recompute", sum.recompute_us / all}};
  // Rounds of dynamic groups are predicted as a whole, without the causes inside.
  if (setup.setup.packing == DocumentPacking::kDynamic) {
    shares.push_back(
        {"transfers and waiting of dynamic groups", 1 - setup.bound_us / setup.step_us});
  }
  std::erase_if(shares, [](const WaitShare& wait) { return wait.share < kLeastShare; });
  std::ranges::stable_sort(shares, std::greater<>(), &WaitShare::share);
  return shares;
}

std::string wait_sentence(const AdvisedSetup& setup) {
  const std::vector<WaitShare> shares = wait_shares(setup);
  if (shares.empty()) return "nearly all of it is work";
  double all = 0;
  std::string causes;
  for (const WaitShare& wait : shares) {
    all += wait.share;
    causes += fmt::format("{}{:.0f}% {}", causes.empty() ? "" : ", ", 100 * wait.share, wait.cause);
  }
  return fmt::format("{:.0f}% of it is lost: {}", 100 * all, causes);
}

std::string job_lines(const AdviceReport& report) {
  const AdviseJob& job = report.job;
  const Advice& advice = report.advice;
  const std::int64_t tokens =
      std::accumulate(job.lengths.begin(), job.lengths.end(), std::int64_t{0});
  std::string text = fmt::format("model      {}\ncluster    {}, {} x {} devices\n", job.model.name,
                                 job.cluster.name, job.cluster.nodes, job.cluster.devices_per_node);
  for (const std::string& part : report.left_out) {
    text += fmt::format("           without {}\n", part);
  }
  text +=
      fmt::format("documents  {}, {:.0f} tokens on average, {} the longest\n", job.lengths.size(),
                  static_cast<double>(tokens) / static_cast<double>(job.lengths.size()),
                  std::ranges::max(job.lengths));
  text += fmt::format("steps      {} tokens in micro-batches of {}; {} drawn at random{}\n",
                      advice.step_tokens, advice.tokens, advice.steps,
                      advice.repeats ? ", with some documents twice" : "");
  if (advice.cut > 0) {
    text +=
        fmt::format("           {} of their documents are cut, and go on in the next micro-batch\n",
                    advice.cut);
  }
  return text;
}

std::string verdict_sentence(const AdviceReport& report) {
  const AdvisedSetup* best = best_of(report.advice);
  if (best == nullptr) return "No set-up fits the memory of these devices, by this prediction.";
  if (!report.now) {
    return fmt::format("Predicted best: {}, {:.0f} tokens/s.", setup_text(best->setup),
                       best->tokens_per_s);
  }
  const double gain = gain_over(*best, *report.now);
  if (best->setup == report.now->setup) {
    return "Keep the set-up of today: no other one is predicted faster.";
  }
  const std::int64_t memory_bytes = report.job.cluster.memory_bytes;
  if (memory_bytes > 0 && report.now->memory_bytes > memory_bytes) {
    return fmt::format(
        "Predicted {:.2f} times as fast as today, which is predicted not to fit the memory: {}.",
        gain, setup_text(best->setup));
  }
  if (gain < 1 + kLeastGain) {
    return fmt::format(
        "Keep the set-up of today: the best other one is predicted {:.2f} times as fast, which "
        "predictions cannot tell apart.",
        gain);
  }
  return fmt::format("Predicted {:.2f} times as fast as today: {}.", gain, setup_text(best->setup));
}

Table setup_table(const AdviceReport& report, std::span<const AdvisedSetup> setups) {
  std::vector<Column> columns = {{"setup", "set-up"},
                                 {"step_s", "step\ns"},
                                 {"tokens_per_s", "tokens/s"},
                                 {"gain", report.now ? "x of\nnow" : ""},
                                 {"memory_bytes", "GB", Format::kGigabytes},
                                 {"device_hours", "device-h\nper 1e9"},
                                 {"price", report.price > 0 ? "price\nper 1e9" : ""}};
  Table table(std::move(columns), kWidestSetup);
  for (const AdvisedSetup& one : setups) {
    const double hours = one.device_hours_per_billion(report.job.cluster);
    table.add_row({setup_text(one.setup), one.step_us * kSecondsPerUs,
                   static_cast<std::int64_t>(std::llround(one.tokens_per_s)),
                   report.now ? Cell{gain_over(one, *report.now)} : Cell{}, one.memory_bytes, hours,
                   report.price > 0 ? Cell{report.price * hours} : Cell{}});
  }
  return table;
}

std::string search_lines(const AdviceReport& report) {
  const Advice& advice = report.advice;
  std::string text = fmt::format(
      "searched   {} set-ups: {} predicted, {} slower than these by their bound,\n"
      "           {} do not fit the memory, {} impossible, {} without an engine\n",
      advice.considered, advice.predicted, advice.above_bound, advice.out_of_memory,
      advice.impossible, advice.unsupported);
  if (advice.left > 0) {
    text += fmt::format(
        "           {} left when the time was over{}; {} can be {:.2f} times as fast as the best "
        "(--seconds)\n",
        advice.left,
        advice.unbounded > 0 ? fmt::format(", {} of them without a bound", advice.unbounded) : "",
        advice.unbounded > 0 ? "none of the others" : "none", advice.possible_gain);
  }
  return text;
}

Json advice_json(const AdviceReport& report, std::optional<TrainingEngine> engine) {
  const Advice& advice = report.advice;
  Json json = {{"command", "advise"},
               {"model", report.job.model.name},
               {"cluster", report.job.cluster.name},
               {"devices", report.job.cluster.num_devices()},
               {"left_out", report.left_out},
               {"documents", report.job.lengths.size()},
               {"tokens", advice.tokens},
               {"step_tokens", advice.step_tokens},
               {"steps", advice.steps},
               {"repeats", advice.repeats},
               {"cut_documents", advice.cut},
               {"verdict", verdict_sentence(report)}};
  if (report.now) json["now"] = setup_json(report, *report.now);
  if (report.read) {
    json["now"]["understood"] = settings_json(report.read->understood);
    json["now"]["approximated"] = settings_json(report.read->approximated);
    json["now"]["without_effect"] = settings_json(report.read->without_effect);
  }
  json["engines"] = setups_json(report, advice.engines);
  json["own"] = setups_json(report, advice.own);
  json["search"] = {{"considered", advice.considered},
                    {"predicted", advice.predicted},
                    {"above_bound", advice.above_bound},
                    {"out_of_memory", advice.out_of_memory},
                    {"impossible", advice.impossible},
                    {"unsupported", advice.unsupported},
                    {"left", advice.left},
                    {"unbounded", advice.unbounded},
                    {"possible_gain", advice.possible_gain}};
  if (engine) json["flags"] = flags_json(report, *engine);
  return json;
}

std::string advice_text(const AdviceReport& report, std::optional<TrainingEngine> engine) {
  const Advice& advice = report.advice;
  std::string text = job_lines(report);
  if (report.now) text += now_text(report);
  text += fmt::format("\n{}\n", verdict_sentence(report));
  if (!advice.engines.empty()) {
    text += fmt::format("\n{}; all times predicted\n\n{}", table_title(engine),
                        setup_table(report, advice.engines).text());
  }
  if (!advice.own.empty()) {
    text += "\nthe same with contextile's plans\n\n" + setup_table(report, advice.own).text();
  }
  if (engine) text += flags_text(report, *engine);
  return text + "\n" + search_lines(report) +
         "trust      medians of published steps of one 8B model on 64 A100 were predicted within "
         "a\n"
         "           factor of 1.1; other models, MoE and pipelines are not measured\n"
         "           (docs/results/measured.md)\n";
}

std::string advice_json_text(const AdviceReport& report, std::optional<TrainingEngine> engine) {
  return advice_json(report, engine).dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace contextile
