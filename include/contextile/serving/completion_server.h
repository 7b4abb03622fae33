// Engines behind the OpenAI completions protocol, over HTTP.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/serving/engine.h"

namespace contextile {

// --------------------------------------------------------------------------------------- tokenizer
//
// Text to tokens and back.

// Whether the tokens that a tokenizer puts before every text (the beginning-of-text token) are added.
enum class SpecialTokens : std::uint8_t { kAdd, kNone };

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // The tokens of a text. kAdd adds no token that the text begins with already. Time is linear in
  // the text. Throws InvalidArgument on text that is not UTF-8 or has characters without a token.
  [[nodiscard]] virtual std::vector<std::int32_t> encode(
      std::string_view text, SpecialTokens special = SpecialTokens::kAdd) const = 0;
  // The bytes of a token, which need not be whole characters. Empty for tokens that stand for no
  // text.
  [[nodiscard]] virtual std::string_view bytes(std::int32_t token) const = 0;
  // The largest token id plus 1.
  [[nodiscard]] virtual std::int32_t num_ids() const = 0;
  // The length in bytes of the longest text that one token stands for, special tokens included.
  [[nodiscard]] virtual std::int64_t longest_token_bytes() const = 0;
  // The special token that is written so ("<|im_end|>"); none if there is no such token.
  [[nodiscard]] virtual std::optional<std::int32_t> special_token(std::string_view text) const = 0;
};

// A token for each of the 256 bytes: for models that nobody trained.
[[nodiscard]] std::unique_ptr<Tokenizer> byte_tokenizer();
// That of a model's folder. Throws IoError and InvalidArgument.
[[nodiscard]] std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder);

// ------------------------------------------------------------------------------- completion server

// How much a server writes to its log.
enum class ServeLog : std::uint8_t {
  kQuiet,     // nothing
  kEvents,    // lost and returned engines, refused requests, preemptions
  kRequests,  // these, and one line for each request
};

struct ServeOptions {
  std::string host = "127.0.0.1";
  std::int32_t port = 8000;  // 0: a free one
  std::string model = "contextile";
  std::int32_t vocab_size = 0;                   // prompts with larger token ids are refused
  std::int64_t max_length = 0;                   // tokens of prompt and output
  std::vector<std::int32_t> end_tokens;          // end a completion unless it asks to ignore them
  SamplingParams sampling = {.temperature = 1};  // of requests that do not say
  std::int32_t max_connections = 64;             // requests served at a time; others wait
  std::int64_t max_body_bytes = 8 << 20;         // of a request
  std::string allow_origin;  // of the pages whose scripts may call the server; empty: none
  // How often ranks exchange messages while there is nothing to compute.
  std::chrono::milliseconds heartbeat{2'000};
  // After this long without the end of a step, /health says that the server is degraded.
  std::chrono::milliseconds slow_step{10'000};
  ServeLog log = ServeLog::kEvents;
  std::function<void(const std::string& line)> write_log = {};  // unset: standard error
};

// What this build lacks to serve; empty: nothing.
[[nodiscard]] std::string_view completion_server_missing();

// Answers POST /v1/completions and /tokenize, GET /v1/models, /health and /metrics on threads of its
// own; one thread, that of the first rank, drives the engines. Until run is called, /health says
// "starting" and completions wait.
class CompletionServer {
 public:
  // Ends what is under way with an error to its clients.
  virtual ~CompletionServer() = default;

  [[nodiscard]] virtual std::int32_t port() const = 0;
  // Serves until stop, on the first rank; the others call advance until it has stopped. Throws what
  // EngineRank::advance throws: then clients whose requests had begun are told so, the others stay,
  // and it may be called with new engines.
  virtual void run(EngineRank& rank, const Engine& engine) = 0;
  // From any thread: run returns, and what is under way ends with an error to its client.
  virtual void stop(const std::string& reason) = 0;
};

// Listens from now on. Throws IoError where the address is not to be had, and InvalidArgument where
// this build lacks what it takes.
[[nodiscard]] std::unique_ptr<CompletionServer> make_completion_server(
    const ServeOptions& options, std::unique_ptr<Tokenizer> tokenizer);

}  // namespace contextile
