// Serves engines over HTTP by the OpenAI completions protocol.
//
//   const std::unique_ptr<CompletionServer> server =
//       make_completion_server({.port = 8000, .vocab_size = 256}, byte_tokenizer());
//   std::printf("port %d\n", server->port());  // server->run(rank, engine) serves
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
// Conversion of text to tokens and back.

// Selects if encode adds the tokens that a tokenizer puts before every text, such as the
// beginning-of-text token.
enum class SpecialTokens : std::uint8_t { kAdd, kNone };

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Returns the tokens of a text, in time linear in its length. kAdd adds no token that the text
  // begins with already. Throws InvalidArgument on text that is not UTF-8 or that tokens cannot
  // represent.
  [[nodiscard]] virtual std::vector<std::int32_t> encode(
      std::string_view text, SpecialTokens special = SpecialTokens::kAdd) const = 0;
  // The same, with a callback that long work calls now and then. An exception that `look` throws
  // ends the work, which is how a server that stops gives up a long text.
  [[nodiscard]] virtual std::vector<std::int32_t> encode_watched(
      std::string_view text, SpecialTokens special, const std::function<void()>& look) const {
    if (look) look();
    return encode(text, special);
  }
  // Returns the bytes of a token, which need not be whole characters. Empty for tokens that
  // represent no text.
  [[nodiscard]] virtual std::string_view bytes(std::int32_t token) const = 0;
  // Returns how answers write a token: its bytes, or the text of a special token.
  [[nodiscard]] virtual std::string_view name(std::int32_t token) const { return bytes(token); }
  // Returns the largest token id plus 1.
  [[nodiscard]] virtual std::int32_t num_ids() const = 0;
  // Returns the length of the longest text of one token, in bytes, special tokens included.
  [[nodiscard]] virtual std::int64_t longest_token_bytes() const = 0;
  // Returns the special token that is written as `text` ("<|im_end|>"), if there is one.
  [[nodiscard]] virtual std::optional<std::int32_t> special_token(std::string_view text) const = 0;
};

// Returns a tokenizer with one token for each of the 256 bytes, for untrained models.
[[nodiscard]] std::unique_ptr<Tokenizer> byte_tokenizer();
// Loads the tokenizer of a model's folder. Throws IoError and InvalidArgument.
[[nodiscard]] std::unique_ptr<Tokenizer> load_tokenizer(const std::string& folder);

// The sampling that a model's makers recommend.
struct GenerationDefaults {
  SamplingParams sampling = {.temperature = 1};
  // Fields that would change completions and that the server does not have: "typical_p 0.9".
  std::vector<std::string> ignored;
};
// Reads generation_config.json in a model's folder: temperature, top_p, top_k, min_p,
// repetition_penalty and do_sample, where false means the likeliest token. Without the file, the
// defaults are those of the protocol. Throws IoError and InvalidArgument.
[[nodiscard]] GenerationDefaults read_generation_defaults(const std::string& folder);

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
  // Interval at which ranks exchange messages while there is nothing to compute.
  std::chrono::milliseconds heartbeat{2'000};
  // Time without the end of a step after which /health says that the server is degraded.
  std::chrono::milliseconds slow_step{10'000};
  ServeLog log = ServeLog::kEvents;
  std::function<void(const std::string& line)> write_log = {};  // unset: standard error
  // Called by the first run, in its thread, when the engines are ready and /health says so.
  std::function<void()> on_ready = {};
};

// Returns what this build lacks for serving; empty: nothing.
[[nodiscard]] std::string_view completion_server_missing();

// Answers POST /v1/completions, /tokenize and /detokenize, GET /v1/models, /version, /health and
// /metrics on threads of its own; one thread, that of the first rank, drives the engines. Until run
// is called, /health says "starting" and completions wait.
class CompletionServer {
 public:
  // Ends all requests in progress with an error to their clients.
  virtual ~CompletionServer() = default;

  [[nodiscard]] virtual std::int32_t port() const = 0;
  // Serves until stop, on the first rank; the others call advance until it has stopped. Throws the
  // errors of EngineRank::advance. In that case clients whose requests had begun receive an error,
  // the others stay, and it may be called with new engines.
  virtual void run(EngineRank& rank, const Engine& engine) = 0;
  // Makes run return and ends requests in progress with an error to their clients. May be called
  // from any thread.
  virtual void stop(const std::string& reason) = 0;
};

// Makes a server that listens from now on. Throws IoError if the address is not available, and
// InvalidArgument if this build cannot serve.
[[nodiscard]] std::unique_ptr<CompletionServer> make_completion_server(
    const ServeOptions& options, std::unique_ptr<Tokenizer> tokenizer);

}  // namespace contextile
