// Predicts serving: runs the engine's own scheduler on a trace of requests, with made-up tokens and
// a clock that a cost model advances.
//
//   const auto trace = make_trace({.num_requests = 200, .requests_per_s = 4});
//   const EngineOptions engine = {
//       .cache = {.layout = {.num_ranks = layout.kvp}, .num_pages = 10'000}};
//   const ServingSimulation found =
//       simulate_serving(trace, engine, helix_step_cost(model, hardware, layout));
//   std::printf("%.3f s to the first token\n", found.first_token_s().p50);
//
// Everything but read_trace is a pure function.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/serving/engine.h"
#include "contextile/serving/helix.h"

namespace contextile {

// A request of a trace. The first prefix_tokens of its prompt are shared by all requests with the
// same prefix; all other tokens are its own.
struct TraceRequest {
  double arrival_s = 0;
  std::int64_t prompt_tokens = 1;  // the prefix included
  std::int32_t output_tokens = 1;
  std::int32_t prefix = 0;         // number of the prefix
  std::int64_t prefix_tokens = 0;  // at most prompt_tokens

  friend bool operator==(const TraceRequest&, const TraceRequest&) = default;
};

// Parameters of requests that arrive at random, independently of each other (a Poisson process).
// Lengths are exponentially distributed around their means, rounded up.
struct TraceSpec {
  std::int32_t num_requests = 200;
  double requests_per_s = 1;
  double prompt_tokens = 4096;  // mean, without the prefix
  double output_tokens = 256;   // mean
  double shared = 0.5;          // share of requests that begin with a prefix
  std::int32_t num_prefixes = 4;
  std::int64_t prefix_tokens = 2048;  // of each
  std::uint64_t seed = 1;

  friend bool operator==(const TraceSpec&, const TraceSpec&) = default;
};
// Parses "poisson" and, after a colon, any of requests, rate, prompt, output, shared, prefixes,
// prefix and seed ("poisson:rate=4,prompt=100K"); the others have the defaults above. Throws
// InvalidArgument.
[[nodiscard]] TraceSpec parse_trace_spec(std::string_view text);
// Makes a trace, the same on every machine. Throws InvalidArgument on counts below 1
// (prefix_tokens: below 0), rates and means that are not above 0, and a share outside 0 to 1.
[[nodiscard]] std::vector<TraceRequest> make_trace(const TraceSpec& spec);

// Parses JSON lines, one object per request with arrival_s, prompt_tokens, output_tokens and, if it
// has one, prefix and prefix_tokens; empty lines are skipped. Throws InvalidArgument that names
// `where` and the line, also if a request arrives before the one above it.
[[nodiscard]] std::vector<TraceRequest> parse_trace(std::string_view text, std::string_view where);
// Reads such a file; "-" is standard input. Also throws IoError.
[[nodiscard]] std::vector<TraceRequest> read_trace(const std::string& path);

// Returns the time of a step that computes these tokens, in microseconds.
using StepCost = std::function<double(std::span<const ScheduledTokens>)>;
// Returns the cost that helix_mixed_step predicts: the rows are the tokens, and the keys of a
// request are all its tokens so far. If the layout's groups compute their own rows of prompts,
// parts of at least `prefill.min_tokens` tokens take the time of helix_prefill instead, in
// `prefill.mode`, before the others. Throws InvalidArgument as those do, and on a plan.
[[nodiscard]] StepCost helix_step_cost(const HelixModel& model, const HelixHardware& hardware,
                                       const HelixLayout& layout,
                                       const PrefillPolicy& prefill = {});
// Returns the pages of every rank that fit next to the weights, with KVP = kv_layout.num_ranks; 0:
// not one fits.
[[nodiscard]] std::int32_t serving_pages(const HelixModel& model, const HelixHardware& hardware,
                                         const HelixLayout& layout, const KvLayout& kv_layout);

// The outcome of a request, in seconds since the trace began.
struct SimulatedRequest {
  TraceRequest asked;
  bool is_refused = false;  // too many waited; no other field is meaningful
  double first_token_s = 0;
  double end_s = 0;                // its last token
  std::int64_t cached_tokens = 0;  // tokens of its prompt that were cached when it first began

  [[nodiscard]] double ttft_s() const { return first_token_s - asked.arrival_s; }
  // Time between two tokens, on average; none for a single token.
  [[nodiscard]] std::optional<double> tpot_s() const;
};

// Percentiles: the least values that at least 50, 90 and 99 of 100 values do not exceed; 0 if there
// are no values.
struct Percentiles {
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};
[[nodiscard]] Percentiles percentiles(std::vector<double> values);

struct ServingSimulation {
  std::vector<SimulatedRequest> requests;  // as in the trace
  EngineStats stats;
  double busy_s = 0;  // of all steps
  double end_s = 0;   // of the last

  [[nodiscard]] std::int64_t num_refused() const;
  [[nodiscard]] Percentiles first_token_s() const;     // from arrival, of requests served
  [[nodiscard]] Percentiles time_per_token_s() const;  // of those of several tokens
  [[nodiscard]] double output_tokens_per_s() const;    // from the first arrival to the end
  [[nodiscard]] double hit_rate() const;               // share of the tokens of prompts that are
                                                       // found in the cache
};

// Serves a trace, sorted by arrival, to its end. A step begins when the one before it ends, with
// all requests that have arrived until then; its tokens are available when it ends. Throws
// InvalidArgument on a trace that is not sorted, and as Scheduler::submit on requests that can
// never be served.
[[nodiscard]] ServingSimulation simulate_serving(std::span<const TraceRequest> trace,
                                                 const EngineOptions& engine,
                                                 const StepCost& step_us);

}  // namespace contextile
