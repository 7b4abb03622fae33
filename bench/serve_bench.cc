// Serving from ranks as threads: tokens, bytes, memory, times, and how far the simulation is from
// them.
//
//   serve_bench [--requests 200] [--rate 20] [--repeats 3] [--interleave 4] [--hidden 192]
//
// A model with random weights (4 layers, 24 heads of 16, 2 KV heads, fp32) serves a made trace of
// requests from 1, 2, 3, 4 and 8 ranks in every mode. Half of the requests begin with one of four
// prefixes. First a fifth of them runs, all at once, in alternating runs with medians over the
// repeats: tokens are compared with those of one rank (exit 1 if they differ), bytes with their
// formulas. Then all of them run as they come, once: tokens are compared again, and times to the
// first token and from one to the next are printed next to simulated ones. The simulated time of a
// step is a + b·rows, fitted to the steps of the same run. CPU is that of the busiest rank's
// thread.
#include <fmt/format.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "contextile/serving/engine.h"
#include "contextile/serving/serve_simulation.h"
#include "kernel_peaks.h"

namespace contextile {
namespace {

struct Options {
  std::int32_t requests = 200;
  double requests_per_s = 20;
  int repeats = 3;
  std::int32_t interleave = 4;
  std::int32_t hidden = 192;
};

// The ranks and their way to attention.
struct Setting {
  std::int32_t ranks = 1;
  DecodeMode mode = DecodeMode::kQReplicated;
};

// A step that computed something.
struct StepTime {
  std::int64_t rows = 0;
  double seconds = 0;
};

struct Served {
  std::map<std::int32_t, std::vector<std::int32_t>> outputs;  // by request
  std::map<std::int32_t, std::vector<double>> times_s;        // of these
  std::vector<StepTime> steps;
  EngineStats stats;
  DecoderTraffic traffic;     // of the rank that sent most
  std::int64_t kv_bytes = 0;  // of a rank
  double cpu_s = 0;           // of the busiest rank's thread
  double end_s = 0;
};

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) { return percentiles(std::move(values)).p50; }

DecoderConfig config_of(const Options& options) {
  DecoderConfig config;
  config.hidden_size = options.hidden;
  return config;
}

EngineOptions engine_of(const Options& options, const Setting& setting) {
  EngineOptions engine;
  engine.cache.layout = {setting.ranks, options.interleave, 16};
  engine.cache.num_pages = static_cast<std::int32_t>(engine.cache.layout.num_blocks(32'768));
  engine.max_running = 32;
  engine.max_step_tokens = 128;
  engine.pace = 0;  // steps of the same tokens in every run
  return engine;
}

std::vector<TraceRequest> trace_of(const Options& options) {
  return make_trace({.num_requests = options.requests,
                     .requests_per_s = options.requests_per_s,
                     .prompt_tokens = 32,
                     .output_tokens = 8,
                     .shared = 0.5,
                     .num_prefixes = 4,
                     .prefix_tokens = 128});
}

// A prompt whose first tokens are its prefix's.
GenerationRequest request_of(const TraceRequest& asked, std::int32_t number) {
  GenerationRequest request;
  request.id = RequestId(number);
  request.max_tokens = asked.output_tokens;
  for (std::int64_t i = 0; i < asked.prompt_tokens; ++i) {
    const std::int64_t stream = i < asked.prefix_tokens ? 1000 + asked.prefix : 2000 + number;
    request.prompt.push_back(static_cast<std::int32_t>((stream * 7919 + i * i * 31 + i * 7) % 251));
  }
  return request;
}

// The first rank's side: what has come, and when tokens were there.
class Client {
 public:
  Client(const std::vector<TraceRequest>& trace, bool all_at_once)
      : trace_(trace), all_at_once_(all_at_once), begin_s_(now_s()) {}

  void serve(EngineRank& rank, const Engine& engine, Served& served) {
    while (next_ < trace_.size() || !engine.idle()) {
      if (engine.idle()) sleep();
      const std::int64_t computed = engine.scheduler().stats().num_computed_tokens;
      const double before_s = now_s();
      const EngineOutput output = rank.advance(input());
      const double after_s = now_s();
      const std::int64_t rows = engine.scheduler().stats().num_computed_tokens - computed;
      if (rows > 0) served.steps.push_back({rows, after_s - before_s});
      for (const EngineEvent& event : output.events) {
        served.outputs[event.request.value].push_back(event.token);
        served.times_s[event.request.value].push_back(after_s - begin_s_);
      }
    }
    served.end_s = now_s() - begin_s_;
    EngineInput last;
    last.stop = true;
    static_cast<void>(rank.advance(last));
  }

 private:
  [[nodiscard]] bool has_come() const {
    return all_at_once_ || trace_[next_].arrival_s <= now_s() - begin_s_;
  }
  [[nodiscard]] EngineInput input() {
    EngineInput input;
    for (; next_ < trace_.size() && has_come(); ++next_) {
      input.arrivals.push_back(request_of(trace_[next_], static_cast<std::int32_t>(next_)));
    }
    return input;
  }
  void sleep() const {
    if (has_come()) return;
    std::this_thread::sleep_for(
        std::chrono::duration<double>(trace_[next_].arrival_s - (now_s() - begin_s_)));
  }

  const std::vector<TraceRequest>& trace_;
  bool all_at_once_;
  double begin_s_;
  std::size_t next_ = 0;
};

std::int64_t total(const DecoderTraffic& traffic) {
  return traffic.attention_bytes + traffic.reduction_bytes + traffic.logits_bytes;
}

Served serve(const Options& options, const Setting& setting, bool all_at_once) {
  const DecoderConfig config = config_of(options);
  const EngineOptions engine_options = engine_of(options, setting);
  std::vector<TraceRequest> trace = trace_of(options);
  if (all_at_once) trace.resize((trace.size() + 4) / 5);
  std::vector<Served> ranks(static_cast<std::size_t>(setting.ranks));
  run_inproc(setting.ranks, [&](Transport& transport) {
    const DecoderPart part = {transport.rank(), transport.size(),
                              setting.mode == DecodeMode::kQReplicated};
    DecoderOptions decoder;
    decoder.layout = engine_options.cache.layout;
    decoder.num_pages = engine_options.cache.num_pages;
    decoder.mode = setting.mode;
    DecoderRank model(transport, config, random_weights(config, part, 7), decoder);
    Engine engine(model, config, engine_options);
    EngineRank rank(transport, engine);
    Served& served = ranks[transport.rank().index()];
    barrier(transport);
    const double cpu_s = thread_cpu_s();
    if (transport.rank().value == 0) {
      Client(trace, all_at_once).serve(rank, engine, served);
    } else {
      while (!rank.advance().stopped) {
      }
    }
    served.cpu_s = thread_cpu_s() - cpu_s;
    served.stats = engine.scheduler().stats();
    served.traffic = model.traffic();
    served.kv_bytes = model.kv_bytes();
  });
  for (const Served& served : ranks) {
    ranks[0].cpu_s = std::max(ranks[0].cpu_s, served.cpu_s);
    if (total(served.traffic) > total(ranks[0].traffic)) ranks[0].traffic = served.traffic;
  }
  return std::move(ranks[0]);
}

// The largest difference between ranks in their tokens of one request.
std::int64_t imbalance(const Options& options, const Setting& setting) {
  const KvLayout layout = engine_of(options, setting).cache.layout;
  std::int64_t most = 0;
  for (const TraceRequest& request : trace_of(options)) {
    std::vector<std::int64_t> tokens(static_cast<std::size_t>(layout.num_ranks));
    for (std::int64_t p = 0; p < request.prompt_tokens + request.output_tokens; ++p) {
      ++tokens[layout.owner(p).index()];
    }
    const auto [least, largest] = std::ranges::minmax(tokens);
    most = std::max(most, largest - least);
  }
  return most;
}

// The bytes that a rank sends by the formulas for so many rows, of which some have logits.
DecoderTraffic predicted(const Options& options, const Setting& setting, const EngineStats& stats) {
  const DecoderConfig config = config_of(options);
  const std::int64_t rows = stats.num_computed_tokens;
  const std::int64_t n = setting.ranks;
  DecoderTraffic traffic;
  traffic.attention_bytes =
      config.num_layers * decode_bytes(setting.mode, setting.ranks, rows,
                                       config.q_heads / setting.ranks, config.head_dim,
                                       config.head_dim, Dtype::kF32);
  traffic.reduction_bytes = config.num_layers * 2 * 2 * (n - 1) * rows * config.hidden_size * 4 / n;
  traffic.logits_bytes = (n - 1) * stats.num_output_tokens * config.vocab_size * 4 / n;
  return traffic;
}

// a + b·rows microseconds, with the least squares over steps.
struct StepLine {
  double a_us = 0;
  double b_us = 0;

  explicit StepLine(const std::vector<StepTime>& steps) {
    double n = 0;
    double x = 0;
    double y = 0;
    double xx = 0;
    double xy = 0;
    for (const StepTime& step : steps) {
      const auto rows = static_cast<double>(step.rows);
      ++n;
      x += rows;
      y += 1e6 * step.seconds;
      xx += rows * rows;
      xy += rows * 1e6 * step.seconds;
    }
    b_us = (n * xy - x * y) / (n * xx - x * x);
    a_us = (y - b_us * x) / n;
  }
};

// Times of a trace, measured or simulated, in seconds.
struct TraceTimes {
  Percentiles ttft;
  Percentiles tpot;
};

TraceTimes measured_times(const std::vector<TraceRequest>& trace, const Served& served) {
  std::vector<double> first;
  std::vector<double> between;
  for (const auto& [number, times] : served.times_s) {
    first.push_back(times.front() - trace[static_cast<std::size_t>(number)].arrival_s);
    if (times.size() < 2) continue;
    between.push_back((times.back() - times.front()) / static_cast<double>(times.size() - 1));
  }
  return {percentiles(std::move(first)), percentiles(std::move(between))};
}

TraceTimes simulated_times(const Options& options, const Setting& setting, const StepLine& line) {
  const ServingSimulation found = simulate_serving(
      trace_of(options), engine_of(options, setting), [&](std::span<const ScheduledTokens> step) {
        double us = line.a_us;
        for (const ScheduledTokens& part : step) {
          us += line.b_us * static_cast<double>(part.tokens.size());
        }
        return us;
      });
  return {found.first_token_s(), found.time_per_token_s()};
}

struct Found {
  std::vector<Served> at_once;  // by repeat
  Served as_they_come;
};

std::string name_of(const Setting& setting) {
  return fmt::format("{} {}", setting.ranks, setting.ranks == 1 ? "" : to_string(setting.mode));
}

void print_throughput(const Options& options, const std::vector<Setting>& settings,
                      const std::vector<Found>& found) {
  fmt::print("\nall at once; bytes a step and rank, sent / by the formulas\n");
  fmt::print("{:15}{:>10}{:>11}{:>17}{:>17}{:>15}{:>9}{:>7}\n", "ranks", "tokens/s", "CPU us/tok",
             "attention", "reduction", "logits", "KV KiB", "differ");
  for (std::size_t i = 0; i < settings.size(); ++i) {
    std::vector<double> tokens_per_s;
    std::vector<double> cpu_us;
    for (const Served& served : found[i].at_once) {
      const auto tokens = static_cast<double>(served.stats.num_computed_tokens);
      tokens_per_s.push_back(tokens / served.end_s);
      cpu_us.push_back(1e6 * served.cpu_s / tokens);
    }
    const Served& one = found[i].at_once.front();
    const DecoderTraffic formula = predicted(options, settings[i], one.stats);
    const auto both = [&](std::int64_t sent, std::int64_t expected) {
      return fmt::format("{} / {}", sent / one.stats.num_steps, expected / one.stats.num_steps);
    };
    fmt::print("{:15}{:>10.0f}{:>11.1f}{:>17}{:>17}{:>15}{:>9.0f}{:>7}\n", name_of(settings[i]),
               median(tokens_per_s), median(cpu_us),
               both(one.traffic.attention_bytes, formula.attention_bytes),
               both(one.traffic.reduction_bytes, formula.reduction_bytes),
               both(one.traffic.logits_bytes, formula.logits_bytes),
               static_cast<double>(one.kv_bytes) / 1024, imbalance(options, settings[i]));
  }
}

void print_times(const Options& options, const std::vector<Setting>& settings,
                 const std::vector<Found>& found) {
  const std::vector<TraceRequest> trace = trace_of(options);
  fmt::print("\nas they come; ms, measured / simulated with a + b·rows\n");
  fmt::print("{:15}{:>6}{:>16}{:>9}{:>16}{:>16}{:>16}{:>16}\n", "ranks", "hits", "a, b us",
             "CPU ms", "TTFT p50", "TTFT p90", "TPOT p50", "TPOT p90");
  for (std::size_t i = 0; i < settings.size(); ++i) {
    const Served& served = found[i].as_they_come;
    const StepLine line(served.steps);
    const TraceTimes simulated = simulated_times(options, settings[i], line);
    const TraceTimes measured = measured_times(trace, served);
    const double hits = static_cast<double>(served.stats.num_cached_tokens) /
                        static_cast<double>(served.stats.num_prompt_tokens);
    const double cpu_ms = 1e3 * served.cpu_s / static_cast<double>(served.stats.num_steps);
    const auto both = [](double measured_s, double simulated_s) {
      return fmt::format("{:.1f} / {:.1f}", 1e3 * measured_s, 1e3 * simulated_s);
    };
    fmt::print(
        "{:15}{:>5.1f}%{:>16}{:>9.2f}{:>16}{:>16}{:>16}{:>16}\n", name_of(settings[i]), 100 * hits,
        fmt::format("{:.0f}, {:.1f}", line.a_us, line.b_us), cpu_ms,
        both(measured.ttft.p50, simulated.ttft.p50), both(measured.ttft.p90, simulated.ttft.p90),
        both(measured.tpot.p50, simulated.tpot.p50), both(measured.tpot.p90, simulated.tpot.p90));
  }
}

std::vector<Setting> all_settings() {
  std::vector<Setting> settings = {{}};
  for (const std::int32_t ranks : {2, 3, 4, 8}) {
    for (const DecodeMode mode : {DecodeMode::kAgRs, DecodeMode::kA2a, DecodeMode::kQReplicated}) {
      settings.push_back({ranks, mode});
    }
  }
  return settings;
}

bool same_tokens(const Served& found, const Served& expected, const Setting& setting) {
  if (found.outputs == expected.outputs) return true;
  fmt::print("{}: tokens are not those of one rank\n", name_of(setting));
  return false;
}

int run(const Options& options) {
  const std::vector<Setting> settings = all_settings();
  std::vector<Found> found(settings.size());
  for (int repeat = 0; repeat < options.repeats; ++repeat) {
    for (std::size_t i = 0; i < settings.size(); ++i) {
      found[i].at_once.push_back(serve(options, settings[i], true));
      if (!same_tokens(found[i].at_once.back(), found[0].at_once[0], settings[i])) return 1;
    }
  }
  fmt::print("tokens are those of one rank in every run\n");
  print_throughput(options, settings, found);
  std::fflush(stdout);
  for (std::size_t i = 0; i < settings.size(); ++i) {
    found[i].as_they_come = serve(options, settings[i], false);
    if (!same_tokens(found[i].as_they_come, found[0].as_they_come, settings[i])) return 1;
  }
  print_times(options, settings, found);
  return 0;
}

int main_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string word = argv[i];
    if (word == "--requests") options.requests = std::atoi(argv[i + 1]);
    if (word == "--rate") options.requests_per_s = std::atof(argv[i + 1]);
    if (word == "--repeats") options.repeats = std::atoi(argv[i + 1]);
    if (word == "--interleave") options.interleave = std::atoi(argv[i + 1]);
    if (word == "--hidden") options.hidden = std::atoi(argv[i + 1]);
  }
  const tbb::global_control one(tbb::global_control::max_allowed_parallelism, 1);
  return run(options);
}

}  // namespace
}  // namespace contextile

int main(int argc, char** argv) { return contextile::main_of(argc, argv); }
