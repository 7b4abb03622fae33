// Continuous batching: requests come and go between steps, every step computes what the cache has
// room for.
//
//   // rank: a DecoderRank of every rank
//   Engine engine(rank, config, {.cache = {.layout = layout, .num_pages = 1000}});
//   engine.submit({.id = RequestId(1), .prompt = prompt, .max_tokens = 64});
//   while (!engine.idle()) {
//     for (const EngineEvent& event : engine.step()) {}
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/transport.h"
#include "contextile/serving/decoder_model.h"
#include "contextile/serving/kv_cache.h"

namespace contextile {

// How a token is chosen of its logits. The choice depends on the logits, these and the number of
// the token alone.
struct SamplingParams {
  double temperature = 0;  // 0: the likeliest
  double top_p = 1;        // of the likeliest tokens whose probabilities reach this together
  std::int32_t top_k = 0;  // of the k likeliest; 0: of all
  std::uint64_t seed = 0;
};

struct GenerationRequest {
  RequestId id;
  std::vector<std::int32_t> prompt;
  std::int32_t max_tokens = 16;
  SamplingParams sampling;
  std::vector<std::int32_t>
      stop_tokens;  // each ends the request and is given out as its last token
};

enum class FinishReason : std::uint8_t { kStop, kLength };
[[nodiscard]] std::string_view to_string(FinishReason reason);  // "stop", "length"

// A token of a request.
struct EngineEvent {
  RequestId request;
  std::int32_t token = 0;
  float logprob = 0;                   // of the token among all, natural logarithm
  std::int64_t cached_tokens = 0;      // of its prompt, that were there when it first began
  std::optional<FinishReason> finish;  // it is the last
  std::string failure = {};            // not empty: none could be chosen, and the request has ended
};

struct EngineOptions {
  KvCacheOptions cache;
  std::int32_t max_running = 64;       // requests that have pages
  std::int32_t max_step_tokens = 512;  // of all requests; longer prompts are computed in chunks
  std::int32_t max_waiting = 1024;     // requests; more are refused
};

// Since construction.
struct EngineStats {
  std::int64_t num_steps = 0;
  std::int64_t num_prompt_tokens = 0;    // of requests that have begun
  std::int64_t num_cached_tokens = 0;    // of these, found in the cache
  std::int64_t num_computed_tokens = 0;  // prompts' and outputs', those computed again included
  std::int64_t num_output_tokens = 0;
  std::int64_t num_preemptions = 0;
};

// The tokens of a request that a step computes.
struct ScheduledTokens {
  RequestId request;
  Range tokens;              // of prompt and output
  bool needs_logits = true;  // nothing of the request is left to be computed
};

// Which tokens are computed when: first come, first served. Requests that run get their tokens in
// the order they came; where pages are short, the one that came last gives its pages back and
// waits, to begin again with what it has given out so far. So the first always ends. Decides by
// what it was told alone: equal on all ranks.
class Scheduler {
 public:
  // max_length: tokens of a request, its output included.
  Scheduler(const EngineOptions& options, std::int64_t max_length);
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  // False: max_waiting wait already besides those that can begin at once, and nothing has changed. Throws InvalidArgument on a request
  // that can never be served: without prompt, too long for the model or the cache, or with wrong
  // parameters.
  [[nodiscard]] bool submit(GenerationRequest request);
  // Forgets a request; whether there was one.
  bool cancel(RequestId request);
  // What is to be computed now; its tokens have their places in the cache. Empty: nothing waits. At
  // most max_step_tokens.
  [[nodiscard]] std::vector<ScheduledTokens> next();
  // The token that follows a request whose logits a step gave.
  EngineEvent take(RequestId request, std::int32_t token, float logprob);

  [[nodiscard]] const GenerationRequest& request(RequestId request) const;
  // Prompt and output of a request.
  [[nodiscard]] std::span<const std::int32_t> tokens(RequestId request) const;
  // Whether a request is under way and tokens of it have been computed.
  [[nodiscard]] bool has_begun(RequestId request) const;
  [[nodiscard]] bool idle() const;
  [[nodiscard]] std::int32_t num_running() const;
  [[nodiscard]] std::int32_t num_waiting() const;
  [[nodiscard]] const EngineStats& stats() const;
  [[nodiscard]] KvCache& cache();
  [[nodiscard]] const KvCache& cache() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The token that is chosen of a row of logits, as the `number`-th of its request, and the logarithm
// of its probability at temperature 1.
struct SampledToken {
  std::int32_t token = 0;
  float logprob = 0;
};
// Throws InvalidArgument where no logit is a number.
[[nodiscard]] SampledToken sample(std::span<const float> logits, const SamplingParams& params,
                                  std::int64_t number);
// Throws InvalidArgument on parameters out of range.
void check_sampling(const SamplingParams& params);

// Scheduler, cache, model and sampling of one rank. Collective: every rank makes the same calls in
// the same order, and all come to the same tokens.
class Engine {
 public:
  // The model's pages are those of the cache.
  Engine(DecoderRank& model, const DecoderConfig& config, const EngineOptions& options);

  [[nodiscard]] bool submit(GenerationRequest request) {
    return scheduler_.submit(std::move(request));
  }
  bool cancel(RequestId request) { return scheduler_.cancel(request); }
  [[nodiscard]] bool idle() const { return scheduler_.idle(); }
  // One step of all that fits, and the tokens it gave.
  [[nodiscard]] std::vector<EngineEvent> step();
  // What tables and tokens come to: ranks that differ in it have gone apart.
  [[nodiscard]] std::uint64_t digest() const { return scheduler_.cache().digest(); }
  [[nodiscard]] const Scheduler& scheduler() const { return scheduler_; }

 private:
  DecoderRank& model_;
  Scheduler scheduler_;
};

// ------------------------------------------------------------------------------------- engine rank
//
// Engines of a group in step with each other: what the first rank is told, all do.

// What comes to a group between two steps.
struct EngineInput {
  std::vector<GenerationRequest> arrivals;
  std::vector<RequestId> cancelled;
  bool stop = false;  // no further step
};

// A request that was not taken.
struct EngineRejection {
  RequestId request;
  std::string reason;
  bool is_full = false;  // too many wait; it may be tried again
};

struct EngineOutput {
  std::vector<EngineEvent> events;
  std::vector<EngineRejection> rejections;
  bool stopped = false;
};

// One rank. The first rank's input is sent to all, every rank makes one step; ranks whose tables
// differ are found before the next.
class EngineRank {
 public:
  EngineRank(Transport& transport, Engine& engine) : transport_(transport), engine_(engine) {}

  // Collective. Of other ranks than the first, `input` is not looked at. A rank that waits for the
  // first must hear of it before its transport's timeout: one with nothing to do calls, too. Throws
  // TransportError, and InvalidArgument where ranks have gone apart.
  EngineOutput advance(const EngineInput& input = {});

 private:
  [[nodiscard]] EngineInput share(const EngineInput& input);

  Transport& transport_;
  Engine& engine_;
};

// A setting that the ranks of a group must have in common.
struct EngineSetting {
  std::string name;
  std::string value;
};

// Collective, before the first step. Throws InvalidArgument on all ranks, with the same words, where
// a setting differs between two ranks: "serve: expected the same page size on all ranks, found 16 on
// rank 0 and 32 on rank 2". Returns a number that rank 0 drew, the same on all ranks: it tells this
// group from an earlier one of the same name.
std::uint64_t agree_on_engine(Transport& transport, std::span<const EngineSetting> settings);

// An input as bytes, and back. Throws InvalidArgument on bytes that are none.
[[nodiscard]] std::vector<std::byte> encode(const EngineInput& input);
[[nodiscard]] EngineInput decode_engine_input(std::span<const std::byte> bytes);

}  // namespace contextile
