// Engines behind the OpenAI completions protocol, over HTTP.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/serving/engine.h"

namespace contextile {

// --------------------------------------------------------------------------------------- tokenizer
//
// Text to tokens and back.

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Throws InvalidArgument where the text cannot be had in tokens.
  [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // The bytes of a token, which need not be whole characters. Empty for tokens that stand for no
  // text.
  [[nodiscard]] virtual std::string_view bytes(std::int32_t token) const = 0;
};

// A token for each of the 256 bytes: for models that nobody trained.
[[nodiscard]] std::unique_ptr<Tokenizer> byte_tokenizer();
// That of a model's folder. Throws IoError and InvalidArgument.
[[nodiscard]] std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder);

// ------------------------------------------------------------------------------- completion server

struct ServeOptions {
  std::string host = "127.0.0.1";
  std::int32_t port = 8000;  // 0: a free one
  std::string model = "contextile";
  std::int32_t vocab_size = 0;
  std::int64_t max_length = 0;            // tokens of prompt and output
  std::vector<std::int32_t> end_tokens;   // end a completion unless it is asked to ignore them
  std::int32_t max_connections = 64;      // served at a time; others wait to be accepted
  std::int64_t max_body_bytes = 8 << 20;  // of a request
  // While nothing is to be done, ranks hear of each other this often.
  std::chrono::milliseconds heartbeat{5'000};
};

// What this build lacks to serve; empty: nothing.
[[nodiscard]] std::string_view completion_server_missing();

// POST /v1/completions, GET /v1/models, /health and /metrics. Threads of its own serve clients; one
// thread, that of the first rank, drives the engines.
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
