// contextile/serving/engine.h: a rank of the engine that serves a model, driven by one thread and
// given requests by others.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bind.h"
#include "contextile/serving/engine.h"

namespace contextile::python {
namespace {

// The options that `contextile serve` has under the same names.
struct RankOptions {
  std::int64_t kv_tokens = 65'536;
  std::int32_t page_size = 16;
  std::int32_t interleave = 1;
  std::string kv_dtype = "f32";
  std::string mode = "auto";
  std::string wire = "f32";
  std::int32_t hop_b_groups = 1;
  std::string hop_b = "attention";
  std::int32_t max_running = 64;
  std::int32_t max_waiting = 1024;
  std::int32_t step_tokens = 512;
  double pace = 3;
  bool share_prefixes = true;
  std::optional<std::int32_t> tensor_parallel;
  std::optional<std::int32_t> context_parallel;
  std::optional<std::int32_t> decode_context_parallel;
  std::string prefill = "auto";
  std::optional<std::int64_t> prefill_tokens;
  std::string draft_model = {};  // empty: none
  std::optional<std::int32_t> draft_tokens;
};

KvDtype kv_dtype_of(const std::string& name) {
  for (const KvDtype dtype : {KvDtype::kF32, KvDtype::kBf16, KvDtype::kF16}) {
    if (name == to_string(dtype)) return dtype;
  }
  fail("kv_dtype: expected f32, bf16 or f16, found '" + name + "'");
}

Dtype wire_of(const std::string& name) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    if (name == to_string(dtype)) return dtype;
  }
  fail("wire: expected f32, bf16 or f16, found '" + name + "'");
}

DecoderPart part_of(const RankOptions& options, std::int32_t num_ranks) {
  DecoderPart part;
  part.num_ranks = num_ranks;
  const auto& [tensor, context, decode] =
      std::tie(options.tensor_parallel, options.context_parallel, options.decode_context_parallel);
  if (!tensor && !context && !decode) return part;
  for (const auto& count : {tensor, context, decode}) {
    if (count && *count < 1) fail("parallel ranks: expected at least 1");
  }
  part.context_parallel =
      context.value_or(tensor && num_ranks % *tensor == 0 ? num_ranks / *tensor : 1);
  const std::int32_t tensor_ranks = tensor.value_or(num_ranks / part.context_parallel);
  if (std::int64_t{tensor_ranks} * part.context_parallel != num_ranks) {
    fail("tensor_parallel x context_parallel: expected the group's " + std::to_string(num_ranks) +
         " ranks, found " + std::to_string(tensor_ranks) + " x " +
         std::to_string(part.context_parallel));
  }
  if (part.context_parallel > 1) {
    if (decode.value_or(1) != 1) fail("decode_context_parallel: expected 1 with context_parallel");
    part.kv_ranks = part.context_parallel;
    return part;
  }
  part.kv_ranks = decode.value_or(1);
  if (num_ranks % part.kv_ranks != 0) {
    fail("decode_context_parallel: expected a divisor of " + std::to_string(num_ranks) +
         ", found " + std::to_string(part.kv_ranks));
  }
  return part;
}

PrefillPolicy prefill_of(const RankOptions& options, const DecoderPart& part) {
  PrefillPolicy policy;
  if (part.context_parallel == 1 && (options.prefill_tokens || options.prefill != "auto")) {
    fail("prefill, prefill_tokens: expected with context_parallel above 1, found them with 1");
  }
  if (options.prefill == "off" && options.prefill_tokens) {
    fail("prefill_tokens: expected without prefill 'off', which shares no prompts");
  }
  if (options.prefill_tokens.value_or(1) < 1) fail("prefill_tokens: expected at least 1");
  policy.min_tokens = options.prefill == "off" ? std::numeric_limits<std::int64_t>::max()
                                               : options.prefill_tokens.value_or(policy.min_tokens);
  if (options.prefill != "auto" && options.prefill != "off") {
    policy.mode = parse_prefill_mode(options.prefill);
  }
  return policy;
}

using Metrics = std::vector<std::pair<std::string, std::int64_t>>;

// One rank. A single thread makes it and calls advance; the other calls may come from any thread.
class ServingEngine {
 public:
  ServingEngine(std::shared_ptr<Transport> transport, const std::string& model,
                const RankOptions& options)
      : transport_(std::move(transport)), config_(read_decoder_config(model)) {
    const DecoderPart part = part_of(options, transport_->size());
    check_decoder_part(config_, part);
    EngineOptions engine = engine_options(options, part);
    max_length_ =
        std::min(config_.max_length, engine.cache.num_pages * engine.cache.layout.block_tokens());
    DraftModel draft = draft_of(options, part);
    static_cast<void>(agree_on_engine(*transport_, settings_of(model, options)));
    load(model, config_, options, engine, part, decoder_);
    if (!options.draft_model.empty()) {
      try {
        load(options.draft_model, draft.config, options, engine, part, draft_);
      } catch (const InvalidArgument& error) {
        fail(std::string("draft_model: ") + error.what());
      }
      draft.rank = &*draft_;
    }
    engine_.emplace(*decoder_, config_, engine, draft);
    rank_.emplace(*transport_, *engine_);
  }

  [[nodiscard]] const DecoderConfig& config() const { return config_; }
  [[nodiscard]] std::int64_t max_length() const { return max_length_; }

  [[nodiscard]] std::int32_t submit(GenerationRequest request, std::optional<TokenSet> allowed) {
    const std::lock_guard lock(mutex_);
    request.id = RequestId(next_id_);
    request.is_guided = allowed.has_value();
    if (allowed) input_.allowed.emplace_back(request.id, *std::move(allowed));
    next_id_ = next_id_ == std::numeric_limits<std::int32_t>::max() ? 0 : next_id_ + 1;
    input_.arrivals.push_back(std::move(request));
    changed_.notify_one();
    return input_.arrivals.back().id.value;
  }
  void allow(std::int32_t request, TokenSet tokens) {
    const std::lock_guard lock(mutex_);
    input_.allowed.emplace_back(request, std::move(tokens));
  }
  void cancel(std::int32_t request) {
    const std::lock_guard lock(mutex_);
    input_.cancelled.emplace_back(request);
    changed_.notify_one();
  }
  void stop() {
    const std::lock_guard lock(mutex_);
    input_.stop = true;
    changed_.notify_one();
  }

  // Makes a step of all ranks. On the first rank, waits that long if there is nothing to do.
  [[nodiscard]] EngineOutput advance(double patience_s) {
    const auto patience = milliseconds_of(patience_s, "patience");
    EngineInput input;
    if (transport_->rank().value == 0) {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, patience, [this] {
        return !engine_->idle() || input_.stop || !input_.arrivals.empty() ||
               !input_.cancelled.empty();
      });
      input = std::exchange(input_, {});
    }
    // Ranks forget cancelled requests before they take new ones.
    std::erase_if(input.arrivals, [&](const GenerationRequest& request) {
      return std::ranges::find(input.cancelled, request.id) != input.cancelled.end();
    });
    EngineOutput output = rank_->advance(input);
    const std::lock_guard lock(mutex_);
    const Scheduler& scheduler = engine_->scheduler();
    metrics_ = {{"requests_running", scheduler.num_running()},
                {"requests_waiting", scheduler.num_waiting()},
                {"kv_pages_free", scheduler.cache().free_pages()},
                {"steps_total", scheduler.stats().num_steps},
                {"prompt_tokens_total", scheduler.stats().num_prompt_tokens},
                {"cached_tokens_total", scheduler.stats().num_cached_tokens},
                {"computed_tokens_total", scheduler.stats().num_computed_tokens},
                {"output_tokens_total", scheduler.stats().num_output_tokens},
                {"preemptions_total", scheduler.stats().num_preemptions},
                {"draft_tokens_total", scheduler.stats().num_draft_tokens},
                {"accepted_draft_tokens_total", scheduler.stats().num_accepted_tokens}};
    return output;
  }
  [[nodiscard]] Metrics metrics() {
    const std::lock_guard lock(mutex_);
    return metrics_;
  }

 private:
  static EngineOptions engine_options(const RankOptions& options, const DecoderPart& part) {
    if (options.kv_tokens < 1) fail("kv_tokens: expected at least 1");
    EngineOptions engine;
    engine.cache.layout = {part.token_ranks(), options.interleave, options.page_size};
    check_kv_layout(engine.cache.layout);
    const std::int64_t pages = engine.cache.layout.num_blocks(options.kv_tokens);
    if (pages > std::numeric_limits<std::int32_t>::max()) fail("kv_tokens: expected fewer pages");
    engine.cache.num_pages = static_cast<std::int32_t>(pages);
    engine.cache.share_prefixes = options.share_prefixes;
    engine.max_running = options.max_running;
    engine.max_waiting = options.max_waiting;
    engine.max_step_tokens = options.step_tokens;
    engine.pace = options.pace;
    if (!options.draft_model.empty()) {
      engine.speculation.num_tokens = options.draft_tokens.value_or(kDefaultDrafts);
    }
    return engine;
  }

  // The draft model, not yet loaded. The ranks of the model must be able to compute it.
  [[nodiscard]] DraftModel draft_of(const RankOptions& options, const DecoderPart& part) const {
    if (options.draft_model.empty()) {
      if (options.draft_tokens) fail("draft_tokens: expected with draft_model, found them alone");
      return {};
    }
    if (options.draft_tokens.value_or(1) < 1) fail("draft_tokens: expected at least 1");
    const DraftModel draft = {nullptr, read_decoder_config(options.draft_model)};
    check_draft_config("draft_model", config_, draft.config, part);
    return draft;
  }

  // Loads this rank's part of a model. Only the model itself must have heads for a given mode.
  void load(const std::string& folder, const DecoderConfig& config, const RankOptions& options,
            const EngineOptions& engine, DecoderPart part, std::optional<DecoderRank>& rank) {
    DecoderOptions decoder;
    decoder.layout = engine.cache.layout;
    decoder.num_pages = engine.cache.num_pages;
    decoder.kv_dtype = kv_dtype_of(options.kv_dtype);
    decoder.wire = wire_of(options.wire);
    decoder.hop_b = parse_hop_b(options.hop_b);
    decoder.hop_b_groups = options.hop_b_groups;
    decoder.prefill = prefill_of(options, part);
    const bool divides = config.q_heads % part.num_ranks == 0;
    const bool is_given = options.mode != "auto" && (divides || &rank == &decoder_);
    decoder.mode = is_given  ? parse_decode_mode(options.mode)
                   : divides ? DecodeMode::kA2a
                             : DecodeMode::kQReplicated;
    part.all_queries = decoder.mode == DecodeMode::kQReplicated;
    part.rank = transport_->rank();
    rank.emplace(*transport_, config, load_weights(folder, config, part), decoder);
  }

  static std::vector<EngineSetting> settings_of(const std::string& model,
                                                const RankOptions& options) {
    const auto text = [](const auto& number) {
      return number ? std::to_string(*number) : std::string("none");
    };
    return {{"weights", std::to_string(weights_digest(model))},
            {"kv_tokens", std::to_string(options.kv_tokens)},
            {"page_size", std::to_string(options.page_size)},
            {"interleave", std::to_string(options.interleave)},
            {"kv_dtype", options.kv_dtype},
            {"mode", options.mode},
            {"wire", options.wire},
            {"hop_b", options.hop_b},
            {"hop_b_groups", std::to_string(options.hop_b_groups)},
            {"max_running", std::to_string(options.max_running)},
            {"max_waiting", std::to_string(options.max_waiting)},
            {"step_tokens", std::to_string(options.step_tokens)},
            {"pace", std::to_string(options.pace)},
            {"share_prefixes", options.share_prefixes ? "on" : "off"},
            {"tensor_parallel", text(options.tensor_parallel)},
            {"context_parallel", text(options.context_parallel)},
            {"decode_context_parallel", text(options.decode_context_parallel)},
            {"prefill", options.prefill},
            {"prefill_tokens", text(options.prefill_tokens)},
            {"draft_model", options.draft_model.empty()
                                ? "none"
                                : std::to_string(weights_digest(options.draft_model))},
            {"draft_tokens", text(options.draft_tokens)}};
  }

  std::shared_ptr<Transport> transport_;
  DecoderConfig config_;
  std::int64_t max_length_ = 0;
  std::optional<DecoderRank> decoder_;
  std::optional<DecoderRank> draft_;
  std::optional<Engine> engine_;
  std::optional<EngineRank> rank_;

  std::mutex mutex_;
  std::condition_variable changed_;
  EngineInput input_;  // not yet taken
  Metrics metrics_;
  std::int32_t next_id_ = 0;
};

// A bit for each token, in bytes, the least significant first.
TokenSet token_set_of(const nb::bytes& bits) {
  TokenSet tokens((bits.size() + 3) / 4);
  const auto bytes = span_of(bits);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    tokens[i / 4] |= std::uint32_t{bytes[i]} << (8 * (i % 4));
  }
  return tokens;
}

using Pairs = std::vector<std::pair<std::int32_t, float>>;

Pairs pairs_of(const std::vector<TokenLogprob>& tokens) {
  Pairs pairs;
  for (const TokenLogprob& its : tokens) pairs.emplace_back(its.token, its.logprob);
  return pairs;
}

void bind_events(nb::module_& module) {
  nb::class_<EngineEvent>(module, "EngineEvent", "A token that a step chose for a request.")
      .def_prop_ro("request", [](const EngineEvent& self) { return self.request.value; })
      .def_ro("token", &EngineEvent::token, "-1: of a request without output.")
      .def_ro("logprob", &EngineEvent::logprob)
      .def_ro("cached_tokens", &EngineEvent::cached_tokens)
      .def_ro("failure", &EngineEvent::failure, "Not empty: the request has ended without a token.")
      .def_prop_ro(
          "finish",
          [](const EngineEvent& self) {
            return self.finish ? std::optional(std::string(to_string(*self.finish))) : std::nullopt;
          },
          "'stop' or 'length' with the last token, else None.")
      .def_prop_ro(
          "top", [](const EngineEvent& self) { return pairs_of(self.top); },
          "Pairs of the likeliest tokens and their logprobs.")
      .def_prop_ro(
          "prompt_logprobs", [](const EngineEvent& self) { return self.prompt.tokens; },
          "Of all tokens of the prompt but the first, if the request asked.")
      .def_prop_ro(
          "prompt_top", [](const EngineEvent& self) { return pairs_of(self.prompt.top); },
          "The likeliest tokens at the places of prompt_logprobs, num_logprobs each.");
  nb::class_<EngineRejection>(module, "EngineRejection", "A request that was not taken.")
      .def_prop_ro("request", [](const EngineRejection& self) { return self.request.value; })
      .def_ro("reason", &EngineRejection::reason)
      .def_ro("is_full", &EngineRejection::is_full, "Too many requests wait; try again.");
}

void make_engine(ServingEngine* self, std::shared_ptr<Transport> transport, const Path& model,
                 std::int64_t kv_tokens, std::int32_t page_size, std::int32_t interleave,
                 const std::string& kv_dtype, const std::string& mode, const std::string& wire,
                 std::int32_t hop_b_groups, const std::string& hop_b, std::int32_t max_running,
                 std::int32_t max_waiting, std::int32_t step_tokens, double pace,
                 bool share_prefixes, std::optional<std::int32_t> tensor_parallel,
                 std::optional<std::int32_t> context_parallel,
                 std::optional<std::int32_t> decode_context_parallel, const std::string& prefill,
                 std::optional<std::int64_t> prefill_tokens, const std::optional<Path>& draft_model,
                 std::optional<std::int32_t> draft_tokens) {
  const WithoutGil release;
  new (self) ServingEngine(std::move(transport), model.string(),
                           {kv_tokens,
                            page_size,
                            interleave,
                            kv_dtype,
                            mode,
                            wire,
                            hop_b_groups,
                            hop_b,
                            max_running,
                            max_waiting,
                            step_tokens,
                            pace,
                            share_prefixes,
                            tensor_parallel,
                            context_parallel,
                            decode_context_parallel,
                            prefill,
                            prefill_tokens,
                            draft_model ? draft_model->string() : std::string(),
                            draft_tokens});
}

std::int32_t submit(ServingEngine& self, std::vector<std::int32_t> prompt, std::int32_t max_tokens,
                    std::vector<std::int32_t> stop_tokens, std::int32_t num_logprobs,
                    bool scores_prompt, double temperature, double top_p, std::int32_t top_k,
                    double min_p, std::uint64_t seed, double repetition_penalty,
                    double presence_penalty, double frequency_penalty, const Pairs& logit_bias,
                    const std::optional<nb::bytes>& allowed) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.max_tokens = max_tokens;
  request.stop_tokens = std::move(stop_tokens);
  request.num_logprobs = num_logprobs;
  request.scores_prompt = scores_prompt;
  request.sampling = {
      temperature,      top_p, top_k, seed, min_p, repetition_penalty, presence_penalty,
      frequency_penalty};
  for (const auto& [token, bias] : logit_bias) request.sampling.logit_bias.push_back({token, bias});
  return self.submit(std::move(request),
                     allowed ? std::optional(token_set_of(*allowed)) : std::nullopt);
}

}  // namespace

void bind_serving(nb::module_& module) {
  bind_events(module);
  const RankOptions unless;
  nb::class_<ServingEngine>(
      module, "ServingEngine",
      "A rank of an engine that serves a model in a folder of Hugging Face's format. Options are "
      "those of `contextile serve`. Making one is collective.")
      .def("__init__", &make_engine, "transport"_a, "model"_a, nb::kw_only(),
           "kv_tokens"_a = unless.kv_tokens, "page_size"_a = unless.page_size,
           "interleave"_a = unless.interleave, "kv_dtype"_a = unless.kv_dtype,
           "mode"_a = unless.mode, "wire"_a = unless.wire, "hop_b_groups"_a = unless.hop_b_groups,
           "hop_b"_a = unless.hop_b, "max_running"_a = unless.max_running,
           "max_waiting"_a = unless.max_waiting, "step_tokens"_a = unless.step_tokens,
           "pace"_a = unless.pace, "share_prefixes"_a = unless.share_prefixes,
           "tensor_parallel"_a = nb::none(), "context_parallel"_a = nb::none(),
           "decode_context_parallel"_a = nb::none(), "prefill"_a = unless.prefill,
           "prefill_tokens"_a = nb::none(), "draft_model"_a = nb::none(),
           "draft_tokens"_a = nb::none())
      .def("submit", &submit, nb::kw_only(), "prompt"_a, "max_tokens"_a = 16,
           "stop_tokens"_a = std::vector<std::int32_t>(), "num_logprobs"_a = 0,
           "scores_prompt"_a = false, "temperature"_a = 0.0, "top_p"_a = 1.0, "top_k"_a = 0,
           "min_p"_a = 0.0, "seed"_a = 0, "repetition_penalty"_a = 1.0, "presence_penalty"_a = 0.0,
           "frequency_penalty"_a = 0.0, "logit_bias"_a = Pairs(), "allowed"_a = nb::none(),
           "Takes a request on the first rank, from any thread, and returns its number. With "
           "`allowed`, a bit for each token, its first token is one of these, and each further one "
           "needs an `allow` before the step that chooses it; else the request fails.")
      .def(
          "allow",
          [](ServingEngine& self, std::int32_t request, const nb::bytes& tokens) {
            self.allow(request, token_set_of(tokens));
          },
          "request"_a, "tokens"_a, "Says what a request's next token may be. From any thread.")
      .def("cancel", &ServingEngine::cancel, "request"_a, "Ends a request. From any thread.")
      .def("stop", &ServingEngine::stop, "Makes the next step the last. From any thread.")
      .def(
          "advance",
          [](ServingEngine& self, double patience) {
            EngineOutput output;
            {
              const WithoutGil release;
              output = self.advance(patience);
            }
            return nb::make_tuple(std::move(output.events), std::move(output.rejections),
                                  output.stopped);
          },
          "patience"_a = 2.0,
          "Computes a step of all ranks without the GIL, and returns its events, the requests it "
          "rejected, and True after the last. Collective, from one thread. The first rank waits up "
          "to `patience` seconds for something to do. Raises TransportError.")
      .def_prop_ro("metrics", &ServingEngine::metrics,
                   "Pairs of the names that GET /metrics has and their values after a step.")
      .def_prop_ro("vocab_size", [](const ServingEngine& self) { return self.config().vocab_size; })
      .def_prop_ro("max_length", &ServingEngine::max_length, "Tokens of prompt and output.")
      .def_prop_ro(
          "end_tokens", [](const ServingEngine& self) { return self.config().end_tokens; },
          "Tokens that end a text.");
}

}  // namespace contextile::python

NB_MODULE(_serving, module) {
  nanobind::module_::import_("contextile._core");  // has the transports and errors
  nanobind::set_leak_warnings(false);              // an interpreter may end with engines
  module.doc() = "The engine of contextile.serve, apart from _core because it loads OpenBLAS.";
  contextile::python::bind_serving(module);
}
