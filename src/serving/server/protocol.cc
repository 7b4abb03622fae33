#include "serving/server/protocol.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <set>
#include <system_error>

#include "base/check.h"
#include "base/parse_json.h"
#include "base/quote.h"
#include "serving/server/logprobs_json.h"
#include "serving/server/request_reader.h"
#include "serving/server/text_stream.h"

namespace contextile {
namespace {

using nlohmann::json;

constexpr std::size_t kMostStops = 16;
constexpr std::size_t kMostStopBytes = 1000;
constexpr std::size_t kMostStopTokens = 128;
constexpr std::size_t kMostBiases = 1024;
constexpr std::size_t kMostNodes = 1 << 16;  // objects, arrays, keys and texts of a request

void check_keys(const json& object) {
  static const std::set<std::string> kKnown = {"model",
                                               "prompt",
                                               "max_tokens",
                                               "n",
                                               "temperature",
                                               "top_p",
                                               "top_k",
                                               "seed",
                                               "min_p",
                                               "repetition_penalty",
                                               "presence_penalty",
                                               "frequency_penalty",
                                               "logit_bias",
                                               "max_completion_tokens",
                                               "stop",
                                               "stop_token_ids",
                                               "stream",
                                               "stream_options",
                                               "echo",
                                               "logprobs",
                                               "ignore_eos",
                                               "return_token_ids",
                                               "user",
                                               "add_special_tokens"};
  // Parameters that other servers take, and that clients send with a value that changes nothing.
  const auto is_neutral = [](const std::string& key, const json& value) {
    static const json kNeutral = {{"best_of", 1},
                                  {"include_stop_str_in_output", false},
                                  {"length_penalty", 1},
                                  {"logits_processors", json::array()},
                                  {"metadata", json::object()},
                                  {"min_tokens", 0},
                                  {"priority", 0},
                                  {"response_format", {{"type", "text"}}},
                                  {"service_tier", "auto"},
                                  {"skip_special_tokens", true},
                                  {"spaces_between_special_tokens", true},
                                  {"store", false},
                                  {"suffix", ""},
                                  {"tools", json::array()},
                                  {"use_beam_search", false}};
    const auto found = kNeutral.find(key);
    return value.is_null() || (found != kNeutral.end() && value == *found);
  };
  for (const auto& [key, value] : object.items()) {
    if (kKnown.contains(key) || is_neutral(key, value)) continue;
    throw ProtocolFailure({.message = fmt::format("{}: expected parameters of {}, found another",
                                                  printable(key), fmt::join(kKnown, ", ")),
                           .param = printable(key),
                           .code = "unsupported_parameter",
                           .logged = "a parameter that is not known"});
  }
}

[[noreturn]] void fail_length(std::int64_t max_length, const std::string& found) {
  throw ProtocolFailure(
      {.message = fmt::format("prompt: expected at most {} tokens of prompt and output, found {}",
                              max_length, found),
       .param = "prompt",
       .code = "context_length_exceeded",
       .logged = "prompt, longer than the context"});
}

std::vector<std::int32_t> tokens_of(const json& list, const ProtocolLimits& limits) {
  if (std::ssize(list) > limits.max_length) {
    fail_length(limits.max_length, fmt::format("{} of prompt", list.size()));
  }
  std::vector<std::int32_t> tokens;
  tokens.reserve(list.size());
  for (const json& token : list) {
    if (!json_integer(token, 0, limits.vocab_size - 1)) {
      fail_field("prompt", "expected token ids of 0 to {}, found {}", limits.vocab_size - 1,
                 shown(token));
    }
    tokens.push_back(token.get<std::int32_t>());
  }
  return tokens;
}

std::vector<std::int32_t> encode(const std::string& text, const Tokenizer& tokenizer,
                                 SpecialTokens special, const Look& look) {
  try {
    return tokenizer.encode_watched(text, special, look);
  } catch (const InvalidArgument& error) {
    fail_field("prompt", "{}", error.what());
  }
}

std::vector<std::int32_t> tokens_of_text(const std::string& text, const Tokenizer& tokenizer,
                                         const ProtocolLimits& limits, SpecialTokens special) {
  // Text that is certainly too long is not tokenized at all.
  const std::int64_t longest = tokenizer.longest_token_bytes();
  if (std::ssize(text) / longest > limits.max_length) {
    fail_length(limits.max_length,
                fmt::format("{} bytes, of which a token has at most {}", text.size(), longest));
  }
  std::vector<std::int32_t> tokens = encode(text, tokenizer, special, limits.look);
  for (const std::int32_t token : tokens) {
    if (token >= limits.vocab_size) {
      fail_field("prompt", "expected tokens of the model's {}, found token {} of the tokenizer",
                 limits.vocab_size, token);
    }
  }
  return tokens;
}

void add_prompt(const json& value, const Tokenizer& tokenizer, const ProtocolLimits& limits,
                SpecialTokens special, CompletionRequest& request) {
  std::vector<std::int32_t> tokens;
  std::string text;
  if (value.is_string()) {
    text = value.get<std::string>();
    tokens = tokens_of_text(text, tokenizer, limits, special);
  } else {
    tokens = tokens_of(value, limits);
    for (const std::int32_t token : tokens) text += tokenizer.bytes(token);
  }
  if (tokens.empty()) fail_field("prompt", "expected at least 1 token, found none");
  request.prompts.push_back(std::move(tokens));
  request.prompt_texts.push_back(std::move(text));
}

SpecialTokens special_of(const RequestReader& reader) {
  return reader.flag("add_special_tokens", true) ? SpecialTokens::kAdd : SpecialTokens::kNone;
}

// A text, token ids, or several of either.
void read_prompts(const RequestReader& reader, const Tokenizer& tokenizer,
                  const ProtocolLimits& limits, CompletionRequest& request) {
  const json* prompt = reader.find("prompt");
  if (prompt == nullptr) fail_field("prompt", "expected a text or token ids, found none");
  const SpecialTokens special = special_of(reader);
  const bool is_list = prompt->is_array() && !prompt->empty() &&
                       (prompt->front().is_string() || prompt->front().is_array());
  if (!is_list) {
    if (!prompt->is_string() && !prompt->is_array()) {
      fail_field("prompt", "expected a text or token ids, found {}", shown(*prompt));
    }
    add_prompt(*prompt, tokenizer, limits, special, request);
    return;
  }
  if (std::ssize(*prompt) > limits.max_completions) {
    fail_field("prompt", "expected at most {} completions, found {} prompts",
               limits.max_completions, prompt->size());
  }
  for (const json& one : *prompt) {
    if (!one.is_string() && !one.is_array()) {
      fail_field("prompt", "expected texts or lists of token ids, found {}", shown(one));
    }
    add_prompt(one, tokenizer, limits, special, request);
  }
}

void read_stops(const RequestReader& reader, const Tokenizer& tokenizer,
                CompletionRequest& request) {
  const json* stop = reader.find("stop");
  if (stop == nullptr) return;
  const json list = stop->is_array() ? *stop : json::array({*stop});
  if (list.size() > kMostStops) {
    fail_field("stop", "expected at most {} sequences, found {}", kMostStops, list.size());
  }
  for (const json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty() ||
        text.get_ref<const std::string&>().size() > kMostStopBytes) {
      fail_field("stop", "expected texts of 1 to {} bytes, found {}", kMostStopBytes, shown(text));
    }
    // A special token has no text in which a stop could be found.
    const auto token = tokenizer.special_token(text.get_ref<const std::string&>());
    if (token) request.stop_tokens.push_back(*token);
    request.stops.push_back(text.get<std::string>());
  }
}

void read_stop_tokens(const RequestReader& reader, const ProtocolLimits& limits,
                      CompletionRequest& request) {
  const json* tokens = reader.find("stop_token_ids");
  if (tokens == nullptr) return;
  if (!tokens->is_array() || tokens->size() > kMostStopTokens) {
    fail_field("stop_token_ids", "expected a list of at most {} token ids, found {}",
               kMostStopTokens,
               tokens->is_array() ? fmt::format("{}", tokens->size()) : shown(*tokens));
  }
  for (const json& token : *tokens) {
    if (!json_integer(token, 0, limits.vocab_size - 1)) {
      fail_field("stop_token_ids", "expected token ids of 0 to {}, found {}", limits.vocab_size - 1,
                 shown(token));
    }
    request.stop_tokens.push_back(token.get<std::int32_t>());
  }
}

// {"token id": bias}
void read_logit_bias(const RequestReader& reader, const ProtocolLimits& limits,
                     SamplingParams& sampling) {
  const json* biases = reader.find("logit_bias");
  if (biases == nullptr) return;
  if (!biases->is_object())
    fail_field("logit_bias", "expected an object, found {}", shown(*biases));
  if (biases->size() > kMostBiases) {
    fail_field("logit_bias", "expected at most {} tokens, found {}", kMostBiases, biases->size());
  }
  std::set<std::int32_t> tokens;
  for (const auto& [key, bias] : biases->items()) {
    std::int32_t token = -1;
    const char* end = key.data() + key.size();
    const auto read = std::from_chars(key.data(), end, token);
    const bool is_token = read.ec == std::errc() && read.ptr == end;
    if (!is_token || token < 0 || token >= limits.vocab_size || !tokens.insert(token).second) {
      fail_field("logit_bias", "expected different token ids of 0 to {}, found {}",
                 limits.vocab_size - 1, quote(key));
    }
    if (!bias.is_number() || !(std::abs(bias.get<double>()) <= 100)) {
      fail_field("logit_bias", "expected numbers of -100 to 100, found {}", shown(bias));
    }
    sampling.logit_bias.push_back({token, bias.get<float>()});
  }
}

void read_sampling(const RequestReader& reader, const ProtocolLimits& limits,
                   CompletionRequest& request) {
  constexpr auto kInt64 = std::numeric_limits<std::int64_t>();
  SamplingParams& sampling = request.sampling;
  sampling = limits.sampling;
  sampling.temperature = reader.number("temperature", sampling.temperature, 0, 2);
  sampling.top_p = reader.number("top_p", sampling.top_p, 1e-6, 1);
  const std::int64_t top_k =
      reader.integer("top_k", sampling.top_k, -1, std::numeric_limits<int>::max());
  // -1 means all, as in other servers.
  sampling.top_k = static_cast<std::int32_t>(std::max<std::int64_t>(top_k, 0));
  sampling.min_p = reader.number("min_p", sampling.min_p, 0, 1);
  sampling.repetition_penalty =
      reader.number("repetition_penalty", sampling.repetition_penalty, 0.01, 100);
  sampling.presence_penalty = reader.number("presence_penalty", 0, -2, 2);
  sampling.frequency_penalty = reader.number("frequency_penalty", 0, -2, 2);
  read_logit_bias(reader, limits, sampling);
  request.has_seed = reader.find("seed") != nullptr;
  sampling.seed = static_cast<std::uint64_t>(reader.integer("seed", 0, kInt64.min(), kInt64.max()));
}

void read_lengths(const RequestReader& reader, const ProtocolLimits& limits,
                  CompletionRequest& request) {
  constexpr const char* kNames[] = {"max_tokens", "max_completion_tokens"};
  if (reader.find(kNames[0]) != nullptr && reader.find(kNames[1]) != nullptr &&
      *reader.find(kNames[0]) != *reader.find(kNames[1])) {
    fail_field(kNames[1], "expected max_tokens, which is given, too, found {}",
               shown(*reader.find(kNames[1])));
  }
  const char* name = reader.find(kNames[1]) != nullptr ? kNames[1] : kNames[0];
  request.max_tokens = static_cast<std::int32_t>(reader.integer(name, 16, 0, limits.max_length));
  for (const std::vector<std::int32_t>& prompt : request.prompts) {
    if (std::ssize(prompt) + request.max_tokens > limits.max_length) {
      fail_length(limits.max_length, fmt::format("{} + {}", prompt.size(), request.max_tokens));
    }
  }
}

void read_logprobs(const RequestReader& reader, const ProtocolLimits& limits,
                   CompletionRequest& request) {
  const json* logprobs = reader.find("logprobs");
  if (logprobs == nullptr || *logprobs == false) return;
  request.logprobs = true;
  request.num_top =
      static_cast<std::int32_t>(reader.integer("logprobs", 0, 0, GenerationRequest::kMostLogprobs));
  if (!request.echo) return;
  std::int64_t count = 0;
  for (const auto& prompt : request.prompts) count += std::ssize(prompt);
  count *= std::int64_t{request.n} * (1 + request.num_top);
  if (count > limits.max_prompt_logprobs) {
    fail_field("logprobs",
               "expected at most {} of a call's prompts, alternatives included, found {}",
               limits.max_prompt_logprobs, count);
  }
}

void read_stream_options(const RequestReader& reader, CompletionRequest& request) {
  const json* options = reader.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object())
    fail_field("stream_options", "expected an object, found {}", shown(*options));
  if (!request.stream) fail_field("stream_options", "expected stream true next to it, found none");
  const RequestReader reader_of_options(*options);
  reader_of_options.check_keys("stream_options", {"include_usage"});
  request.include_usage = reader_of_options.flag("include_usage", false);
}

void check_user(const RequestReader& reader) {
  const json* user = reader.find("user");
  if (user != nullptr && !user->is_string()) {
    fail_field("user", "expected a text, found {}", shown(*user));
  }
}

void check_model(const RequestReader& reader, const ProtocolLimits& limits) {
  const json* model = reader.find("model");
  if (model == nullptr || *model == limits.model) return;
  throw ProtocolFailure(another_model(limits.model, shown(*model)));
}

LargeJson object_of(std::string_view body, const Look& look) {
  constexpr const char* kLogged = "request, no JSON object that can be read";
  try {
    LargeJson object(parse_json(body, "request", {.max_nodes = kMostNodes, .look = look}));
    if (object->is_object()) return object;
    throw ProtocolFailure(
        {.message = fmt::format("request: expected a JSON object, found {}", object->type_name()),
         .logged = kLogged});
  } catch (const InvalidArgument& error) {
    throw ProtocolFailure({.message = error.what(), .logged = kLogged});
  }
}

}  // namespace

ProtocolError another_model(const std::string& served, const std::string& found) {
  return {.status = 404,
          .message = fmt::format("model: expected {}, found {}", quote(served), found),
          .param = "model",
          .code = "model_not_found",
          .logged = "model, another one"};
}

ProtocolError another_origin(std::string_view found) {
  return {.status = 403,
          .message = fmt::format(
              "origin: expected a page of this server, by its address, or of --allow-origin, found "
              "{}",
              quote(found)),
          .logged = "origin, another one"};
}

ProtocolError no_memory_left() {
  return {.status = 503,
          .type = "server_error",
          .message = "the server has no memory left for this request; it may be sent again",
          .logged = "no memory left"};
}

CompletionRequest parse_completion(std::string_view body, const Tokenizer& tokenizer,
                                   const ProtocolLimits& limits) {
  const LargeJson object = object_of(body, limits.look);
  check_keys(*object);
  const RequestReader reader(*object);
  check_model(reader, limits);
  CompletionRequest request;
  read_prompts(reader, tokenizer, limits, request);
  request.n = static_cast<std::int32_t>(reader.integer("n", 1, 1, limits.max_completions));
  if (static_cast<std::int64_t>(request.prompts.size()) * request.n > limits.max_completions) {
    fail_field("prompt", "expected at most {} completions, found {} prompts of {}",
               limits.max_completions, request.prompts.size(), request.n);
  }
  read_lengths(reader, limits, request);
  read_sampling(reader, limits, request);
  read_stops(reader, tokenizer, request);
  read_stop_tokens(reader, limits, request);
  request.stream = reader.flag("stream", false);
  read_stream_options(reader, request);
  check_user(reader);
  request.echo = reader.flag("echo", false);
  read_logprobs(reader, limits, request);
  request.ignore_end = reader.flag("ignore_eos", false);
  request.return_tokens = reader.flag("return_token_ids", false);
  return request;
}

std::vector<std::int32_t> parse_tokenize(std::string_view body, const Tokenizer& tokenizer,
                                         const Look& look) {
  const LargeJson object = object_of(body, look);
  const RequestReader reader(*object);
  reader.check_keys("request", {"model", "prompt", "add_special_tokens"});
  const json* prompt = reader.find("prompt");
  if (prompt == nullptr || !prompt->is_string())
    fail_field("prompt", "expected a text, found none");
  return encode(prompt->get<std::string>(), tokenizer, special_of(reader), look);
}

std::string parse_detokenize(std::string_view body, const Tokenizer& tokenizer, const Look& look) {
  const LargeJson object = object_of(body, look);
  const RequestReader reader(*object);
  reader.check_keys("request", {"model", "tokens"});
  const json* tokens = reader.find("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    fail_field("tokens", "expected a list of token ids, found {}",
               tokens ? shown(*tokens) : "none");
  }
  TextStream text({});
  std::string whole;
  for (const json& token : *tokens) {
    if (!json_integer(token, 0, tokenizer.num_ids() - 1)) {
      fail_field("tokens", "expected token ids of 0 to {}, found {}", tokenizer.num_ids() - 1,
                 shown(token));
    }
    whole += text.add(tokenizer.bytes(token.get<std::int32_t>()));
  }
  return whole + text.finish();
}

std::string completion_json(const CompletionHead& head, const CompletionRequest& request,
                            const Tokenizer& tokenizer,
                            const std::vector<CompletionChoice>& choices,
                            const std::optional<CompletionUsage>& usage) {
  std::string list;
  for (const CompletionChoice& choice : choices) {
    json entry = {{"index", choice.index}, {"text", choice.text}};
    entry["finish_reason"] = choice.finish_reason ? json(*choice.finish_reason) : json(nullptr);
    if (request.return_tokens) entry["token_ids"] = choice.tokens;
    std::string text = entry.dump(-1, ' ', false, json::error_handler_t::replace);
    text.pop_back();
    list += (list.empty() ? "" : ",") + text + ",\"logprobs\":" +
            (request.logprobs ? logprobs_json(choice.logprobs, tokenizer) : "null") + "}";
  }
  json document = {{"id", head.id},
                   {"object", "text_completion"},
                   {"created", head.created_s},
                   {"model", head.model}};
  if (usage) {
    document["usage"] = {{"prompt_tokens", usage->prompt_tokens},
                         {"completion_tokens", usage->completion_tokens},
                         {"total_tokens", usage->prompt_tokens + usage->completion_tokens},
                         {"prompt_tokens_details", {{"cached_tokens", usage->cached_tokens}}}};
  }
  std::string text = document.dump(-1, ' ', false, json::error_handler_t::replace);
  text.pop_back();
  return text + ",\"choices\":[" + list + "]}";
}

std::string error_json(const ProtocolError& error) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? json(nullptr) : json(text);
  };
  const json document = {{"error",
                          {{"message", error.message},
                           {"type", error.type},
                           {"param", text_or_null(error.param)},
                           {"code", text_or_null(error.code)}}}};
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace contextile
