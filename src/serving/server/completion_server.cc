#include "contextile/serving/completion_server.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "serving/server/completion.h"
#include "serving/server/engine_health.h"
#include "serving/server/http_front.h"
#include "serving/server/origin.h"
#include "serving/server/protocol.h"
#include "serving/server/reading_limit.h"
#include "serving/server/request_queue.h"

namespace contextile {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kBetweenLooks{200};  // at whether a client is still there
constexpr std::chrono::milliseconds kGraceAtEnd{1'000};  // for clients to read their last bytes
constexpr const char* kJson = "application/json";
constexpr const char* kRequestId = "X-Request-Id";

std::uint64_t random_bits() {
  std::random_device device;
  return (std::uint64_t{device()} << 32) | device();
}

// The client's name for its request, or a new one where it gives none of a usual form.
std::string request_id(const httplib::Request& request) {
  std::string given = request.get_header_value(kRequestId);
  return is_usual_name(given) ? given : fmt::format("{:016x}", random_bits());
}

std::int64_t seconds_now() {  // since 1970
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

ProtocolError error_of(const CallUpdate& update) {
  // The engines see tokens, of which their reasons give no more than the number.
  const std::string& reason = update.failure;
  if (update.is_full) {
    return {.status = 429, .type = "rate_limit_error", .message = reason, .logged = reason};
  }
  if (update.is_internal) {
    return {.status = 503, .type = "server_error", .message = reason, .logged = reason};
  }
  return {.message = reason, .logged = reason};
}

class HttpServer final : public CompletionServer {
 public:
  HttpServer(const ServeOptions& options, std::unique_ptr<Tokenizer> tokenizer)
      : options_(checked(options)),
        tokenizer_(std::move(tokenizer)),
        server_(limits_of(options), [this](int status, const std::string& message) {
          return refusal(status, message);
        }) {
    set_options();
    add_completions();
    add_answers();
    add_failures();
    if (tokenizer_->num_ids() > options_.vocab_size) {
      log(ServeLog::kEvents,
          fmt::format("the tokenizer has token ids up to {}, the model's vocabulary ends at {}; "
                      "prompts with the others are refused",
                      tokenizer_->num_ids() - 1, options_.vocab_size - 1));
    }
    port_ = options.port == 0 ? server_.bind_to_any_port(options.host)
            : server_.bind_to_port(options.host, options.port) ? options.port
                                                               : -1;
    if (port_ < 0) {
      fail_io(
          "serve: cannot listen on {}, port {}: the address is taken, not this machine's, or no "
          "name that is known",
          printable(options.host), options.port);
    }
    server_.start();
  }

  ~HttpServer() override {
    stop("the server stops");
    server_.close(kGraceAtEnd);
  }

  [[nodiscard]] std::int32_t port() const override { return port_; }

  void run(EngineRank& rank, const Engine& engine) override {
    health_.note_start(engine.scheduler().cache().layout().num_ranks);
    if (!std::exchange(was_ready_, true) && options_.on_ready) options_.on_ready();
    try {
      while (!rank_advances(rank, engine)) {
      }
    } catch (const std::exception& error) {
      log(ServeLog::kEvents, fmt::format("the engines were lost: {}", error.what()));
      health_.note_lost();
      // Clients learn nothing of ranks and their addresses.
      queue_.restart(engine.scheduler(), "the engines were lost; the request may be sent again");
      throw;
    }
  }

  void stop(const std::string& reason) override {
    stops_ = true;
    queue_.stop(reason);
  }

 private:
  static const ServeOptions& checked(const ServeOptions& options) {
    CONTEXTILE_CHECK(options.port >= 0 && options.port <= 65535,
                     "serve: expected a port of 0 to 65535, found {}", options.port);
    CONTEXTILE_CHECK(options.max_connections >= 1 && options.max_connections <= 10'000,
                     "serve: expected 1 to 10000 connections, found {}", options.max_connections);
    CONTEXTILE_CHECK(options.max_body_bytes >= 1,
                     "serve: expected max_body_bytes of at least 1, found {}",
                     options.max_body_bytes);
    const bool is_origin = std::ranges::none_of(
        options.allow_origin, [](char c) { return c <= ' ' || c >= 0x7f || c == ','; });
    CONTEXTILE_CHECK(is_origin, "serve, allow_origin: expected one origin or *, found {}",
                     quote(options.allow_origin));
    check_sampling(options.sampling);
    return options;
  }
  static FrontLimits limits_of(const ServeOptions& options) {
    FrontLimits limits;
    limits.max_active = static_cast<std::size_t>(options.max_connections);
    limits.head.max_body_bytes = static_cast<std::uint64_t>(options.max_body_bytes);
    return limits;
  }

  void log(ServeLog level, const std::string& line) const {
    if (options_.log < level) return;
    // The reasons of lost engines name files and addresses, which may be commands to a terminal.
    const std::string safe = without_orders(line);
    if (options_.write_log) return options_.write_log(safe);
    const std::string whole = fmt::format("serve: {}\n", safe);
    std::fwrite(whole.data(), 1, whole.size(), stderr);
  }

  // The body of a response that refuses a request.
  [[nodiscard]] std::string refusal(const ProtocolError& error) const {
    const std::string& reason = error.logged.empty() ? error.type : error.logged;
    log(ServeLog::kEvents, fmt::format("refused with {}: {}", error.status, reason));
    return error_json(error);
  }
  [[nodiscard]] std::string refusal(int status, const std::string& message) const {
    const char* type = status >= 500 ? "server_error" : "invalid_request_error";
    // Other reasons quote the head.
    const bool may_be_logged = status == 408 || status == 503;
    return refusal({.status = status,
                    .type = type,
                    .message = message,
                    .logged = may_be_logged ? message : "the head of a request"});
  }
  void answer(httplib::Response& response, const ProtocolError& error) const {
    response.status = error.status;
    if (error.status == 429) response.set_header("Retry-After", "1");
    response.set_content(refusal(error), kJson);
  }

  // Runs one step; true when all ranks have stopped.
  [[nodiscard]] bool rank_advances(EngineRank& rank, const Engine& engine) {
    const EngineOutput output = rank.advance(queue_.take(options_.heartbeat));
    const std::int64_t preempted = health_.note_step(engine.scheduler());
    if (preempted > 0) {
      log(ServeLog::kEvents,
          fmt::format("preempted {} requests for want of KV pages; they are computed again",
                      preempted));
    }
    queue_.deliver(output);
    return output.stopped;
  }

  void set_options() {
    server_.set_payload_max_length(static_cast<std::size_t>(options_.max_body_bytes));
    // The library's own options would let two servers have one port.
    server_.set_socket_options([](socket_t socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    server_.set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) {
          response.set_header(kRequestId, request_id(request));
          if (is_of_allowed_page(request)) return httplib::Server::HandlerResponse::Unhandled;
          answer(response, another_origin(request.get_header_value("Origin")));
          return httplib::Server::HandlerResponse::Handled;
        });
    server_.answer_at_once({"/health", "/metrics"});
    if (options_.allow_origin.empty()) return;
    server_.set_default_headers(
        {{"Access-Control-Allow-Origin", options_.allow_origin},
         {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-Request-Id"},
         {"Access-Control-Expose-Headers", kRequestId},
         {"Access-Control-Allow-Methods", "GET, POST, OPTIONS"}});
    server_.Options(
        ".*", [](const httplib::Request&, httplib::Response& response) { response.status = 204; });
  }

  // Browsers name the origin of a page whose script sends a request. They send some without asking
  // whether the server allows them.
  [[nodiscard]] bool is_of_allowed_page(const httplib::Request& request) const {
    if (!request.has_header("Origin") || options_.allow_origin == "*") return true;
    const std::string origin = request.get_header_value("Origin");
    return origin == options_.allow_origin ||
           is_own_page(origin, request.get_header_value("Host"), options_.host);
  }

  void add_completions() {
    post("/v1/completions", [this](const std::string& body, httplib::Response& response) {
      complete(body, response);
    });
    post("/tokenize", [this](const std::string& body, httplib::Response& response) {
      const std::vector<std::int32_t> tokens =
          parse_tokenize(body, *tokenizer_, reading_limit(stops_));
      const json answered = {
          {"count", tokens.size()}, {"max_model_len", options_.max_length}, {"tokens", tokens}};
      response.set_content(answered.dump(), kJson);
    });
    post("/detokenize", [this](const std::string& body, httplib::Response& response) {
      const json answered = {
          {"prompt", parse_detokenize(body, *tokenizer_, reading_limit(stops_))}};
      response.set_content(answered.dump(-1, ' ', false, json::error_handler_t::replace), kJson);
    });
    post("/v1/chat/completions", [](const std::string&, httplib::Response&) {
      throw ProtocolFailure(
          {.status = 501,
           .message =
               "chat completions: expected POST /v1/completions, because this program has "
               "no engine of chat templates; `python -m contextile.serve MODEL` serves chats",
           .code = "unsupported_endpoint"});
    });
  }

  // NOTE: it reads the body itself: the library takes any body that curl labels as a form for a
  // form, and reads only 8 KiB of forms.
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
      } catch (const std::bad_alloc&) {
        answer(response, no_memory_left());
      }
    });
  }

  [[nodiscard]] std::string body_of(const httplib::Request& request,
                                    const httplib::Response& response,
                                    const httplib::ContentReader& reader) const {
    if (request.is_multipart_form_data()) {
      throw ProtocolFailure({.status = 415, .message = "request: expected JSON, found a form"});
    }
    std::string body;
    const auto most = static_cast<std::size_t>(options_.max_body_bytes);
    bool is_long = false;
    const bool is_whole = reader([&](const char* bytes, std::size_t size) {
      // A chunked or compressed body has no length that could be checked earlier.
      is_long = body.size() + size > most;
      if (!is_long) body.append(bytes, size);
      return !is_long;
    });
    if (is_whole) return body;
    if (HttpFront::chunks_are_malformed()) {
      throw ProtocolFailure(
          {.message = "request: expected a body in chunks, each of its size and its bytes"});
    }
    const int status = is_long || response.status == 413 ? 413 : 408;
    throw ProtocolFailure(
        {.status = status,
         .message = fmt::format("request: expected a body of at most {} bytes (--max-body-bytes), "
                                "whole within {} s",
                                options_.max_body_bytes, FrontLimits{}.body_time.count() / 1000)});
  }

  void add_answers() {
    server_.Get("/v1/models", [this](const httplib::Request&, httplib::Response& response) {
      const json models = {{"object", "list"}, {"data", json::array({model_json()})}};
      response.set_content(models.dump(), kJson);
    });
    server_.Get(R"(/v1/models/(.+))",
                [this](const httplib::Request& request, httplib::Response& response) {
                  if (request.matches[1] == options_.model) {
                    return response.set_content(model_json().dump(), kJson);
                  }
                  answer(response, another_model(options_.model, quote(request.matches[1].str())));
                });
    server_.Get("/version", [](const httplib::Request&, httplib::Response& response) {
      response.set_content(json({{"version", version()}}).dump(), kJson);
    });
    server_.Get("/health", [this](const httplib::Request&, httplib::Response& response) {
      const auto [status, text] = health_.now(options_.slow_step);
      response.status = status;
      response.set_content(text + '\n', "text/plain");
    });
    server_.Get("/metrics", [this](const httplib::Request&, httplib::Response& response) {
      response.set_content(health_.metrics(), "text/plain; version=0.0.4");
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
        [this](const httplib::Request&, httplib::Response& response, const std::exception_ptr&) {
          answer(response, {.status = 500, .type = "server_error", .message = "an internal error"});
        });
    server_.set_error_handler([this](const httplib::Request& request, httplib::Response& response) {
      if (!response.body.empty()) return;
      const std::string what =
          response.status == 404
              ? fmt::format(
                    "expected POST /v1/completions, /tokenize or /detokenize, GET /v1/models, "
                    "/version, /health or /metrics, found {} {}",
                    printable(request.method), printable(request.path))
          : response.status == 413
              ? std::string("request: expected fewer bytes (--max-body-bytes)")
              : fmt::format("the request cannot be served: HTTP status {}", response.status);
      answer(response, {.status = response.status,
                        .message = what,
                        .logged = response.status == 404 ? "no such method and path" : what});
    });
  }

  // One call from its first token to its last.
  struct Answer {
    Answer(CompletionRequest request, const Tokenizer& tokenizer, CompletionHead named)
        : asked(std::move(request)), completion(asked, tokenizer), head(std::move(named)) {}
    const CompletionRequest asked;
    Completion completion;
    const CompletionHead head;
    const Clock::time_point begin = Clock::now();
    Clock::time_point first_token{};
    Clock::time_point next_look = Clock::now() + kBetweenLooks;  // at whether the client is there
    std::shared_ptr<Call> call;
  };

  void complete(const std::string& body, httplib::Response& response) {
    const ProtocolLimits limits = {.model = options_.model,
                                   .vocab_size = options_.vocab_size,
                                   .max_length = options_.max_length,
                                   .sampling = options_.sampling,
                                   .look = reading_limit(stops_)};
    CompletionRequest asked = parse_completion(body, *tokenizer_, limits);
    const CompletionHead head = {"cmpl-" + response.get_header_value(kRequestId), options_.model,
                                 seconds_now()};
    const auto answered = std::make_shared<Answer>(std::move(asked), *tokenizer_, head);
    answered->call = queue_.submit(requests_of(
        answered->asked, answered->asked.has_seed ? answered->asked.sampling.seed : random_bits(),
        options_.end_tokens));
    // Nothing is sent before it is certain that the engines take it.
    const auto first = wait(*answered);
    if (!first) return;
    if (!first->failure.empty()) return fail(*answered, *first, response);
    if (answered->asked.stream) return stream(answered, response);
    while (!answered->completion.is_finished()) {
      const auto update = wait(*answered);
      if (!update) return;
      if (!update->failure.empty()) return fail(*answered, *update, response);
      if (!update->is_taken) static_cast<void>(take(*answered, *update));
    }
    note_end(*answered, "answered");
    response.set_content(
        text_of(*answered, answered->completion.choices(), answered->completion.usage()), kJson);
  }

  [[nodiscard]] std::string text_of(const Answer& answered,
                                    const std::vector<CompletionChoice>& choices,
                                    const std::optional<CompletionUsage>& usage) const {
    return completion_json(answered.head, answered.asked, *tokenizer_, choices, usage);
  }

  // The next update; none if the client has gone, and its request with it.
  [[nodiscard]] std::optional<CallUpdate> wait(Answer& answered) {
    while (true) {
      // By time, not when the queue is empty: tokens may come so fast that it never is.
      if (Clock::now() >= answered.next_look) {
        answered.next_look = Clock::now() + kBetweenLooks;
        if (HttpFront::client_is_gone()) {
          queue_.cancel(*answered.call);
          note_end(answered, "cancelled, the client has gone");
          return std::nullopt;
        }
      }
      if (auto update = answered.call->next(kBetweenLooks)) return update;
    }
  }

  void fail(const Answer& answered, const CallUpdate& update, httplib::Response& response) const {
    note_end(answered, "failed");
    answer(response, error_of(update));
  }

  void note_end(const Answer& answered, std::string_view outcome) const {
    if (options_.log < ServeLog::kRequests) return;
    const auto ms_since = [&](Clock::time_point end) {
      return end == Clock::time_point{}
                 ? 0
                 : std::chrono::duration_cast<std::chrono::milliseconds>(end - answered.begin)
                       .count();
    };
    const CompletionUsage& usage = answered.completion.usage();
    log(ServeLog::kRequests,
        fmt::format("{} {}: {} prompt tokens, {} of them cached, {} tokens; first after {} ms, all "
                    "after {} ms; {}",
                    answered.head.id, outcome, usage.prompt_tokens, usage.cached_tokens,
                    usage.completion_tokens, ms_since(answered.first_token), ms_since(Clock::now()),
                    finish_text(answered.completion)));
  }

  [[nodiscard]] CompletionChoice take(Answer& answered, const CallUpdate& update) {
    if (answered.first_token == Clock::time_point{}) answered.first_token = Clock::now();
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
    if (!update.failure.empty()) return event(refusal(error_of(update)));
    const CompletionChoice piece = take(answered, update);
    const bool shows = !piece.text.empty() || piece.finish_reason || answered.asked.return_tokens ||
                       answered.asked.logprobs;
    if (shows && !event(text_of(answered, {piece}, std::nullopt))) {
      return false;
    }
    if (!answered.completion.is_finished()) return true;
    if (answered.asked.include_usage &&
        !event(text_of(answered, {}, answered.completion.usage()))) {
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
    // However it ended, nothing of it is computed any more.
    const auto release = [this, answered](bool) {
      queue_.cancel(*answered->call);
      note_end(*answered, answered->completion.is_finished() ? "answered" : "ended early");
    };
    response.set_chunked_content_provider("text/event-stream", provide, release);
  }

  const ServeOptions options_;
  const std::unique_ptr<Tokenizer> tokenizer_;
  const std::int64_t created_s_ = seconds_now();
  RequestQueue queue_;
  EngineHealth health_;
  std::int32_t port_ = -1;
  bool was_ready_ = false;  // used by run alone
  std::atomic<bool> stops_ = false;
  HttpFront server_;  // the last: its threads use the others
};

}  // namespace

std::string_view completion_server_missing() { return {}; }

std::unique_ptr<CompletionServer> make_completion_server(const ServeOptions& options,
                                                         std::unique_ptr<Tokenizer> tokenizer) {
  return std::make_unique<HttpServer>(options, std::move(tokenizer));
}

}  // namespace contextile
