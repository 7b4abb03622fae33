// Prompts that ranks share by tokens, and streams next to long prompts.
//
//   prompt_bench [--tokens 4096] [--repeats 3] [--long 15000]
//
// A model with random weights (4 layers, hidden size 512, 16 heads of 64, 4 KV heads, feed-forward
// 1408, fp32) runs on ranks that are threads.
//
// First: a prompt is computed in steps of 1024 tokens by 1, 2 and 4 ranks, in every mode. Its first
// token must be that of one rank (exit 1 if not). The table has the time of the busiest rank's
// thread, which counts no waiting: the time to the first token of ranks that have a core each, less
// what they wait for each other. It has the work of a rank in every part of a layer over that of
// one rank, and what a rank sends.
//
// Second: one request decodes alone, and then next to a long prompt, with and without a pace. The
// table has the times between its tokens, on one rank, in CPU time.
#include <fmt/format.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
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
  std::int64_t tokens = 4096;
  std::int64_t long_tokens = 15'000;
  int repeats = 3;
};

constexpr std::int64_t kChunk = 1024;

std::vector<std::int32_t> prompt_of(std::int64_t length, std::int64_t stream) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < length; ++i) {
    tokens.push_back(static_cast<std::int32_t>((stream * 7919 + i * i * 31 + i * 7) % 251));
  }
  return tokens;
}

// The ranks and how they compute a prompt.
struct Setting {
  std::string name;
  std::int32_t ranks = 1;
  std::int32_t context_parallel = 1;
  std::int32_t token_ranks = 1;
  PrefillPolicy prefill = {};
};

std::vector<Setting> all_settings() {
  std::vector<Setting> settings = {{"one rank", 1, 1, 1, {}}};
  for (const std::int32_t ranks : {2, 4}) {
    settings.push_back({"as decoding", ranks, 1, ranks, {}});
    settings.push_back({"tensor-parallel", ranks, 1, 1, {}});
    settings.push_back({"auto", ranks, ranks, ranks, {}});
    for (const PrefillMode mode : {PrefillMode::kPassKv, PrefillMode::kPassQ,
                                   PrefillMode::kAllGather, PrefillMode::kUlysses}) {
      PrefillPolicy policy;
      policy.mode = mode;
      settings.push_back({std::string(to_string(mode)), ranks, ranks, ranks, policy});
    }
  }
  settings.push_back({"auto, 2 tensor-parallel", 4, 2, 2, {}});
  return settings;
}

struct Prompted {
  std::int64_t token = 0;  // the likeliest first one
  double cpu_s = 0;        // of the busiest rank's thread
  DecoderWork work;        // of the rank with most
  DecoderTraffic traffic;  // of the rank that sends most
};

std::int64_t total(const DecoderTraffic& traffic) {
  return traffic.attention_bytes + traffic.prefill_bytes + traffic.reduction_bytes +
         traffic.logits_bytes;
}

std::int64_t layers(const DecoderWork& work) {
  return work.projection_flops + work.attention_flops + work.feed_forward_flops;
}

Prompted compute_prompt(const Options& options, const Setting& setting) {
  const DecoderConfig config = bench::bench_decoder();
  const std::vector<std::int32_t> tokens = prompt_of(options.tokens, 1);
  std::vector<Prompted> ranks(static_cast<std::size_t>(setting.ranks));
  run_inproc(setting.ranks, [&](Transport& transport) {
    DecoderOptions decoder;
    decoder.layout = {setting.token_ranks, 1, 16};
    decoder.num_pages = static_cast<std::int32_t>(decoder.layout.num_blocks(options.tokens));
    decoder.mode = DecodeMode::kA2a;
    decoder.prefill = setting.prefill;
    const DecoderPart part = {transport.rank(), setting.ranks, false, setting.context_parallel,
                              setting.token_ranks};
    DecoderRank model(transport, config, random_weights(config, part, 7), decoder);
    std::vector<PageId> table;
    for (std::int32_t p = 0; p < decoder.num_pages; ++p) table.emplace_back(p);
    barrier(transport);
    const double begin_s = thread_cpu_s();
    HostTensor logits;
    for (std::int64_t at = 0; at < options.tokens; at += kChunk) {
      const std::int64_t count = std::min(kChunk, options.tokens - at);
      const StepRequest step = {
          std::span(tokens).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(count)),
          at, table, at + count == options.tokens};
      logits = model.forward(std::span(&step, 1));
    }
    Prompted& its = ranks[transport.rank().index()];
    its.cpu_s = thread_cpu_s() - begin_s;
    const auto values = logits.values<float>();
    its.token = std::max_element(values.begin(), values.end()) - values.begin();
    its.work = model.work();
    its.traffic = model.traffic();
  });
  Prompted most = ranks.front();
  for (const Prompted& its : ranks) {
    most.cpu_s = std::max(most.cpu_s, its.cpu_s);
    if (layers(its.work) > layers(most.work)) most.work = its.work;
    if (total(its.traffic) > total(most.traffic)) most.traffic = its.traffic;
  }
  return most;
}

double median(std::vector<double> values) { return percentiles(std::move(values)).p50; }

bool print_prompts(const Options& options) {
  const std::vector<Setting> settings = all_settings();
  std::vector<std::vector<double>> cpu_s(settings.size());
  std::vector<Prompted> found(settings.size());
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (std::size_t i = 0; i < settings.size(); ++i) {
      found[i] = compute_prompt(options, settings[i]);
      cpu_s[i].push_back(found[i].cpu_s);
      if (found[i].token == found[0].token) continue;
      fmt::print("{}, {} ranks: expected token {}, found {}\n", settings[i].name, settings[i].ranks,
                 found[0].token, found[i].token);
      return false;
    }
  }
  fmt::print(
      "first tokens are those of one rank in every run\n\n"
      "| ranks | prompts | CPU s of the busiest rank | over one rank | projections | attention | "
      "feed-forward | MB sent by a rank |\n|---|---|---|---|---|---|---|---|\n");
  const double one_s = median(cpu_s[0]);
  const auto over = [](std::int64_t its, std::int64_t all) {
    return static_cast<double>(its) / static_cast<double>(all);
  };
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const DecoderWork& work = found[i].work;
    const DecoderWork& all = found[0].work;
    fmt::print("| {} | {} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} | {:.1f} |\n",
               settings[i].ranks, settings[i].name, median(cpu_s[i]), median(cpu_s[i]) / one_s,
               over(work.projection_flops, all.projection_flops),
               over(work.attention_flops, all.attention_flops),
               over(work.feed_forward_flops, all.feed_forward_flops),
               static_cast<double>(total(found[i].traffic)) * 1e-6);
  }
  return true;
}

// The times between the tokens of a request that decodes, while a prompt of so many tokens is
// computed next to it (0: alone); and the time of the prompt's first token.
struct Stream {
  std::vector<double> gaps_s;
  double first_s = 0;
};

Stream stream_beside(std::int64_t prompt_tokens, double pace) {
  Stream stream;
  run_inproc(1, [&](Transport& transport) {
    const DecoderConfig config = bench::bench_decoder();
    EngineOptions options;
    options.cache.layout = {1, 1, 16};
    options.cache.num_pages = 2000;
    options.pace = pace;
    DecoderOptions decoder;
    decoder.layout = options.cache.layout;
    decoder.num_pages = options.cache.num_pages;
    DecoderRank model(transport, config, random_weights(config, {}, 7), decoder);
    Engine engine(model, config, options);
    EngineRank rank(transport, engine);
    GenerationRequest decoding;
    decoding.id = RequestId(0);
    decoding.prompt = prompt_of(600, 2);
    decoding.max_tokens = 20'000;
    EngineInput first;
    first.arrivals = {decoding};
    static_cast<void>(rank.advance(first));
    for (int i = 0; i < 40; ++i) static_cast<void>(rank.advance());
    EngineInput second;
    if (prompt_tokens > 0) {
      GenerationRequest prompt;
      prompt.id = RequestId(1);
      prompt.prompt = prompt_of(prompt_tokens, 3);
      prompt.max_tokens = 1;
      second.arrivals = {prompt};
    }
    const double begin_s = thread_cpu_s();
    for (std::int32_t i = 0; prompt_tokens > 0 ? stream.first_s == 0 : i < 100; ++i) {
      const double before_s = thread_cpu_s();
      const EngineOutput output = rank.advance(i == 0 ? second : EngineInput{});
      const double after_s = thread_cpu_s();
      for (const EngineEvent& event : output.events) {
        if (event.request == RequestId(0)) stream.gaps_s.push_back(after_s - before_s);
        if (event.request == RequestId(1)) stream.first_s = after_s - begin_s;
      }
    }
  });
  return stream;
}

void print_streams(const Options& options) {
  const Stream alone = stream_beside(0, 0);
  const Percentiles base = percentiles(alone.gaps_s);
  fmt::print(
      "\n| a stream | ms between tokens, p50 | p90 | largest | p90 over alone | s to the prompt's "
      "first token |\n|---|---|---|---|---|---|\n| alone | {:.1f} | {:.1f} | {:.1f} | 1.00 | – |\n",
      base.p50 * 1e3, base.p90 * 1e3, *std::ranges::max_element(alone.gaps_s) * 1e3);
  for (const double pace : {0.0, 2.0, 3.0, 6.0}) {
    const Stream beside = stream_beside(options.long_tokens, pace);
    const Percentiles its = percentiles(beside.gaps_s);
    fmt::print("| next to a prompt of {}, {} | {:.1f} | {:.1f} | {:.1f} | {:.2f} | {:.1f} |\n",
               options.long_tokens, pace == 0 ? "no pace" : fmt::format("--pace {:g}", pace),
               its.p50 * 1e3, its.p90 * 1e3, *std::ranges::max_element(beside.gaps_s) * 1e3,
               its.p90 / base.p90, beside.first_s);
  }
}

int main_of(int argc, char** argv) {
  Options options;
  bench::read_options(
      argc, argv,
      {{"--tokens", [&](const char* value) { options.tokens = std::atoll(value); }},
       {"--long", [&](const char* value) { options.long_tokens = std::atoll(value); }},
       {"--repeats", [&](const char* value) { options.repeats = std::atoi(value); }}});
  const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
  if (!print_prompts(options)) return 1;
  print_streams(options);
  return 0;
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) { return contextile::main_of(argc, argv); }
