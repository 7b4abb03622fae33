// contextile serve: a language model over HTTP.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/parse_number.h"
#include "base/quote.h"
#include "cli/commands/contextile_program.h"
#include "cli/commands/run_beat.h"
#include "cli/commands/served_engine.h"
#include "cli/commands/stop_on_signal.h"
#include "cli/help.h"
#include "cli/options/http_options.h"
#include "cli/options/serving_ranks.h"
#include "cli/options/speculation.h"
#include "cli/options/types.h"
#include "cli/output.h"
#include "contextile/advanced/store.h"
#include "contextile/extend/interrupt.h"

namespace contextile {
namespace {

bool reads_generation_config(const std::string& text) {
  if (text == "model" || text == "none") return text == "model";
  fail_argument("--generation-config: expected model or none, found {}", quote(text));
}

// A model's part on this rank. Collective.
std::unique_ptr<DecoderRank> load(Transport& transport, const ServedDecoder& decoder) {
  DecoderPart part = decoder.part;
  part.rank = transport.rank();
  return std::make_unique<DecoderRank>(transport, decoder.model.config,
                                       weights_of(decoder.model, part), decoder.decoder);
}

// One rank, from its weights to the end of serving. `server` is used on the first rank alone.
void serve_rank(
    Transport& transport, const Serving& serving, CompletionServer* server,
    const std::function<void()>& on_loaded = [] {}) {
  const std::unique_ptr<DecoderRank> model = load(transport, serving);
  std::unique_ptr<DecoderRank> second;
  DraftModel draft;
  if (serving.draft) {
    second = load(transport, *serving.draft);
    draft = {second.get(), serving.draft->model.config};
  }
  Engine engine(*model, serving.model.config, serving.engine, draft);
  EngineRank rank(transport, engine);
  on_loaded();
  barrier(transport);
  if (transport.rank().value == 0) {
    server->run(rank, engine);
    return print(accepted_text(engine.scheduler().stats()));
  }
  while (!rank.advance().stopped) {
  }
}

// Returns the sampling of requests that do not say.
GenerationDefaults generation_defaults(const ServeCommandOptions& options, const Serving& serving) {
  if (!options.reads_generation_config || serving.model.folder.empty()) return {};
  return read_generation_defaults(serving.model.folder);
}

std::string sampling_text(const GenerationDefaults& defaults) {
  const SamplingParams& sampling = defaults.sampling;
  std::string text = sampling.temperature == 0
                         ? "the likeliest token"
                         : fmt::format("temperature {:g}", sampling.temperature);
  if (sampling.top_p < 1) text += fmt::format(", top_p {:g}", sampling.top_p);
  if (sampling.top_k > 0) text += fmt::format(", top_k {}", sampling.top_k);
  if (sampling.min_p > 0) text += fmt::format(", min_p {:g}", sampling.min_p);
  if (sampling.repetition_penalty != 1) {
    text += fmt::format(", repetition_penalty {:g}", sampling.repetition_penalty);
  }
  text += ", unless a request says otherwise";
  if (!defaults.ignored.empty()) {
    text += fmt::format("; generation_config.json also has {}, which the server does not have",
                        printable(fmt::format("{}", fmt::join(defaults.ignored, ", "))));
  }
  return text;
}

std::unique_ptr<CompletionServer> open_server(const ServeCommandOptions& options,
                                              const Serving& serving,
                                              const SamplingParams& sampling,
                                              const std::function<void()>& on_ready) {
  ServeOptions serve = options.serve;
  serve.on_ready = on_ready;
  serve.model = options.name.empty() ? serving.model.name : options.name;
  serve.vocab_size = serving.model.config.vocab_size;
  serve.end_tokens = serving.model.config.end_tokens;
  serve.sampling = sampling;
  serve.max_length = longest_request(serving.engine, serving.model.config.max_length);
  const auto timeout =
      std::chrono::milliseconds(static_cast<std::int64_t>(options.transport.timeout_s * 1e3));
  serve.heartbeat = std::clamp(timeout / 4, std::chrono::milliseconds(1), serve.heartbeat);
  return make_completion_server(serve, tokenizer_of(serving.model));
}

void print_start(const ServeCommandOptions& options, const Serving& serving,
                 const std::string& sampling, const CompletionServer& server) {
  const DecoderConfig& config = serving.model.config;
  print(fmt::format(
      "model     {}: {} layers, {} query heads, {} KV heads, {:.1f} million parameters\n"
      "ranks     {} on {}, attention {}\n"
      "{}"
      "sampling  {}\n"
      "{}"
      "serving   http://{}:{}/v1/completions\n",
      printable(serving.model.name), config.num_layers, config.q_heads, config.kv_heads,
      static_cast<double>(num_parameters(config)) * 1e-6, ranks_text(options.split, serving.part),
      options.transport.name, to_string(serving.decoder.mode), cache_text(serving), sampling,
      drafts_text(serving), printable(options.serve.host), server.port()));
  check_stdout();
}

// Thrown by a signal into the start of a rank. Other processes' ranks get the text.
struct StoppedAtStart : std::exception {
  [[nodiscard]] const char* what() const noexcept override {
    return "stopped by a signal before it served";
  }
  [[nodiscard]] static bool is_reason_of(const TransportError& error) {
    return std::string_view(error.what()).ends_with(StoppedAtStart().what());
  }
};

// The first rank's server: listens before weights are loaded, so that /health can say "starting".
// Its address is printed when /health says "ok".
class OpenServer {
 public:
  explicit OpenServer(const ServeCommandOptions& options) : options_(options) {}
  // The end of the server may take time, too, so the signals outlive it.
  ~OpenServer() {
    if (stop_) stop_->forget_server();
    server_.reset();
  }
  OpenServer(const OpenServer&) = delete;
  OpenServer& operator=(const OpenServer&) = delete;

  void open(const Serving& serving) {
    if (server_ != nullptr) return;
    const GenerationDefaults defaults = generation_defaults(options_, serving);
    const std::string sampling = sampling_text(defaults);
    server_ = open_server(options_, serving, defaults.sampling, [this, serving, sampling] {
      is_ready_ = true;
      print_start(options_, serving, sampling, *server_);
    });
    stop_.emplace(*server_);
  }
  // Null on the other ranks.
  [[nodiscard]] CompletionServer* get() { return server_.get(); }
  // Throws StoppedAtStart if a signal came before the server was ready. One that is ready stops by
  // itself.
  void look() const {
    if (stop_ && stop_->has_come() && !is_ready_) throw StoppedAtStart();
  }

 private:
  const ServeCommandOptions& options_;
  std::unique_ptr<CompletionServer> server_;
  std::optional<StopOnSignal> stop_;
  std::atomic<bool> is_ready_ = false;
};

int serve_inproc(const ServeCommandOptions& options) {
  CONTEXTILE_CHECK(options.store.empty(),
                   "--store: expected with --transport gloo, found it with inproc");
  const std::int32_t ranks = options.ranks.value_or(num_ranks_of(options.split).value_or(4));
  const Serving serving = serving_of(options, ranks);
  OpenServer server(options);
  server.open(serving);
  const InterruptScope scope([&] { server.look(); });
  run_inproc(
      ranks, [&](Transport& transport) { serve_rank(transport, serving, server.get()); },
      inproc_options(options.transport));
  return kExitOk;
}

// Ranks of processes. They go on without lost ranks if they have a store to meet again.
class ProcessRanks {
 public:
  explicit ProcessRanks(const ServeCommandOptions& options) : options_(options) {
    if (!options.store.empty()) {
      store_ = open_store(options.store);
      refuse_if_running(*store_, options.transport.run_id,
                        std::to_string(options.transport.rank.value_or(-1)));
    }
    transport_ = open_transport(options.transport, options.ranks, "rank");
  }

  [[nodiscard]] Transport& transport() { return *transport_; }
  // Collective, once: ranks compare what they serve. They give this start of the run a name that no
  // earlier one has, so that they do not read what an earlier one left in the store.
  void agree(const Serving& serving) {
    run_ = fmt::format("{}/{:016x}", options_.transport.run_id,
                       agree_on_engine(*transport_, settings_of(serving, options_.split)));
    if (store_ != nullptr && transport_->rank().value == 0) {
      beat_.emplace(*store_, options_.transport.run_id, [this](const std::string& rank) {
        if (options_.serve.log == ServeLog::kQuiet) return;
        print_to_stderr(
            fmt::format("serve: rank {} came back and was refused: its share of the cache is lost; "
                        "all ranks have to be started again to take it in\n",
                        quote(rank)));
      });
    }
  }

  // Opens a group of the ranks that remain, this one among them. Throws TransportError if the first
  // rank is lost.
  void regroup() {
    const std::int32_t before = transport_->size();
    ++generation_;
    const Membership left = agree_on_members(*store_, run_, generation_, transport_->rank(), before,
                                             {.timeout = timeout()});
    if (left.members.front() != Rank{0}) {
      throw TransportError("serve: the first rank is lost, and with it the server");
    }
    transport_.reset();
    TransportOptions next = options_.transport;
    next.rank = left.rank.value;
    next.run_id += fmt::format("-{}", generation_);
    transport_ = open_transport(next, left.size(), "rank");
    if (left.rank.value == 0) {
      print(fmt::format("ranks     {} of {} are left and go on\n", left.size(), before));
      check_stdout();
    }
  }
  [[nodiscard]] bool can_regroup() const { return store_ != nullptr; }

 private:
  [[nodiscard]] std::chrono::milliseconds timeout() const {
    return std::chrono::milliseconds(static_cast<std::int64_t>(options_.transport.timeout_s * 1e3));
  }

  const ServeCommandOptions& options_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Store> store_;
  std::optional<RunBeat> beat_;  // of the first rank
  std::string run_;
  std::int32_t generation_ = 0;
};

int serve_process(const ServeCommandOptions& options) {
  CONTEXTILE_CHECK(options.transport.name != "gloo" || options.ranks,
                   "--transport gloo: expected --ranks, found none");
  CONTEXTILE_CHECK(options.store.empty() || options.transport.name == "gloo",
                   "--store: expected with --transport gloo, found it with {}",
                   options.transport.name);
  CONTEXTILE_CHECK(options.store.empty() || !options.transport.run_id.empty(),
                   "--store: expected --run-id, found none");
  CONTEXTILE_CHECK(options.store.empty() || !options.split.is_set(),
                   "--store: expected without --tensor-parallel, --context-parallel and "
                   "--decode-context-parallel, whose ranks cannot go on without one of them");
  ProcessRanks ranks(options);
  OpenServer server(options);
  // The first rank ends the others when the signal reaches it, once they wait for its steps.
  if (ranks.transport().rank().value != 0) note_first_signals();
  bool has_agreed = false;
  bool has_loaded = false;
  const InterruptScope scope([&] {
    server.look();
    if (!has_loaded && first_signal_has_come()) throw StoppedAtStart();
  });
  while (true) {
    const Serving serving = serving_of(options, ranks.transport().size());
    if (ranks.transport().rank().value == 0) server.open(serving);
    try {
      if (!std::exchange(has_agreed, true)) ranks.agree(serving);
      serve_rank(ranks.transport(), serving, server.get(), [&] { has_loaded = true; });
      return kExitOk;
    } catch (const StoppedAtStart& stopped) {
      ranks.transport().abort(stopped.what());
      throw;
    } catch (const TransportError& error) {
      if (StoppedAtStart::is_reason_of(error)) return kExitOk;
      if (!ranks.can_regroup()) throw;
      print_error(error.what());
    }
    ranks.regroup();
  }
}

int serve(const ServeCommandOptions& options) {
  CONTEXTILE_CHECK(completion_server_missing().empty(), "serve: not in this build: {}",
                   completion_server_missing());
  check_transport_options(options.transport);
  // OpenBLAS starts a thread for each core when it is loaded, which the engines do not use.
  ::setenv("OPENBLAS_NUM_THREADS", "1", 0);
  try {
    return options.transport.name == "inproc" ? serve_inproc(options) : serve_process(options);
  } catch (const StoppedAtStart&) {
    return kExitOk;
  }
}

void add_engine_options(CLI::App& app, ServeCommandOptions& options) {
  add_size_as<std::int64_t>(
      app, "--kv-tokens", options.kv_tokens, 1,
      {"N", "tokens the KV cache holds, over all ranks",
       fmt::format("{}; --simulate: what fits", ServeCommandOptions::kKvTokens)});
  KvCacheOptions& cache = options.engine.cache;
  add_size<std::int32_t>(app, "--page-size", cache.layout.page_size, 1,
                         {"TOKENS", "tokens of a page of a rank", ""});
  add_size<std::int32_t>(app, "--interleave", cache.layout.interleave, 1,
                         {"TOKENS", "tokens that go to a rank before the next one's turn", ""});
  add_text(app, "--kv-dtype", options.kv_dtype,
           {"DTYPE", "of cached keys and values", "", {"f32", "bf16", "f16"}});
  add_text(app, "--mode", options.mode,
           {"MODE",
            "how ranks come to attention over all tokens: {}; auto: a2a where the ranks divide "
            "the query heads, else q_replicated",
            "",
            {"auto", "ag_rs", "a2a", "q_replicated"}});
  add_text(app, "--wire", options.wire,
           {"DTYPE", "of queries and outputs between ranks", "", {"f32", "bf16", "f16"}});
  add_size<std::int32_t>(app, "--hop-b-groups", options.hop_b_groups, 1,
                         {"N",
                          "groups of requests: while outputs of one are on their way, --hop-b is "
                          "computed",
                          ""});
  add_value(app, "--hop-b",
            {"off|attention|feed_forward",
             "of --hop-b-groups: the attention of the next group, or the feed-forward of the one "
             "before",
             "attention"},
            [&options](const std::string& text) { options.hop_b = parse_hop_b(text); });
  add_size<std::int32_t>(app, "--max-running", options.engine.max_running, 1,
                         {"N", "requests that are computed at a time", ""});
  add_size<std::int32_t>(app, "--max-waiting", options.engine.max_waiting, 1,
                         {"N", "requests that wait until others end; more are answered 429", ""});
  add_size<std::int32_t>(app, "--step-tokens", options.engine.max_step_tokens, 1,
                         {"N", "tokens of a step; longer prompts are computed in chunks", ""});
  add_value(app, "--pace",
            {"X",
             "while requests decode, parts of prompts are as long as makes a step X times one "
             "without prompts, by the times of earlier steps; 0: as --step-tokens says",
             fmt::format("{:g}", options.engine.pace)},
            [&options](const std::string& text) {
              options.engine.pace = parse_number("--pace", text);
              CONTEXTILE_CHECK(options.engine.pace == 0 || options.engine.pace >= 1,
                               "--pace: expected 0, or 1 and more, found {}", quote(text));
            });
  add_speculation_option(app, options.engine.speculation);
  add_draft_model_options(app, options.draft);
  add_toggle(app, "share-prefixes", "keep what prompts begin with for later ones", "share",
             [&cache](bool value) { cache.share_prefixes = value; });
}

}  // namespace

Action add_serve_command(CLI::App& app) {
  const auto options = std::make_shared<ServeCommandOptions>();
  add_value(
      app, "--model",
      {"FOLDER|random",
       "config.json, model.safetensors and tokenizer.json of a model that docs/serving.md lists; "
       "random: an untrained one, with bytes as tokens, and sizes behind it "
       "(random:layers=4,heads=24), of vocab, hidden, layers, heads, kv_heads, head_dim, ffn, "
       "window (of every second layer), length and seed; with --simulate as of helix",
       ServeCommandOptions::kRandom},
      [options](const std::string& text) { options->model = text; });
  add_value(app, "--name", {"TEXT", "what clients call the model", "the folder's name"},
            [options](const std::string& text) { options->name = text; });
  add_value(app, "--generation-config",
            {"model|none",
             "the sampling of requests that do not say: that of the model's "
             "generation_config.json; that of the protocol (temperature 1)",
             "model"},
            [options](const std::string& text) {
              options->reads_generation_config = reads_generation_config(text);
            });
  add_http_options(app, options->serve);
  add_size_as<std::int32_t>(app, "--ranks", options->ranks, 1,
                            {"N", "ranks of the model (mpi: the job's)",
                             "4, or those of --tensor-parallel x --context-parallel"});
  add_transport_options(app, options->transport);
  add_value(app, "--store",
            {"STORE",
             "gloo, without --tensor-parallel, --context-parallel and --decode-context-parallel: "
             "where ranks that are left agree to go on when one is lost: a folder, file:///FOLDER "
             "or redis://HOST",
             "they end"},
            [options](const std::string& text) { options->store = text; });
  add_serving_ranks_options(app, options->split);
  add_engine_options(app, *options);
  add_simulated_serving_options(app, options->simulated);
  add_examples(app,
               {"contextile serve --ranks 4 --port 0", "contextile launch -n 2 -- serve --port 0",
                "contextile serve --simulate poisson:rate=2,prompt=100K --model llama-3-70b "
                "--devices 4,8"});
  show_first(app, {"--model", "--host", "--port", "--ranks", "--transport", "--tensor-parallel",
                   "--context-parallel", "--kv-tokens", "--max-running", "--simulate"});
  return [options, &app] {
    check_simulated_serving(app, options->simulated);
    if (options->simulated.trace.empty()) return serve(*options);
    return simulated_serving(options->simulated, options->model, options->engine, options->split,
                             options->kv_tokens);
  };
}

}  // namespace contextile
