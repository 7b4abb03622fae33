#include "contextile/serving/serve_simulation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "serving/forecast/check_trace.h"

namespace contextile {
namespace {

// 31 bits that look random (the finalizer of SplitMix64): the token at a place of a stream.
std::int32_t token_of(std::uint64_t stream, std::uint64_t position) {
  std::uint64_t x = stream * 0x9e3779b97f4a7c15ULL + position;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<std::int32_t>((x ^ (x >> 31)) >> 33);
}

// Streams of prefixes have even numbers, those of requests odd ones.
GenerationRequest request_of(const TraceRequest& asked, std::int32_t number) {
  GenerationRequest request;
  request.id = RequestId(number);
  request.max_tokens = asked.output_tokens;
  request.prompt.resize(static_cast<std::size_t>(asked.prompt_tokens));
  const auto own = 2 * static_cast<std::uint64_t>(number) + 1;
  const auto prefix = 2 * static_cast<std::uint64_t>(asked.prefix);
  for (std::size_t i = 0; i < request.prompt.size(); ++i) {
    const bool is_shared = static_cast<std::int64_t>(i) < asked.prefix_tokens;
    request.prompt[i] = token_of(is_shared ? prefix : own, i);
  }
  return request;
}

void add_rows(const ScheduledTokens& part, HelixRows& rows) {
  rows.rows += part.tokens.size();
  rows.logits += part.needs_logits ? 1 : 0;
  rows.keys += part.tokens.end;
  rows.pairs += static_cast<double>(part.tokens.begin + 1 + part.tokens.end) / 2 *
                static_cast<double>(part.tokens.size());
}

class Simulation {
 public:
  Simulation(std::span<const TraceRequest> trace, const EngineOptions& engine)
      : trace_(trace), scheduler_(engine, std::numeric_limits<std::int64_t>::max()) {
    for (const TraceRequest& asked : trace) found_.requests.push_back({.asked = asked});
  }

  ServingSimulation run(const StepCost& step_us) {
    for (double now_s = 0;;) {
      submit_until(now_s);
      const std::vector<ScheduledTokens> step = scheduler_.next();
      if (step.empty()) {
        if (next_ == trace_.size()) break;
        now_s = trace_[next_].arrival_s;
        continue;
      }
      static_cast<void>(scheduler_.cache().take_copies());
      const double step_s = 1e-6 * step_us(step);
      now_s += step_s;
      found_.busy_s += step_s;
      found_.end_s = now_s;
      for (const ScheduledTokens& part : step) {
        if (part.needs_logits) give_token(part.request, now_s);
      }
    }
    found_.stats = scheduler_.stats();
    return std::move(found_);
  }

 private:
  void submit_until(double now_s) {
    for (; next_ < trace_.size() && trace_[next_].arrival_s <= now_s; ++next_) {
      const auto number = static_cast<std::int32_t>(next_);
      found_.requests[next_].is_refused = !scheduler_.submit(request_of(trace_[next_], number));
    }
  }

  void give_token(RequestId id, double now_s) {
    SimulatedRequest& request = found_.requests[id.index()];
    const auto place = static_cast<std::uint64_t>(scheduler_.tokens(id).size());
    const bool is_first = static_cast<std::int64_t>(place) == request.asked.prompt_tokens;
    const EngineEvent event =
        scheduler_.take(id, token_of(2 * static_cast<std::uint64_t>(id.value) + 1, place), 0);
    if (is_first) request.first_token_s = now_s;
    request.end_s = now_s;
    request.cached_tokens = event.cached_tokens;
  }

  std::span<const TraceRequest> trace_;
  Scheduler scheduler_;
  std::size_t next_ = 0;  // first request that has not arrived yet
  ServingSimulation found_;
};

}  // namespace

StepCost helix_step_cost(const HelixModel& model, const HelixHardware& hardware,
                         const HelixLayout& layout, const PrefillPolicy& prefill) {
  CONTEXTILE_CHECK(!prefill.plan, "cost of a step: expected prompts in a mode, found a plan");
  return [=, min_tokens = prefill.min_tokens,
          mode = prefill.mode](std::span<const ScheduledTokens> step) {
    HelixRows shared;
    HelixRows others;
    for (const ScheduledTokens& part : step) {
      const bool is_shared =
          layout.prompts == HelixPrompts::kOwnRows && part.tokens.size() >= min_tokens;
      add_rows(part, is_shared ? shared : others);
    }
    double us = 0;
    if (shared.rows > 0) us += helix_prefill(model, hardware, layout, shared, mode).step.total_us();
    if (others.rows > 0) us += helix_mixed_step(model, hardware, layout, others).total_us();
    return us;
  };
}

std::int32_t serving_pages(const HelixModel& model, const HelixHardware& hardware,
                           const HelixLayout& layout, const KvLayout& kv_layout) {
  check_kv_layout(kv_layout);
  CONTEXTILE_CHECK(kv_layout.num_ranks == layout.kvp,
                   "pages: expected a cache of KVP {} ranks, found {}", layout.kvp,
                   kv_layout.num_ranks);
  const std::int64_t pages =
      helix_max_context(model, hardware, layout, 1) / kv_layout.block_tokens();
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  return static_cast<std::int32_t>(std::min(pages, kMost));
}

std::optional<double> SimulatedRequest::tpot_s() const {
  if (asked.output_tokens < 2) return std::nullopt;
  return (end_s - first_token_s) / (asked.output_tokens - 1);
}

Percentiles percentiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto at = [&](std::size_t percent) {
    return values[(values.size() * percent + 99) / 100 - 1];
  };
  return {at(50), at(90), at(99)};
}

std::int64_t ServingSimulation::num_refused() const {
  return std::ranges::count(requests, true, &SimulatedRequest::is_refused);
}

Percentiles ServingSimulation::first_token_s() const {
  std::vector<double> times;
  for (const SimulatedRequest& request : requests) {
    if (!request.is_refused) times.push_back(request.ttft_s());
  }
  return percentiles(std::move(times));
}

Percentiles ServingSimulation::time_per_token_s() const {
  std::vector<double> times;
  for (const SimulatedRequest& request : requests) {
    const std::optional<double> time = request.tpot_s();
    if (!request.is_refused && time) times.push_back(*time);
  }
  return percentiles(std::move(times));
}

double ServingSimulation::output_tokens_per_s() const {
  if (requests.empty() || end_s <= requests.front().asked.arrival_s) return 0;
  return static_cast<double>(stats.num_output_tokens) / (end_s - requests.front().asked.arrival_s);
}

double ServingSimulation::hit_rate() const {
  if (stats.num_prompt_tokens == 0) return 0;
  return static_cast<double>(stats.num_cached_tokens) /
         static_cast<double>(stats.num_prompt_tokens);
}

ServingSimulation simulate_serving(std::span<const TraceRequest> trace, const EngineOptions& engine,
                                   const StepCost& step_us) {
  for (std::size_t i = 0; i < trace.size(); ++i) {
    check_request(trace[i], i == 0 ? 0 : trace[i - 1].arrival_s,
                  fmt::format("trace, request {}", i));
  }
  return Simulation(trace, engine).run(step_us);
}

}  // namespace contextile
