#include "serving/server/protocol.h"

#include <cmath>
#include <limits>
#include <set>

#include "base/check.h"
#include "base/parse_json.h"
#include "base/quote.h"

namespace contextile {
namespace {

using nlohmann::json;

constexpr std::size_t kMostStops = 16;
constexpr std::size_t kMostStopBytes = 1000;

template <typename... Args>
[[noreturn]] void fail(const char* param, fmt::format_string<Args...> format, Args&&... args) {
  throw ProtocolFailure(
      {.message = fmt::format("{}: {}", param, fmt::format(format, std::forward<Args>(args)...)),
       .param = param});
}

std::string shown(const json& value) {
  return quote(value.dump(-1, ' ', true, json::error_handler_t::replace));
}

// nlohmann's comparison would wrap numbers of 2^63 and more.
bool is_integer(const json& value, std::int64_t least, std::int64_t most) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<std::uint64_t>();
    return number <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) &&
           static_cast<std::int64_t>(number) >= least && static_cast<std::int64_t>(number) <= most;
  }
  return value.is_number_integer() && value.get<std::int64_t>() >= least &&
         value.get<std::int64_t>() <= most;
}

class RequestReader {
 public:
  explicit RequestReader(const json& object) : object_(object) {}

  // Null means that the key is absent.
  [[nodiscard]] const json* find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  [[nodiscard]] std::int64_t integer(const char* key, std::int64_t unless, std::int64_t least,
                                     std::int64_t most) const {
    const json* value = find(key);
    if (value == nullptr) return unless;
    if (!is_integer(*value, least, most)) {
      fail(key, "expected an integer of {} to {}, found {}", least, most, shown(*value));
    }
    return value->get<std::int64_t>();
  }
  // Refuses keys that are none of `known`, unless their value is null.
  void check_keys(const char* where, const std::set<std::string>& known) const {
    for (const auto& [key, value] : object_.items()) {
      if (known.contains(key) || value.is_null()) continue;
      fail(where, "expected {}, found {}", fmt::join(known, ", "), quote(key));
    }
  }
  [[nodiscard]] double number(const char* key, double unless, double least, double most) const {
    const json* value = find(key);
    if (value == nullptr) return unless;
    if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most)) {
      fail(key, "expected a number of {} to {}, found {}", least, most, shown(*value));
    }
    return value->get<double>();
  }
  [[nodiscard]] bool flag(const char* key, bool unless) const {
    const json* value = find(key);
    if (value == nullptr) return unless;
    if (!value->is_boolean()) fail(key, "expected true or false, found {}", shown(*value));
    return value->get<bool>();
  }

 private:
  const json& object_;
};

void check_keys(const json& object) {
  static const std::set<std::string> kKnown = {"model",
                                               "prompt",
                                               "max_tokens",
                                               "n",
                                               "temperature",
                                               "top_p",
                                               "top_k",
                                               "seed",
                                               "stop",
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
    if (value.is_null()) return true;
    if (key == "presence_penalty" || key == "frequency_penalty") return value == 0;
    if (key == "best_of") return value == 1;
    if (key == "suffix") return value == "";
    if (key == "logit_bias") return value.is_object() && value.empty();
    return false;
  };
  for (const auto& [key, value] : object.items()) {
    if (kKnown.contains(key) || is_neutral(key, value)) continue;
    throw ProtocolFailure({.message = fmt::format("expected parameters of {}, found {}",
                                                  fmt::join(kKnown, ", "), quote(key)),
                           .param = printable(key),
                           .code = "unsupported_parameter"});
  }
}

[[noreturn]] void fail_length(std::int64_t max_length, const std::string& found) {
  throw ProtocolFailure(
      {.message = fmt::format("prompt: expected at most {} tokens of prompt and output, found {}",
                              max_length, found),
       .param = "prompt",
       .code = "context_length_exceeded"});
}

std::vector<std::int32_t> tokens_of(const json& list, const ProtocolLimits& limits) {
  if (std::ssize(list) > limits.max_length) {
    fail_length(limits.max_length, fmt::format("{} of prompt", list.size()));
  }
  std::vector<std::int32_t> tokens;
  tokens.reserve(list.size());
  for (const json& token : list) {
    if (!is_integer(token, 0, limits.vocab_size - 1)) {
      fail("prompt", "expected token ids of 0 to {}, found {}", limits.vocab_size - 1,
           shown(token));
    }
    tokens.push_back(token.get<std::int32_t>());
  }
  return tokens;
}

std::vector<std::int32_t> encode(const std::string& text, const Tokenizer& tokenizer,
                                 SpecialTokens special) {
  try {
    return tokenizer.encode(text, special);
  } catch (const InvalidArgument& error) {
    fail("prompt", "{}", error.what());
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
  std::vector<std::int32_t> tokens = encode(text, tokenizer, special);
  for (const std::int32_t token : tokens) {
    if (token >= limits.vocab_size) {
      fail("prompt", "expected tokens of the model's {}, found token {} of the tokenizer",
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
  if (tokens.empty()) fail("prompt", "expected at least 1 token, found none");
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
  if (prompt == nullptr) fail("prompt", "expected a text or token ids, found none");
  const SpecialTokens special = special_of(reader);
  const bool is_list = prompt->is_array() && !prompt->empty() &&
                       (prompt->front().is_string() || prompt->front().is_array());
  if (!is_list) {
    if (!prompt->is_string() && !prompt->is_array()) {
      fail("prompt", "expected a text or token ids, found {}", shown(*prompt));
    }
    add_prompt(*prompt, tokenizer, limits, special, request);
    return;
  }
  if (std::ssize(*prompt) > limits.max_completions) {
    fail("prompt", "expected at most {} completions, found {} prompts", limits.max_completions,
         prompt->size());
  }
  for (const json& one : *prompt) {
    if (!one.is_string() && !one.is_array()) {
      fail("prompt", "expected texts or lists of token ids, found {}", shown(one));
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
    fail("stop", "expected at most {} sequences, found {}", kMostStops, list.size());
  }
  for (const json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty() ||
        text.get_ref<const std::string&>().size() > kMostStopBytes) {
      fail("stop", "expected texts of 1 to {} bytes, found {}", kMostStopBytes, shown(text));
    }
    // A special token has no text in which a stop could be found.
    const auto token = tokenizer.special_token(text.get_ref<const std::string&>());
    if (token) request.stop_tokens.push_back(*token);
    request.stops.push_back(text.get<std::string>());
  }
}

void read_stream_options(const RequestReader& reader, CompletionRequest& request) {
  const json* options = reader.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object())
    fail("stream_options", "expected an object, found {}", shown(*options));
  const RequestReader reader_of_options(*options);
  reader_of_options.check_keys("stream_options", {"include_usage"});
  request.include_usage = reader_of_options.flag("include_usage", false);
}

void check_model(const RequestReader& reader, const ProtocolLimits& limits) {
  const json* model = reader.find("model");
  if (model == nullptr || *model == limits.model) return;
  throw ProtocolFailure(
      {.status = 404,
       .message = fmt::format("model: expected {}, found {}", quote(limits.model), shown(*model)),
       .param = "model",
       .code = "model_not_found"});
}

json object_of(std::string_view body) {
  try {
    json object = parse_json(body, "request");
    if (object.is_object()) return object;
    throw ProtocolFailure(
        {.message = fmt::format("request: expected a JSON object, found {}", object.type_name())});
  } catch (const InvalidArgument& error) {
    throw ProtocolFailure({.message = error.what()});
  }
}

json logprobs_json(const CompletionChoice& choice) {
  return {{"tokens", choice.token_texts},
          {"token_logprobs", choice.logprobs},
          {"top_logprobs", nullptr}};
}

}  // namespace

CompletionRequest parse_completion(std::string_view body, const Tokenizer& tokenizer,
                                   const ProtocolLimits& limits) {
  const json object = object_of(body);
  check_keys(object);
  const RequestReader reader(object);
  check_model(reader, limits);
  CompletionRequest request;
  read_prompts(reader, tokenizer, limits, request);
  request.n = static_cast<std::int32_t>(reader.integer("n", 1, 1, limits.max_completions));
  if (static_cast<std::int64_t>(request.prompts.size()) * request.n > limits.max_completions) {
    fail("prompt", "expected at most {} completions, found {} prompts of {}",
         limits.max_completions, request.prompts.size(), request.n);
  }
  request.max_tokens =
      static_cast<std::int32_t>(reader.integer("max_tokens", 16, 1, limits.max_length));
  for (const std::vector<std::int32_t>& prompt : request.prompts) {
    if (std::ssize(prompt) + request.max_tokens > limits.max_length) {
      fail_length(limits.max_length, fmt::format("{} + {}", prompt.size(), request.max_tokens));
    }
  }
  const SamplingParams& unless = limits.sampling;
  request.sampling.temperature = reader.number("temperature", unless.temperature, 0, 2);
  request.sampling.top_p = reader.number("top_p", unless.top_p, 1e-6, 1);
  request.sampling.top_k = static_cast<std::int32_t>(
      reader.integer("top_k", unless.top_k, -1, std::numeric_limits<int>::max()));
  request.sampling.top_k =
      std::max(request.sampling.top_k, 0);  // -1: all, as other servers have it
  request.has_seed = reader.find("seed") != nullptr;
  request.sampling.seed =
      static_cast<std::uint64_t>(reader.integer("seed", 0, std::numeric_limits<std::int64_t>::min(),
                                                std::numeric_limits<std::int64_t>::max()));
  read_stops(reader, tokenizer, request);
  request.stream = reader.flag("stream", false);
  read_stream_options(reader, request);
  request.echo = reader.flag("echo", false);
  if (const json* logprobs = reader.find("logprobs")) {
    if (*logprobs != 0)
      fail("logprobs", "expected 0, of the chosen tokens alone, found {}", shown(*logprobs));
    request.logprobs = true;
  }
  request.ignore_end = reader.flag("ignore_eos", false);
  request.return_tokens = reader.flag("return_token_ids", false);
  return request;
}

std::vector<std::int32_t> parse_tokenize(std::string_view body, const Tokenizer& tokenizer) {
  const json object = object_of(body);
  const RequestReader reader(object);
  reader.check_keys("request", {"model", "prompt", "add_special_tokens"});
  const json* prompt = reader.find("prompt");
  if (prompt == nullptr || !prompt->is_string()) fail("prompt", "expected a text, found none");
  return encode(prompt->get<std::string>(), tokenizer, special_of(reader));
}

std::string completion_json(const CompletionHead& head, const CompletionRequest& request,
                            const std::vector<CompletionChoice>& choices,
                            const std::optional<CompletionUsage>& usage) {
  json list = json::array();
  for (const CompletionChoice& choice : choices) {
    json entry = {{"index", choice.index}, {"text", choice.text}, {"logprobs", nullptr}};
    entry["finish_reason"] = choice.finish_reason ? json(*choice.finish_reason) : json(nullptr);
    if (request.logprobs) entry["logprobs"] = logprobs_json(choice);
    if (request.return_tokens) entry["token_ids"] = choice.tokens;
    list.push_back(std::move(entry));
  }
  json document = {{"id", head.id},
                   {"object", "text_completion"},
                   {"created", head.created_s},
                   {"model", head.model},
                   {"choices", std::move(list)}};
  if (usage) {
    document["usage"] = {{"prompt_tokens", usage->prompt_tokens},
                         {"completion_tokens", usage->completion_tokens},
                         {"total_tokens", usage->prompt_tokens + usage->completion_tokens},
                         {"prompt_tokens_details", {{"cached_tokens", usage->cached_tokens}}}};
  }
  return document.dump(-1, ' ', false, json::error_handler_t::replace);
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
