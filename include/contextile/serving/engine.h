// Continuous batching: requests come and go between steps, and every step computes as much as the
// cache has room for.
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
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/transport.h"
#include "contextile/serving/decoder_model.h"
#include "contextile/serving/kv_cache.h"

namespace contextile {

// An addition to the logit of a token.
struct TokenBias {
  std::int32_t token = 0;
  float bias = 0;

  friend bool operator==(const TokenBias&, const TokenBias&) = default;
};

// How a token is chosen from its logits. The choice depends only on the logits, these parameters,
// the number of the token and, with penalties, the tokens before it.
struct SamplingParams {
  double temperature = 0;  // 0: the likeliest token
  double top_p = 1;  // choose among the likeliest tokens whose probabilities together reach this
  std::int32_t top_k = 0;  // choose among the k likeliest; 0: among all
  std::uint64_t seed = 0;
  double min_p = 0;  // choose among tokens that are at least min_p times as likely as the likeliest
  // Logits of tokens that occur in prompt or output are divided by this if they are positive, and
  // multiplied by it if they are negative.
  double repetition_penalty = 1;
  // Logits of tokens that occur in the output are reduced by these: once, and for each occurrence.
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<TokenBias> logit_bias = {};  // of different tokens; applied before the penalties
};

struct GenerationRequest {
  static constexpr std::int32_t kMostLogprobs = 20;

  RequestId id;
  std::vector<std::int32_t> prompt;
  std::int32_t max_tokens = 16;  // 0: the prompt is computed, and nothing is chosen
  SamplingParams sampling;
  std::vector<std::int32_t> stop_tokens;  // each ends the request and is returned as its last token
  std::int32_t num_logprobs = 0;  // likeliest tokens that come with each token, up to kMostLogprobs
  bool scores_prompt = false;     // the first event has log-probabilities of the prompt's tokens
  bool is_guided = false;  // each token is one of those that Engine::allow gave for it; no drafts
};

// A set of tokens: token t is bit t % 32 of word t / 32, and tokens beyond the words are not in it.
using TokenSet = std::vector<std::uint32_t>;

enum class FinishReason : std::uint8_t { kStop, kLength };
[[nodiscard]] std::string_view to_string(FinishReason reason);  // "stop", "length"

// A token and the natural logarithm of its probability at temperature 1, without penalties or bias.
struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;

  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

// The log-probabilities of the tokens of a prompt of n tokens, given those before them.
struct PromptLogprobs {
  std::vector<float> tokens;      // [n - 1], of all but the first
  std::vector<TokenLogprob> top;  // [n - 1, num_logprobs], the likeliest first; kNoToken: no more
};

// A token that a step produced for a request.
struct EngineEvent {
  static constexpr std::int32_t kNoToken = -1;

  RequestId request;
  std::int32_t token = 0;              // kNoToken: of a request without output
  float logprob = 0;                   // of the token among all, natural logarithm
  std::int64_t cached_tokens = 0;      // tokens of its prompt that were cached when it first began
  std::optional<FinishReason> finish;  // set: this token is the last
  std::string failure = {};  // not empty: no token could be chosen, and the request has ended
  std::vector<TokenLogprob> top = {};  // the request's num_logprobs likeliest, the likeliest first
  PromptLogprobs prompt = {};          // of the first event of a request that scores its prompt
};

inline constexpr std::int32_t kDefaultDrafts = 4;  // where drafts are asked for without a number

// Speculative decoding: drafts of a request's next tokens are computed together with its next
// token. A draft is kept if it is the token that is chosen without it, so the tokens are the same,
// and a step gives up to 1 + num_tokens of them. Drafts are looked up: where a request had its last
// tokens before, the tokens that followed are drafts. Or a smaller model chooses them (DraftModel).
// Source: "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192), and
// prompt lookup decoding; the names are vLLM's.
struct Speculation {
  std::int32_t num_tokens = 0;  // most drafts of a request and step; 0: none
  bool from_model = false;      // drafts come from Scheduler::draft; the Engine sets this
  // The numbers of last tokens that are looked up, the most first.
  std::int32_t prompt_lookup_max = 4;
  std::int32_t prompt_lookup_min = 2;

  friend bool operator==(const Speculation&, const Speculation&) = default;
};
// Throws InvalidArgument on negative numbers of drafts, and on lookups below 1 or of which the most
// are fewer than the least.
void check_speculation(const Speculation& speculation);
// Returns at most `most` drafts that follow the tokens: those behind the latest earlier place with
// the longest run of equal tokens up to it. Time is linear in the number of tokens.
[[nodiscard]] std::vector<std::int32_t> lookup_drafts(std::span<const std::int32_t> tokens,
                                                      const Speculation& speculation,
                                                      std::int64_t most);

// A smaller model that chooses drafts, from its own logits by the parameters, seed and number of
// the token that they stand for. Its keys have the places in its pages that the model's have in
// theirs, so both have as many pages, of one layout, and tables, hits and rejections hold for both.
struct DraftModel {
  DecoderRank* rank = nullptr;  // outlives the engine; its layout and pages are those of the cache
  DecoderConfig config = {};    // has the model's vocabulary
};
// Throws InvalidArgument, which begins with `where`, if a draft model has another vocabulary than
// the model or the ranks of `part` cannot compute it.
void check_draft_config(std::string_view where, const DecoderConfig& config,
                        const DecoderConfig& draft, const DecoderPart& part);

struct EngineOptions {
  KvCacheOptions cache;
  std::int32_t max_running = 64;       // requests that have pages
  std::int32_t max_step_tokens = 512;  // of all requests; longer prompts are computed in chunks
  std::int32_t max_waiting = 1024;     // requests; more are refused
  // While requests decode, prompts get so many tokens in a step that it takes about `pace` times
  // one without prompts, as far as earlier steps tell. 0: prompts get all tokens of a step.
  double pace = 3;
  // Tokens of a step whose log-probabilities are computed for GenerationRequest::scores_prompt. An
  // engine takes fewer where their logits are more than 64 MiB.
  std::int32_t max_scored_tokens = 512;
  Speculation speculation = {};  // drafts take at most half of max_step_tokens
};

// Returns the most tokens of prompt and output that a request may have: the model's limit of
// `max_length`, or what the cache has room for. With a window (KvCacheOptions) a small cache has
// room for any length.
[[nodiscard]] std::int64_t longest_request(const EngineOptions& options, std::int64_t max_length);

// The time that prompts may take in a step in which others decode.
struct StepLimit {
  static constexpr std::int64_t kLeast = 4;  // tokens that prompts get in any case
  static constexpr std::int64_t kUnlimited = std::int64_t{1} << 40;

  double prompts_s = std::numeric_limits<double>::infinity();
  double token_s = 0;  // time of a token of a prompt
  double pair_s = 0;   // of such a token and one before it, in addition

  // Returns the number of tokens that take this time together if `position` others of their request
  // are before them; at least kLeast.
  [[nodiscard]] std::int64_t tokens(std::int64_t position) const;

  friend bool operator==(const StepLimit&, const StepLimit&) = default;
};

// Counts since construction.
struct EngineStats {
  std::int64_t num_steps = 0;
  std::int64_t num_prompt_tokens = 0;    // of requests that have begun
  std::int64_t num_cached_tokens = 0;    // those of them that were found in the cache
  std::int64_t num_computed_tokens = 0;  // prompts', outputs' and drafts, including those computed
                                         // again
  std::int64_t num_output_tokens = 0;
  std::int64_t num_preemptions = 0;
  std::int64_t num_draft_tokens = 0;     // drafts that were computed
  std::int64_t num_accepted_tokens = 0;  // those of them that were given out
};

// The tokens of a request that a step computes.
struct ScheduledTokens {
  RequestId request;
  Range tokens;              // of prompt and output
  bool needs_logits = true;  // nothing of the request remains to be computed
  // The number of its last tokens, drafts included, whose logits are needed. It is 1 and the number
  // of drafts if needs_logits, and all if they are scored.
  std::int64_t num_logits = 1;
  // Computed behind these. Logits are needed after the last token and after each draft, as long as
  // drafts are the tokens that were taken.
  std::vector<std::int32_t> drafts = {};
  std::int64_t may_draft = 0;  // most tokens that Scheduler::draft may add to them
};

// Decides which tokens are computed when: first come, first served. Running requests get their
// tokens in the order in which they came. If pages are short, the request that came last frees its
// pages and waits, to begin again with the output it has so far. So the first request always ends.
// The scheduler depends on its calls alone, so it is equal on all ranks.
class Scheduler {
 public:
  // max_length: tokens of a request, its output included.
  Scheduler(const EngineOptions& options, std::int64_t max_length);
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  // Takes a request. Returns false if max_waiting requests wait already, in addition to those that
  // can begin at once; then nothing has changed. Throws InvalidArgument on a request that can never
  // be served: one without a prompt, too long for the model or the cache, or with wrong parameters.
  [[nodiscard]] bool submit(GenerationRequest request);
  // Forgets a request. Returns true if there was one.
  bool cancel(RequestId request);
  // Returns the tokens to compute now, at most max_step_tokens; they have places in the cache. The
  // limit holds for prompts if other requests decode. Empty: nothing waits.
  [[nodiscard]] std::vector<ScheduledTokens> next(const StepLimit& limit = {});
  // Adds a draft to a part of the latest step, of those that it may have. Returns false if no page
  // is free for it; then nothing has changed.
  [[nodiscard]] bool draft(ScheduledTokens& part, std::int32_t token);
  // Takes the next token of a request whose logits a step computed. If it is the first draft that
  // is left, the next token may be taken, too; else all drafts are forgotten.
  EngineEvent take(RequestId request, std::int32_t token, float logprob);
  // Ends a request whose max_tokens is 0.
  EngineEvent end(RequestId request);

  [[nodiscard]] const GenerationRequest& request(RequestId request) const;
  // Returns the prompt and output of a request.
  [[nodiscard]] std::span<const std::int32_t> tokens(RequestId request) const;
  // Returns true if a request is in progress.
  [[nodiscard]] bool has(RequestId request) const;
  // Returns true if a request is in progress and tokens of it have been computed.
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

// The log-probabilities of all tokens by a row of logits, which must outlive this object.
class TokenLogprobs {
 public:
  // Throws InvalidArgument if no logit is a number, or one is NaN or +inf.
  explicit TokenLogprobs(std::span<const float> logits);

  [[nodiscard]] float of(std::int32_t token) const;
  // Returns the `count` likeliest tokens, the likeliest first, and equally likely ones by id.
  [[nodiscard]] std::vector<TokenLogprob> likeliest(std::int32_t count) const;

 private:
  std::span<const float> logits_;
  double log_total_ = 0;
};

using SampledToken = TokenLogprob;
// Chooses the `number`-th token of a request from its logits, without penalties and bias. Throws as
// TokenLogprobs does.
[[nodiscard]] SampledToken sample(std::span<const float> logits, const SamplingParams& params,
                                  std::int64_t number);
// Returns the logits after bias and penalties. `tokens` are those of the prompt and, from
// `num_prompt` on, of the output so far. Throws InvalidArgument if a bias is of no token.
[[nodiscard]] std::vector<float> penalized(std::span<const float> logits,
                                           const SamplingParams& params,
                                           std::span<const std::int32_t> tokens,
                                           std::size_t num_prompt);
// Returns the logits, -inf where a token is not in the set. Throws InvalidArgument if none is.
[[nodiscard]] std::vector<float> only(std::span<const float> logits, const TokenSet& tokens);
// Returns true if penalized() changes logits.
[[nodiscard]] bool has_penalties(const SamplingParams& params);
// Throws InvalidArgument on parameters out of range.
void check_sampling(const SamplingParams& params);

// The scheduler, cache, model and sampling of one rank. Collective: every rank makes the same calls
// in the same order, and all get the same tokens.
class Engine {
 public:
  // The model's pages must be those of the cache. The cache's window is that of the model
  // (cache_window). With a draft model, it is that of both, and drafts are not looked up. Throws
  // InvalidArgument if the draft model has another vocabulary, or if it may give no drafts.
  Engine(DecoderRank& model, const DecoderConfig& config, const EngineOptions& options,
         const DraftModel& draft = {});

  [[nodiscard]] bool submit(GenerationRequest request) {
    return scheduler_.submit(std::move(request));
  }
  bool cancel(RequestId request);
  // Gives the tokens of which the next one of a guided request is chosen, before the step that
  // chooses it: else the request fails. Returns false if there is no such request.
  bool allow(RequestId request, TokenSet tokens);
  [[nodiscard]] bool idle() const { return scheduler_.idle(); }
  ~Engine();

  // Computes one step of all tokens that fit, and returns the tokens it produced.
  [[nodiscard]] std::vector<EngineEvent> step(const StepLimit& limit = {});
  // Returns the limit for the next step by the times of this rank's steps. Ranks must use the limit
  // of one of them.
  [[nodiscard]] StepLimit limit() const;
  // Digest of the tables and tokens: ranks whose digests differ have diverged.
  [[nodiscard]] std::uint64_t digest() const { return scheduler_.cache().digest(); }
  [[nodiscard]] const Scheduler& scheduler() const { return scheduler_; }

 private:
  // Scores the prompt's tokens of a part, and chooses tokens if nothing else remains to be
  // computed. `rows` are the part's logits.
  void take_tokens(const ScheduledTokens& part, std::span<const float> rows, std::size_t width,
                   std::vector<EngineEvent>& events);

  // Throws InvalidArgument if none were given since the last token.
  [[nodiscard]] TokenSet take_allowed(RequestId request);

  DecoderRank& model_;
  Scheduler scheduler_;
  std::unique_ptr<class ModelDrafts> drafts_;   // empty without a draft model
  std::map<RequestId, PromptLogprobs> scores_;  // of prompts that are being computed
  std::map<RequestId, TokenSet> allowed_;       // next tokens of guided requests
  double pace_;
  std::unique_ptr<class StepTimes> times_;
};

// ------------------------------------------------------------------------------------- engine rank
//
// Engines of a group in lockstep: all ranks apply the input of the first rank.

// The input of a group between two steps.
struct EngineInput {
  std::vector<GenerationRequest> arrivals;
  std::vector<RequestId> cancelled;
  std::vector<std::pair<RequestId, TokenSet>> allowed;  // Engine::allow
  bool stop = false;                                    // no further step
  StepLimit limit;  // of the step; set by the first rank's EngineRank
};

// A request that was rejected.
struct EngineRejection {
  RequestId request;
  std::string reason;
  bool is_full = false;  // too many requests wait; it may be tried again
};

struct EngineOutput {
  std::vector<EngineEvent> events;
  std::vector<EngineRejection> rejections;
  bool stopped = false;
};

// One rank of a group of engines. The first rank's input is sent to all, and every rank makes one
// step. Ranks whose tables differ are detected before the next step.
class EngineRank {
 public:
  EngineRank(Transport& transport, Engine& engine) : transport_(transport), engine_(engine) {}

  // Collective. On ranks other than the first, `input` is ignored. A rank that waits for the first
  // must hear from it before its transport's timeout, so call this even if there is nothing to do.
  // Throws TransportError, and InvalidArgument if ranks have diverged.
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

// Collective, before the first step. Throws InvalidArgument on all ranks, with the same words,
// where a setting differs between two ranks: "serve: expected the same page size on all ranks,
// found 16 on rank 0 and 32 on rank 2". Returns a number that rank 0 drew, the same on all ranks:
// it tells this group from an earlier one of the same name.
std::uint64_t agree_on_engine(Transport& transport, std::span<const EngineSetting> settings);

// Converts an input to bytes, and back. Throws InvalidArgument on bytes that encode no input.
[[nodiscard]] std::vector<std::byte> encode(const EngineInput& input);
[[nodiscard]] EngineInput decode_engine_input(std::span<const std::byte> bytes);

}  // namespace contextile
