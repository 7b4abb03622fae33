#include "contextile/serving/completion_server.h"

#include <fmt/format.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "serving/server/bounded_threads.h"
#include "serving/server/completion.h"
#include "serving/server/protocol.h"
#include "serving/server/request_queue.h"

namespace contextile {
namespace {

using nlohmann::json;

constexpr std::chrono::milliseconds kBetweenLooks{200};  // whether a client is still there
constexpr std::chrono::seconds kMostForBody{30};
constexpr const char* kJson = "application/json";

std::uint64_t random_bits() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

std::int64_t seconds_now() {  // since 1970
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

ProtocolError error_of(const CallUpdate& update) {
  if (update.is_full) {
    return {.status = 429, .type = "rate_limit_error", .message = update.failure};
  }
  if (update.is_internal) {
    return {.status = 503, .type = "server_error", .message = update.failure};
  }
  return {.message = update.failure};
}

void answer(httplib::Response& response, const ProtocolError& error) {
  response.status = error.status;
  if (error.status == 429) response.set_header("Retry-After", "1");
  response.set_content(error_json(error), kJson);
}

// What is known of the engines after a step.
struct Snapshot {
  EngineStats stats;
  std::int32_t num_running = 0;
  std::int32_t num_waiting = 0;
  std::int32_t free_pages = 0;
};

std::string metrics_text(const Snapshot& now) {
  std::string text;
  const auto add = [&](std::string_view name, std::string_view type, std::string_view help,
                       std::int64_t value) {
    text +=
        fmt::format("# HELP contextile_{0} {2}\n# TYPE contextile_{0} {1}\ncontextile_{0} {3}\n",
                    name, type, help, value);
  };
  add("requests_running", "gauge", "Requests that have pages.", now.num_running);
  add("requests_waiting", "gauge", "Requests that wait for room.", now.num_waiting);
  add("kv_pages_free", "gauge", "Pages of a rank that no request uses.", now.free_pages);
  add("steps_total", "counter", "Steps of the engines.", now.stats.num_steps);
  add("prompt_tokens_total", "counter", "Tokens of prompts that have begun.",
      now.stats.num_prompt_tokens);
  add("cached_tokens_total", "counter", "Tokens of these that were in the cache.",
      now.stats.num_cached_tokens);
  add("computed_tokens_total", "counter", "Tokens computed, those computed again included.",
      now.stats.num_computed_tokens);
  add("output_tokens_total", "counter", "Tokens given out.", now.stats.num_output_tokens);
  add("preemptions_total", "counter", "Requests that gave their pages back before their end.",
      now.stats.num_preemptions);
  return text;
}

class HttpServer final : public CompletionServer {
 public:
  HttpServer(const ServeOptions& options, std::unique_ptr<Tokenizer> tokenizer)
      : options_(options), tokenizer_(std::move(tokenizer)) {
    check();
    set_limits();
    add_completions();
    add_answers();
    add_failures();
    port_ = options.port == 0 ? server_.bind_to_any_port(options.host)
            : server_.bind_to_port(options.host, options.port) ? options.port
                                                               : -1;
    if (port_ < 0) {
      fail_io(
          "serve: cannot listen on {}, port {}: the address is taken, not this machine's, or no "
          "name that is known",
          printable(options.host), options.port);
    }
    // The library asks the system to queue five connections; clients that come at once are more.
    ::listen(socket_, SOMAXCONN);
    listener_ = std::thread([this] { server_.listen_after_bind(); });
    while (!server_.is_running()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  ~HttpServer() override {
    queue_.stop("the server stops");
    server_.stop();
    listener_.join();
  }

  [[nodiscard]] std::int32_t port() const override { return port_; }

  void run(EngineRank& rank, const Engine& engine) override {
    try {
      while (!rank_advances(rank, engine)) {
      }
    } catch (const std::exception& error) {
      queue_.restart(engine.scheduler(), fmt::format("the engines were lost: {}", error.what()));
      throw;
    }
  }

  void stop(const std::string& reason) override { queue_.stop(reason); }

 private:
  void check() const {
    CONTEXTILE_CHECK(options_.port >= 0 && options_.port <= 65535,
                     "serve: expected a port of 0 to 65535, found {}", options_.port);
    CONTEXTILE_CHECK(options_.max_connections >= 1 && options_.max_connections <= 10'000,
                     "serve: expected 1 to 10000 connections, found {}", options_.max_connections);
    CONTEXTILE_CHECK(options_.max_body_bytes >= 1,
                     "serve: expected max_body_bytes of at least 1, found {}",
                     options_.max_body_bytes);
  }

  // Whether all have stopped.
  [[nodiscard]] bool rank_advances(EngineRank& rank, const Engine& engine) {
    const EngineOutput output = rank.advance(queue_.take(options_.heartbeat));
    const Scheduler& scheduler = engine.scheduler();
    {
      const std::lock_guard lock(snapshot_mutex_);
      snapshot_ = {scheduler.stats(), scheduler.num_running(), scheduler.num_waiting(),
                   scheduler.cache().free_pages()};
    }
    queue_.deliver(output);
    return output.stopped;
  }

  void set_limits() {
    const auto connections = static_cast<std::size_t>(options_.max_connections);
    server_.new_task_queue = [connections] { return new BoundedThreads(connections); };
    server_.set_payload_max_length(static_cast<std::size_t>(options_.max_body_bytes));
    server_.set_tcp_nodelay(true);
    // The library's own options would let two servers have one port.
    server_.set_socket_options([this](socket_t socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
      socket_ = socket;
    });
    server_.set_keep_alive_timeout(1);  // a connection nobody uses holds one of the threads
  }

  void add_completions() {
    post("/v1/completions", [this](const std::string& body, httplib::Response& response) {
      complete(body, response);
    });
    post("/tokenize", [this](const std::string& body, httplib::Response& response) {
      const json answered = {{"tokens", tokenizer_->encode(parse_tokenize(body))}};
      response.set_content(answered.dump(), kJson);
    });
  }

  // NOTE: with a reader of its own: the library takes a body that curl calls a form for one, and of
  // forms 8 KiB alone.
  template <typename Take>
  void post(const char* path, const Take& take) {
    server_.Post(path, [this, take](const httplib::Request& request, httplib::Response& response,
                                    const httplib::ContentReader& reader) {
      try {
        take(body_of(request, response, reader), response);
      } catch (const ProtocolFailure& failure) {
        answer(response, failure.error());
      } catch (const InvalidArgument& error) {
        answer(response, {.message = error.what()});
      }
    });
  }

  [[nodiscard]] std::string body_of(const httplib::Request& request,
                                    const httplib::Response& response,
                                    const httplib::ContentReader& reader) const {
    if (request.is_multipart_form_data()) {
      throw ProtocolFailure({.status = 415, .message = "request: expected JSON, found a form"});
    }
    const auto limit = std::chrono::steady_clock::now() + kMostForBody;
    std::string body;
    int status = 400;
    const bool is_whole = reader([&](const char* bytes, std::size_t size) {
      body.append(bytes, size);
      // In pieces it has no length that could be looked at before.
      if (body.size() > static_cast<std::size_t>(options_.max_body_bytes)) {
        status = 413;
      } else if (std::chrono::steady_clock::now() > limit) {
        status = 408;
      } else {
        return true;
      }
      return false;
    });
    if (is_whole) return body;
    if (response.status == 413) status = 413;  // the library's, by the length that was announced
    throw ProtocolFailure(
        {.status = status,
         .message = fmt::format("request: expected a body of at most {} bytes, whole within {} s",
                                options_.max_body_bytes, kMostForBody.count())});
  }

  void add_answers() {
    server_.Get("/v1/models", [this](const httplib::Request&, httplib::Response& response) {
      const json models = {{"object", "list"}, {"data", json::array({model_json()})}};
      response.set_content(models.dump(), kJson);
    });
    server_.Get(
        R"(/v1/models/(.+))", [this](const httplib::Request& request, httplib::Response& response) {
          if (request.matches[1] == options_.model) {
            return response.set_content(model_json().dump(), kJson);
          }
          answer(response,
                 {.status = 404,
                  .message = fmt::format("model: expected {}, found {}", quote(options_.model),
                                         quote(request.matches[1].str())),
                  .param = "model",
                  .code = "model_not_found"});
        });
    server_.Get("/health", [](const httplib::Request&, httplib::Response& response) {
      response.set_content("ok\n", "text/plain");
    });
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      const std::lock_guard lock(snapshot_mutex_);
      response.set_content(metrics_text(snapshot_), "text/plain; version=0.0.4");
    });
  }

  [[nodiscard]] json model_json() const {
    return {{"id", options_.model},
            {"object", "model"},
            {"created", created_s_},
            {"owned_by", "contextile"},
            {"max_model_len", options_.max_length}};
  }

  void add_failures() {
    server_.set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, std::exception_ptr) {
          answer(response, {.status = 500, .type = "server_error", .message = "an internal error"});
        });
    server_.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (!response.body.empty()) return;
      const std::string what =
          response.status == 404
              ? fmt::format(
                    "expected POST /v1/completions or /tokenize, GET /v1/models, /health or "
                    "/metrics, found {} {}",
                    printable(request.method), printable(request.path))
          : response.status == 413
              ? std::string("request: expected fewer bytes (--max-body-bytes)")
              : fmt::format("the request cannot be served: HTTP status {}", response.status);
      answer(response, {.status = response.status, .message = what});
    });
  }

  // What the engines are asked for a call: n times each prompt.
  [[nodiscard]] std::vector<GenerationRequest> requests_of(const CompletionRequest& asked) const {
    std::vector<GenerationRequest> requests;
    const std::uint64_t seed = asked.has_seed ? asked.sampling.seed : random_bits();
    for (const std::vector<std::int32_t>& prompt : asked.prompts) {
      for (std::int32_t i = 0; i < asked.n; ++i) {
        GenerationRequest request;
        request.prompt = prompt;
        request.max_tokens = asked.max_tokens;
        request.sampling = asked.sampling;
        request.sampling.seed = seed + static_cast<std::uint64_t>(i);
        if (!asked.ignore_end) request.stop_tokens = options_.end_tokens;
        requests.push_back(std::move(request));
      }
    }
    return requests;
  }

  // One call from its first token to its last.
  struct Answer {
    Answer(CompletionRequest request, const Tokenizer& tokenizer, CompletionHead named)
        : asked(std::move(request)), completion(asked, tokenizer), head(std::move(named)) {}
    const CompletionRequest asked;
    Completion completion;
    const CompletionHead head;
    std::shared_ptr<Call> call;
  };

  void complete(const std::string& body, httplib::Response& response) {
    const ProtocolLimits limits = {options_.model, options_.vocab_size, options_.max_length};
    CompletionRequest asked = parse_completion(body, *tokenizer_, limits);
    const CompletionHead head = {fmt::format("cmpl-{:016x}", random_bits()), options_.model,
                                 seconds_now()};
    const auto answered = std::make_shared<Answer>(std::move(asked), *tokenizer_, head);
    answered->call = queue_.submit(requests_of(answered->asked));
    // Nothing is sent before it is certain that the engines take it.
    const CallUpdate first = wait(*answered->call);
    if (!first.failure.empty()) return answer(response, error_of(first));
    if (answered->asked.stream) return stream(answered, response);
    while (!answered->completion.is_finished()) {
      const CallUpdate update = wait(*answered->call);
      if (!update.failure.empty()) return answer(response, error_of(update));
      if (!update.is_taken) static_cast<void>(take(*answered, update));
    }
    response.set_content(completion_json(head, answered->asked, answered->completion.choices(),
                                         answered->completion.usage()),
                         kJson);
  }

  [[nodiscard]] static CallUpdate wait(Call& call) {
    while (true) {
      if (auto update = call.next(std::chrono::seconds(10))) return std::move(*update);
    }
  }

  [[nodiscard]] CompletionChoice take(Answer& answered, const CallUpdate& update) {
    CompletionChoice piece = answered.completion.add(update.index, update.event);
    if (answered.completion.ends_early(update.index, update.event)) {
      queue_.cancel(*answered.call, update.index);
    }
    return piece;
  }

  // Events of a stream for an update; false: the connection is gone.
  [[nodiscard]] bool send(Answer& answered, const CallUpdate& update, httplib::DataSink& sink) {
    const auto event = [&](const std::string& data) {
      const std::string text = "data: " + data + "\n\n";
      return sink.write(text.data(), text.size());
    };
    if (!update.failure.empty()) return event(error_json(error_of(update)));
    const CompletionChoice piece = take(answered, update);
    const bool shows = !piece.text.empty() || piece.finish_reason || answered.asked.return_tokens ||
                       answered.asked.logprobs;
    if (shows && !event(completion_json(answered.head, answered.asked, {piece}, std::nullopt))) {
      return false;
    }
    if (!answered.completion.is_finished()) return true;
    if (answered.asked.include_usage &&
        !event(completion_json(answered.head, answered.asked, {}, answered.completion.usage()))) {
      return false;
    }
    return event("[DONE]");
  }

  void stream(const std::shared_ptr<Answer>& answered, httplib::Response& response) {
    const auto provide = [this, answered](std::size_t, httplib::DataSink& sink) {
      const auto update = answered->call->next(kBetweenLooks);
      if (!update) return sink.is_writable();
      if (update->is_taken) return true;
      if (!send(*answered, *update, sink)) return false;
      if (!update->failure.empty() || answered->completion.is_finished()) sink.done();
      return true;
    };
    // However it ended: nothing of it is computed any more.
    const auto release = [this, answered](bool) { queue_.cancel(*answered->call); };
    response.set_chunked_content_provider("text/event-stream", provide, release);
  }

  const ServeOptions options_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  const std::int64_t created_s_ = seconds_now();
  RequestQueue queue_;
  std::mutex snapshot_mutex_;
  Snapshot snapshot_;
  httplib::Server server_;
  socket_t socket_ = -1;  // that listens; the server's
  std::int32_t port_ = -1;
  std::thread listener_;
};

}  // namespace

std::string_view completion_server_missing() { return {}; }

std::unique_ptr<CompletionServer> make_completion_server(const ServeOptions& options,
                                                         std::unique_ptr<Tokenizer> tokenizer) {
  return std::make_unique<HttpServer>(options, std::move(tokenizer));
}

}  // namespace contextile
