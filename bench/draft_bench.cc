// Speculative decoding: steps and CPU time of tokens with and without drafts.
//
//   draft_bench [--tokens 200] [--repeats 3]
//
// A model with random weights (4 layers, hidden size 512, 16 heads of 64, 4 KV heads, feed-forward
// 1408, fp32) answers 1 or 16 requests at once on ranks that are threads. Each prompt repeats 40
// tokens five times. The likeliest tokens of such a model soon repeat themselves, so most drafts
// that are looked up are accepted; at temperature 1 hardly any is. The draft model is the first
// layer alone. The other layers add less than random ones would, so that it often agrees. Tokens
// must be those without drafts (exit 1 if not). CPU time is that of the busiest rank's thread, per
// token given out, prompts included: medians over the repeats, which alternate between the kinds of
// drafts.
#include <fmt/format.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench_decoder.h"
#include "contextile/serving/engine.h"
#include "contextile/serving/serve_simulation.h"
#include "kernel_peaks.h"
#include "read_options.h"

namespace contextile {
namespace {

struct Options {
  std::int32_t tokens = 200;
  int repeats = 3;
};

enum class Drafts : std::uint8_t { kNone, kLookup, kModel };
constexpr Drafts kDrafts[] = {Drafts::kNone, Drafts::kLookup, Drafts::kModel};
constexpr std::int32_t kMostDrafts = 4;  // of a request and step

std::string text_of(Drafts drafts) {
  return drafts == Drafts::kNone     ? "none"
         : drafts == Drafts::kLookup ? fmt::format("{}, looked up", kMostDrafts)
                                     : fmt::format("{}, by 1 layer", kMostDrafts);
}

struct Setting {
  std::int32_t ranks = 1;
  std::int32_t requests = 1;
  double temperature = 0;
  Drafts drafts = Drafts::kNone;
};

struct Served {
  std::map<std::int32_t, std::vector<std::int32_t>> outputs;  // by request
  EngineStats stats;
  double cpu_s = 0;  // of the busiest rank's thread
};

// Random weights, of which all layers but the first add little to the activations.
DecoderWeights weights_of(const DecoderConfig& config, const DecoderPart& part) {
  constexpr float kLaterLayers = 0.1F;
  DecoderWeights weights = random_weights(config, part, 7);
  for (std::size_t i = 1; i < weights.layers.size(); ++i) {
    for (WeightElements* matrix : {&weights.layers[i].o, &weights.layers[i].down}) {
      std::vector<float> values = matrix->values();
      for (float& value : values) value *= kLaterLayers;
      *matrix = WeightElements(std::move(values));
    }
  }
  return weights;
}

EngineInput requests_of(const Options& options, const Setting& setting) {
  EngineInput input;
  for (std::int32_t r = 0; r < setting.requests; ++r) {
    GenerationRequest request;
    request.id = RequestId(r);
    request.max_tokens = options.tokens;
    request.sampling.temperature = setting.temperature;
    request.sampling.seed = static_cast<std::uint64_t>(r);
    for (std::int32_t i = 0; i < 200; ++i) {
      const std::int32_t at = i % 40;
      request.prompt.push_back((r * 7919 + at * at * 31 + at * 7) % 251);
    }
    input.arrivals.push_back(std::move(request));
  }
  return input;
}

Served serve(const Options& options, const Setting& setting) {
  const DecoderConfig config = bench::bench_decoder();
  std::vector<Served> ranks(static_cast<std::size_t>(setting.ranks));
  run_inproc(setting.ranks, [&](Transport& transport) {
    EngineOptions engine_options;
    engine_options.cache.layout = {setting.ranks, 1, 16};
    engine_options.cache.num_pages =
        static_cast<std::int32_t>(engine_options.cache.layout.num_blocks(16'384));
    engine_options.pace = 0;
    engine_options.speculation.num_tokens = setting.drafts == Drafts::kNone ? 0 : kMostDrafts;
    DecoderOptions decoder;
    decoder.layout = engine_options.cache.layout;
    decoder.num_pages = engine_options.cache.num_pages;
    decoder.mode = DecodeMode::kA2a;
    const DecoderPart part = {transport.rank(), setting.ranks, false};
    DecoderRank model(transport, config, weights_of(config, part), decoder);
    DraftModel draft = {nullptr, config};
    draft.config.num_layers = 1;
    std::optional<DecoderRank> second;
    if (setting.drafts == Drafts::kModel) {
      second.emplace(transport, draft.config, weights_of(draft.config, part), decoder);
      draft.rank = &*second;
    }
    Engine engine(model, config, engine_options, draft);
    EngineRank rank(transport, engine);
    Served& served = ranks[transport.rank().index()];
    barrier(transport);
    const double begin_s = thread_cpu_s();
    EngineInput input = requests_of(options, setting);
    do {
      for (const EngineEvent& event : rank.advance(std::exchange(input, {})).events) {
        served.outputs[event.request.value].push_back(event.token);
      }
    } while (!engine.idle());
    served.cpu_s = thread_cpu_s() - begin_s;
    served.stats = engine.scheduler().stats();
  });
  for (const Served& served : ranks) ranks[0].cpu_s = std::max(ranks[0].cpu_s, served.cpu_s);
  return std::move(ranks[0]);
}

// Serves with every kind of drafts in turn, and prints a row of each.
bool print_rows(const Options& options, Setting setting) {
  Served found[std::size(kDrafts)];
  std::vector<double> cpu_us[std::size(kDrafts)];
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (std::size_t i = 0; i < std::size(kDrafts); ++i) {
      setting.drafts = kDrafts[i];
      found[i] = serve(options, setting);
      const auto tokens = static_cast<double>(found[i].stats.num_output_tokens);
      cpu_us[i].push_back(1e6 * found[i].cpu_s / tokens);
      if (found[i].outputs == found[0].outputs) continue;
      fmt::print("{} ranks, {} requests, drafts {}: tokens are not those without drafts\n",
                 setting.ranks, setting.requests, text_of(setting.drafts));
      return false;
    }
  }
  const double none_us = percentiles(cpu_us[0]).p50;
  for (std::size_t i = 0; i < std::size(kDrafts); ++i) {
    const EngineStats& stats = found[i].stats;
    const double us = percentiles(cpu_us[i]).p50;
    fmt::print("| {} | {} | {} | {} | {} | {} | {:.0f} | {:.2f} |\n",
               setting.temperature == 0 ? "likeliest" : "temperature 1", setting.requests,
               setting.ranks, text_of(kDrafts[i]), stats.num_steps,
               kDrafts[i] == Drafts::kNone
                   ? "–"
                   : fmt::format("{} of {}", stats.num_accepted_tokens, stats.num_draft_tokens),
               us, us / none_us);
  }
  std::fflush(stdout);
  return true;
}

int run(const Options& options) {
  fmt::print(
      "| sampling | requests | ranks | drafts | steps | accepted | CPU us per token | over none |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const double temperature : {0.0, 1.0}) {
    for (const std::int32_t requests : {1, 16}) {
      for (const std::int32_t ranks : {1, 2, 4}) {
        if (!print_rows(options, {ranks, requests, temperature})) return 1;
      }
    }
  }
  fmt::print("\ntokens are those without drafts in every run\n");
  return 0;
}

int main_of(int argc, char** argv) {
  Options options;
  bench::read_options(
      argc, argv,
      {{"--tokens", [&](const char* value) { options.tokens = std::atoi(value); }},
       {"--repeats", [&](const char* value) { options.repeats = std::atoi(value); }}});
  const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
  return run(options);
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) { return contextile::main_of(argc, argv); }
