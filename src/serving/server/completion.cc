#include "serving/server/completion.h"

#include <cstddef>

namespace contextile {

Completion::Completion(const CompletionRequest& request, const Tokenizer& tokenizer)
    : request_(request), tokenizer_(tokenizer) {
  for (const auto& prompt : request.prompts) {
    usage_.prompt_tokens += static_cast<std::int64_t>(prompt.size());
    for (std::int32_t i = 0; i < request.n; ++i) {
      texts_.emplace_back(request.stops);
      choices_.push_back({.index = static_cast<std::int32_t>(choices_.size())});
    }
  }
  num_open_ = choices_.size();
}

CompletionChoice Completion::add(std::int32_t index, const EngineEvent& event) {
  const auto i = static_cast<std::size_t>(index);
  CompletionChoice& whole = choices_.at(i);
  CompletionChoice piece = {.index = index};
  if (whole.finish_reason) return piece;
  const bool is_first = whole.tokens.empty();
  if (is_first && request_.echo) {
    piece.text = request_.prompt_texts[i / static_cast<std::size_t>(request_.n)];
  }
  if (is_first && index % request_.n == 0) usage_.cached_tokens += event.cached_tokens;
  ++usage_.completion_tokens;
  // A token that ends the request is not part of its text.
  const bool is_end = event.finish == FinishReason::kStop;
  const std::string_view bytes = is_end ? std::string_view() : tokenizer_.bytes(event.token);
  piece.text += texts_[i].add(bytes);
  piece.tokens = {event.token};
  piece.logprobs = {event.logprob};
  TextStream alone({});
  std::string token_text = alone.add(bytes);
  token_text += alone.finish();
  piece.token_texts = {std::move(token_text)};
  if (event.finish && !texts_[i].stopped()) {
    piece.text += texts_[i].finish();
    piece.finish_reason = to_string(*event.finish);
  } else if (texts_[i].stopped()) {
    piece.finish_reason = to_string(FinishReason::kStop);
  }
  if (piece.finish_reason) --num_open_;
  whole.text += piece.text;
  whole.tokens.push_back(event.token);
  whole.logprobs.push_back(event.logprob);
  whole.token_texts.push_back(piece.token_texts.front());
  whole.finish_reason = piece.finish_reason;
  return piece;
}

bool Completion::ends_early(std::int32_t index, const EngineEvent& event) const {
  return choices_.at(static_cast<std::size_t>(index)).finish_reason && !event.finish;
}

}  // namespace contextile
