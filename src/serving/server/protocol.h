// The OpenAI completions protocol: requests and responses as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/look.h"
#include "contextile/base.h"
#include "contextile/serving/completion_server.h"
#include "contextile/serving/engine.h"

namespace contextile {

// The response to a client that is not served.
struct ProtocolError {
  int status = 400;
  std::string type = "invalid_request_error";
  std::string message = {};
  std::string param = {};  // empty: none
  std::string code = {};   // empty: none
  // The server's words for its log, without anything that the client sent. Empty: the type.
  std::string logged = {};
};
class ProtocolFailure : public Error {
 public:
  explicit ProtocolFailure(ProtocolError error) : Error(error.message), error_(std::move(error)) {}
  [[nodiscard]] const ProtocolError& error() const { return error_; }

 private:
  ProtocolError error_;
};

// The response to a request for another model than the served one. `found` is in quotes.
[[nodiscard]] ProtocolError another_model(const std::string& served, const std::string& found);
// The answer to a web page whose scripts may not call the server.
[[nodiscard]] ProtocolError another_origin(std::string_view found);
// The answer to a request that takes more memory than there is.
[[nodiscard]] ProtocolError no_memory_left();

struct CompletionRequest {
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<std::string> prompt_texts;  // what `echo` repeats
  std::int32_t max_tokens = 16;
  std::int32_t n = 1;  // completions of each prompt
  SamplingParams sampling = {.temperature = 1};
  bool has_seed = false;
  std::vector<std::string> stops;
  std::vector<std::int32_t> stop_tokens;  // stop_token_ids, and special tokens among the stops
  bool stream = false;
  bool include_usage = false;  // a last chunk with the usage, of a stream
  bool echo = false;
  bool logprobs = false;       // of the tokens that were chosen, and with echo of the prompt's
  std::int32_t num_top = 0;    // likeliest tokens next to each of them
  bool ignore_end = false;     // go on behind the model's end tokens
  bool return_tokens = false;  // token ids next to the text
};

struct ProtocolLimits {
  std::string model;  // the name that requests may give
  std::int32_t vocab_size = 0;
  std::int64_t max_length = 0;                   // tokens of prompt and output
  std::int32_t max_completions = 128;            // of one call
  std::int64_t max_prompt_logprobs = 1 << 18;    // of one call, alternatives included
  SamplingParams sampling = {.temperature = 1};  // of requests that do not say
  Look look = {};                                // called while a request is read
};

// Throws ProtocolFailure.
[[nodiscard]] CompletionRequest parse_completion(std::string_view body, const Tokenizer& tokenizer,
                                                 const ProtocolLimits& limits);

// The text of {"tokens": [token ids]}. Throws ProtocolFailure.
[[nodiscard]] std::string parse_detokenize(std::string_view body, const Tokenizer& tokenizer,
                                           const Look& look = {});
// The tokens of {"prompt": text, "add_special_tokens": true}. Throws ProtocolFailure.
[[nodiscard]] std::vector<std::int32_t> parse_tokenize(std::string_view body,
                                                       const Tokenizer& tokenizer,
                                                       const Look& look = {});

// Log-probabilities of consecutive tokens; NaN of a token with none before it.
struct ChoiceLogprobs {
  std::int32_t num_top = 0;
  std::vector<TokenLogprob> chosen = {};   // [n]
  std::vector<TokenLogprob> top = {};      // [n, num_top]; kNoToken where there are fewer
  std::vector<std::int64_t> offsets = {};  // [n], characters of the text before each token
};
// One completion of a call, or a piece of it in a stream.
struct CompletionChoice {
  std::int32_t index = 0;
  std::string text = {};
  std::vector<std::int32_t> tokens = {};
  ChoiceLogprobs logprobs = {};  // if the call has `logprobs`
  std::optional<std::string_view> finish_reason = {};
};
struct CompletionUsage {
  std::int64_t prompt_tokens = 0;
  std::int64_t completion_tokens = 0;
  std::int64_t cached_tokens = 0;
};
// The fields that all chunks of a call have.
struct CompletionHead {
  std::string id;
  std::string model;
  std::int64_t created_s = 0;
};

[[nodiscard]] std::string completion_json(const CompletionHead& head,
                                          const CompletionRequest& request,
                                          const Tokenizer& tokenizer,
                                          const std::vector<CompletionChoice>& choices,
                                          const std::optional<CompletionUsage>& usage);
[[nodiscard]] std::string error_json(const ProtocolError& error);

}  // namespace contextile
