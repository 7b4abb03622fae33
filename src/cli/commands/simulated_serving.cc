#include "cli/commands/simulated_serving.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "cli/commands/contextile_program.h"
#include "cli/options/shared.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "contextile/serving/serve_simulation.h"
#include "report/helix_tables.h"
#include "report/json.h"
#include "report/table.h"

namespace contextile {
namespace {

// Layouts of a family, and whose rows of prompts their groups compute.
struct LayoutKind {
  HelixFamily family;
  HelixPrompts prompts = HelixPrompts::kAllRows;

  [[nodiscard]] std::string text() const {
    return prompts == HelixPrompts::kOwnRows ? "TP x CP" : std::string(to_string(family));
  }
};
constexpr LayoutKind kLayoutKinds[] = {{HelixFamily::kTensorParallel},
                                       {HelixFamily::kContextParallel},
                                       {HelixFamily::kHelix},
                                       {HelixFamily::kHelix, HelixPrompts::kOwnRows}};

constexpr std::string_view kOnlySimulated[] = {"--weight-bytes",
                                               "--kv-bytes",
                                               "--activation-bytes",
                                               "--hardware",
                                               "--memory-bandwidth",
                                               "--network-bandwidth",
                                               "--latency",
                                               "--launches",
                                               "--tflops",
                                               "--memory",
                                               "--reserve",
                                               "--devices",
                                               "--json",
                                               "--csv"};
constexpr std::string_view kBoth[] = {"--help",           "--simulate",    "--model",
                                      "--kv-tokens",      "--page-size",   "--interleave",
                                      "--max-running",    "--max-waiting", "--step-tokens",
                                      "--share-prefixes", "--prefill",     "--prefill-tokens"};

// Everything that is the same for all layouts.
struct Setting {
  HelixStudy study;
  std::vector<TraceRequest> trace;
  EngineOptions engine;
  PrefillPolicy prefill;
  bool shares_prompts = true;
  std::optional<std::int64_t> kv_tokens;
  std::int64_t most_running = 0;  // requests, however large the cache
  std::int64_t context = 0;       // of a request in the middle of its output, mean
  std::int64_t longest = 0;       // request, prompt and output
  double prompt_tokens = 0;       // mean
  double output_tokens = 0;       // mean
};

std::vector<TraceRequest> trace_of(const std::string& text) {
  return text == "poisson" || text.starts_with("poisson:") ? make_trace(parse_trace_spec(text))
                                                           : read_trace(text);
}

void set_prefill(const ServingRanks& ranks, Setting& setting) {
  CONTEXTILE_CHECK(!ranks.prefill.starts_with("plan:"),
                   "--prefill: expected auto, off or a mode with --simulate, found {}",
                   quote(ranks.prefill));
  setting.shares_prompts = ranks.prefill != "off";
  setting.prefill.min_tokens = ranks.prefill_tokens.value_or(setting.prefill.min_tokens);
  if (ranks.prefill != "auto" && setting.shares_prompts) {
    setting.prefill.mode = parse_prefill_mode(ranks.prefill);
  }
}

Setting setting_of(const SimulatedServingOptions& options, const EngineOptions& engine,
                   const ServingRanks& ranks, const std::optional<std::int64_t>& kv_tokens) {
  Setting setting;
  set_prefill(ranks, setting);
  setting.study.model = helix_model_of(options.setting);
  setting.study.hardware = helix_hardware_of(options.setting);
  setting.study.devices = options.devices;
  setting.study.hop_b.reading = HopBReading::kOff;
  setting.trace = trace_of(options.trace);
  setting.engine = engine;
  setting.kv_tokens = kv_tokens;
  const auto count = static_cast<double>(setting.trace.size());
  for (const TraceRequest& request : setting.trace) {
    setting.longest = std::max(setting.longest, request.prompt_tokens + request.output_tokens);
    setting.prompt_tokens += static_cast<double>(request.prompt_tokens) / count;
    setting.output_tokens += request.output_tokens / count;
  }
  setting.most_running = std::min(engine.max_running, static_cast<std::int32_t>(count));
  setting.context =
      static_cast<std::int64_t>(setting.prompt_tokens + setting.output_tokens / 2) + 1;
  return setting;
}

// The engine on a layout; its cache has no pages where not even the longest request fits.
EngineOptions engine_on(const Setting& setting, const HelixLayout& layout) {
  EngineOptions engine = setting.engine;
  KvCacheOptions& cache = engine.cache;
  cache.layout.num_ranks = layout.kvp;
  std::int64_t pages =
      serving_pages(setting.study.model, setting.study.hardware, layout, cache.layout);
  if (setting.kv_tokens) pages = std::min(pages, cache.layout.num_blocks(*setting.kv_tokens));
  const bool fits = pages * cache.layout.block_tokens() >= setting.longest;
  cache.num_pages = fits ? static_cast<std::int32_t>(pages) : 0;
  return engine;
}

// Time per request of a decoding step with as many requests of the trace's mean length as may run
// and fit.
double decoding_us_a_request(const Setting& setting, const HelixLayout& layout,
                             const KvCacheOptions& cache) {
  const std::int64_t fitting = cache.num_pages * cache.layout.block_tokens() / setting.context;
  const std::int64_t running = std::clamp<std::int64_t>(fitting, 1, setting.most_running);
  const std::int64_t keys = running * setting.context;
  const HelixRows rows = {running, running, keys, static_cast<double>(keys)};
  return helix_mixed_step(setting.study.model, setting.study.hardware, layout, rows).total_us() /
         static_cast<double>(running);
}

// True if the mode of prompts can be computed in the layout.
bool takes_mode(const Setting& setting, const HelixLayout& layout) {
  return layout.prompts == HelixPrompts::kAllRows || !setting.prefill.mode ||
         takes_prefill_mode(setting.study.model, layout, *setting.prefill.mode);
}

// The layout of a kind whose decoding steps take the least time per request, among those that
// hold the longest request.
std::optional<HelixLayout> layout_of(const Setting& setting, std::int32_t devices,
                                     const LayoutKind& kind) {
  const HelixStudy& study = setting.study;
  std::optional<HelixLayout> best;
  double best_us = 0;
  for (HelixLayout layout : helix_layouts(study.model, devices)) {
    if (family_of(layout) != kind.family) continue;
    layout.prompts = kind.prompts;
    if (!takes_mode(setting, layout)) continue;
    const KvCacheOptions cache = engine_on(setting, layout).cache;
    if (cache.num_pages == 0) continue;
    const double us = decoding_us_a_request(setting, layout, cache);
    if (best && us >= best_us) continue;
    best = layout;
    best_us = us;
  }
  return best;
}

// "8x8/64x1": KVP x TPA / TPF x EP.
std::string short_text(const HelixLayout& layout) {
  return fmt::format("{}x{}/{}x{}", layout.kvp, layout.tpa, layout.tpf, layout.ep);
}

std::vector<Cell> cells_of(const Setting& setting, const LayoutKind& kind,
                           const HelixLayout& layout) {
  const EngineOptions engine = engine_on(setting, layout);
  const HelixStudy& study = setting.study;
  const ServingSimulation found = simulate_serving(
      setting.trace, engine, helix_step_cost(study.model, study.hardware, layout, setting.prefill));
  const Percentiles ttft = found.first_token_s();
  const Percentiles tpot = found.time_per_token_s();
  return {std::int64_t{layout.devices()},
          kind.text(),
          short_text(layout),
          ttft.p50,
          ttft.p90,
          ttft.p99,
          tpot.p50,
          tpot.p90,
          tpot.p99,
          found.output_tokens_per_s(),
          engine.cache.num_pages * engine.cache.layout.block_tokens(),
          found.hit_rate(),
          found.stats.num_preemptions,
          found.num_refused(),
          found.stats.num_steps,
          found.busy_s,
          found.end_s};
}

enum class Part : std::uint8_t { kTimes, kLoad };

// All that was simulated; text tables show a part of its columns.
class Runs {
 public:
  explicit Runs(const Setting& setting) {
    for (const std::int32_t devices : setting.study.devices) {
      CONTEXTILE_CHECK(devices <= setting.study.hardware.max_devices,
                       "--devices: expected at most {} of hardware {}, found {}",
                       setting.study.hardware.max_devices, setting.study.hardware.name, devices);
    }
    for (const std::int32_t devices : setting.study.devices) {
      bool fits = false;
      for (const LayoutKind& kind : kLayoutKinds) {
        if (kind.prompts == HelixPrompts::kOwnRows && !setting.shares_prompts) continue;
        const auto layout = layout_of(setting, devices, kind);
        if (!layout) continue;
        rows_.push_back(cells_of(setting, kind, *layout));
        fits = true;
      }
      if (!fits) rows_.push_back({std::int64_t{devices}});
      fits_ = fits_ || fits;
    }
  }

  [[nodiscard]] bool fits() const { return fits_; }
  [[nodiscard]] Table table(Part part) const {
    std::vector<Column> columns = {{"devices", "N"},
                                   {"family", "family"},
                                   {"layout", "layout"},
                                   {"ttft_p50_s", "TTFT ms\np50", Format::kMilliseconds},
                                   {"ttft_p90_s", "\np90", Format::kMilliseconds},
                                   {"ttft_p99_s", "\np99", Format::kMilliseconds},
                                   {"tpot_p50_s", "TPOT ms\np50", Format::kMilliseconds},
                                   {"tpot_p90_s", "\np90", Format::kMilliseconds},
                                   {"tpot_p99_s", "\np99", Format::kMilliseconds},
                                   {"output_tokens_per_s", "output\ntokens/s"},
                                   {"kv_tokens", "cache\ntokens"},
                                   {"hit_rate", "hit\nrate", Format::kPercent},
                                   {"preemptions", "preempt-\nions"},
                                   {"refused", "re-\nfused"},
                                   {"steps", "steps"},
                                   {"busy_s", "busy\nms", Format::kMilliseconds},
                                   {"end_s", ""}};
    constexpr std::size_t kFirstOfTimes = 3;
    constexpr std::size_t kFirstOfLoad = 9;
    const auto hide = [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) columns[i].header.clear();
    };
    if (part == Part::kTimes) hide(kFirstOfLoad, columns.size());
    if (part == Part::kLoad) hide(kFirstOfTimes, kFirstOfLoad);
    Table table(columns);
    for (std::vector<Cell> row : rows_) {
      const bool fits = row.size() > 1;
      row.resize(columns.size());
      table.add_row(std::move(row), fits ? "" : "no layout leaves room for the longest request");
    }
    return table;
  }

 private:
  std::vector<std::vector<Cell>> rows_;
  bool fits_ = false;
};

std::string text_of(const Setting& setting, const Runs& runs) {
  const EngineOptions& engine = setting.engine;
  std::string text = describe_helix(setting.study);
  text += fmt::format(
      "compute   {} TFLOP/s\n"
      "trace     {} requests, the last after {:.4g} s; on average {:.0f} tokens of prompt,\n"
      "          {:.0f} of output; the longest has {}\n"
      "engine    at most {} requests and {} tokens per step, pages of {} tokens\n\n"
      "predicted time to the first token (TTFT) and from one to the next (TPOT);\n"
      "TP x CP: Helix with groups that compute their own rows of prompts, {}\n\n",
      setting.study.hardware.tflops, setting.trace.size(), setting.trace.back().arrival_s,
      setting.prompt_tokens, setting.output_tokens, setting.longest, engine.max_running,
      engine.max_step_tokens, engine.cache.layout.page_size,
      setting.shares_prompts ? setting.prefill.mode ? to_string(*setting.prefill.mode) : "auto"
                             : "off");
  text += runs.table(Part::kTimes).text();
  text += "\nwhat was served\n\n" + runs.table(Part::kLoad).text();
  return text;
}

Json json_of(const Setting& setting, const Runs& runs) {
  Json document = {{"command", "serve"}};
  document.update(helix_setting_json(setting.study));
  document["tflops"] = setting.study.hardware.tflops;
  document["requests"] = setting.trace.size();
  document["last_arrival_s"] = setting.trace.back().arrival_s;
  document["prompt_tokens"] = setting.prompt_tokens;
  document["output_tokens"] = setting.output_tokens;
  document["longest_tokens"] = setting.longest;
  document["runs"] = runs.table(Part::kTimes).json();
  return document;
}

}  // namespace

void add_simulated_serving_options(CLI::App& app, SimulatedServingOptions& options) {
  add_value(app, "--simulate",
            {"FILE|poisson:NAME=NUMBER,...",
             "predict instead what a trace of requests would take: a file of JSON lines, or random "
             "ones of requests, rate (a second), prompt and output (tokens, mean), shared (of the "
             "requests), prefixes, prefix (tokens) and seed",
             "",
             {"poisson"}},
            [&options](const std::string& text) { options.trace = text; });
  add_element_options(app, options.setting);
  add_hardware_options(app, options.setting);
  add_sizes(app, "--devices", options.devices,
            {"N,...", "simulate: devices that serve together", "1,2,4,8"});
  add_json_option(app, options.json);
  add_csv_option(app, options.csv, "what was simulated");
}

void check_simulated_serving(const CLI::App& app, const SimulatedServingOptions& options) {
  const bool simulates = !options.trace.empty();
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const std::string name = option->get_name();
    const bool only_simulated = std::ranges::find(kOnlySimulated, name) != std::end(kOnlySimulated);
    CONTEXTILE_CHECK(simulates || !only_simulated, "{}: expected with --simulate, found it without",
                     name);
    const bool both = std::ranges::find(kBoth, name) != std::end(kBoth);
    CONTEXTILE_CHECK(!simulates || only_simulated || both,
                     "{}: expected without --simulate, found both", name);
  }
  check_formats(options.json, options.csv);
}

int simulated_serving(SimulatedServingOptions options, const std::string& model,
                      const EngineOptions& engine, const ServingRanks& ranks,
                      const std::optional<std::int64_t>& kv_tokens) {
  if (!model.empty()) options.setting.model = model;
  const Setting setting = setting_of(options, engine, ranks, kv_tokens);
  const Runs runs(setting);
  if (options.json) {
    print_json(json_of(setting, runs));
  } else if (options.csv) {
    print(runs.table(Part::kTimes).csv());
  } else {
    print(text_of(setting, runs));
  }
  return runs.fits() ? kExitOk : kExitCheckFailed;
}

}  // namespace contextile
