#include "serving/server/logprobs_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "base/utf8.h"

namespace contextile {
namespace {

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = utf8_bytes(text);
    if (size == 0) return false;
    text.remove_prefix(size);
  }
  return true;
}

std::string id_name(std::int32_t token) { return fmt::format("token_id:{}", token); }

std::string json_text(const std::string& text) { return nlohmann::json(text).dump(); }

// JSON has no infinity. Other servers have this value, too.
std::string number(float logprob) {
  constexpr float kLeast = -9999;
  return std::isnan(logprob) ? "null" : fmt::format("{}", std::max(logprob, kLeast));
}

// The likeliest tokens and the chosen one. Tokens of the same text have different names.
std::string top_json(std::span<const TokenLogprob> top, const TokenLogprob& chosen,
                     const Tokenizer& tokenizer) {
  std::vector<TokenLogprob> tokens;
  for (const TokenLogprob& its : top) {
    if (its.token != EngineEvent::kNoToken) tokens.push_back(its);
  }
  if (std::ranges::find(tokens, chosen.token, &TokenLogprob::token) == tokens.end()) {
    tokens.push_back(chosen);
  }
  std::vector<std::string> names;
  std::string text = "{";
  for (const TokenLogprob& its : tokens) {
    std::string name = token_name(tokenizer, its.token);
    if (std::ranges::find(names, name) != names.end()) name = id_name(its.token);
    if (!names.empty()) text += ',';
    text += json_text(name) + ':' + number(its.logprob);
    names.push_back(std::move(name));
  }
  return text + '}';
}

}  // namespace

std::string token_name(const Tokenizer& tokenizer, std::int32_t token) {
  const std::string_view name = tokenizer.name(token);
  return name.empty() || !is_utf8(name) ? id_name(token) : std::string(name);
}

std::string logprobs_json(const ChoiceLogprobs& logprobs, const Tokenizer& tokenizer) {
  std::string tokens;
  std::string values;
  std::string tops;
  const auto num_top = static_cast<std::size_t>(logprobs.num_top);
  for (std::size_t i = 0; i < logprobs.chosen.size(); ++i) {
    const TokenLogprob& chosen = logprobs.chosen[i];
    const char* comma = i == 0 ? "" : ",";
    tokens += comma + json_text(token_name(tokenizer, chosen.token));
    values += comma + number(chosen.logprob);
    if (num_top == 0) continue;
    const auto top = std::span(logprobs.top).subspan(i * num_top, num_top);
    tops += comma + (std::isnan(chosen.logprob) ? "null" : top_json(top, chosen, tokenizer));
  }
  return fmt::format(
      R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":{},"text_offset":[{}]}})", tokens,
      values, num_top == 0 ? "null" : '[' + tops + ']', fmt::join(logprobs.offsets, ","));
}

}  // namespace contextile
