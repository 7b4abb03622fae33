#include "serving/server/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace contextile {

std::vector<GenerationRequest> requests_of(const CompletionRequest& asked, std::uint64_t seed,
                                           const std::vector<std::int32_t>& end_tokens) {
  std::vector<GenerationRequest> requests;
  for (const std::vector<std::int32_t>& prompt : asked.prompts) {
    for (std::int32_t i = 0; i < asked.n; ++i) {
      GenerationRequest request;
      request.prompt = prompt;
      request.max_tokens = asked.max_tokens;
      request.num_logprobs = asked.num_top;
      request.scores_prompt = asked.echo && asked.logprobs;
      request.sampling = asked.sampling;
      request.sampling.seed = seed + static_cast<std::uint64_t>(i);
      if (!asked.ignore_end) request.stop_tokens = end_tokens;
      request.stop_tokens.insert(request.stop_tokens.end(), asked.stop_tokens.begin(),
                                 asked.stop_tokens.end());
      requests.push_back(std::move(request));
    }
  }
  return requests;
}

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
  offsets_.resize(choices_.size());
}

// A character that several tokens make begins with the first of them.
void Completion::add_logprobs(const TokenLogprob& token, std::span<const TokenLogprob> top,
                              CompletionChoice& whole, CompletionChoice& piece) {
  std::int64_t& offset = offsets_[static_cast<std::size_t>(whole.index)];
  for (ChoiceLogprobs* logprobs : {&whole.logprobs, &piece.logprobs}) {
    logprobs->num_top = request_.num_top;
    logprobs->chosen.push_back(token);
    for (std::size_t i = 0; i < static_cast<std::size_t>(request_.num_top); ++i) {
      logprobs->top.push_back(i < top.size() ? top[i] : TokenLogprob{EngineEvent::kNoToken, 0});
    }
    logprobs->offsets.push_back(offset);
  }
  offset += std::ranges::count_if(tokenizer_.bytes(token.token), [](char byte) {
    return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80U;
  });
}

void Completion::add_prompt(const EngineEvent& event, CompletionChoice& whole,
                            CompletionChoice& piece) {
  const std::int32_t index = whole.index / request_.n;
  const std::vector<std::int32_t>& prompt = request_.prompts[static_cast<std::size_t>(index)];
  const auto num_top = static_cast<std::size_t>(request_.num_top);
  add_logprobs({prompt.front(), std::numeric_limits<float>::quiet_NaN()}, {}, whole, piece);
  for (std::size_t i = 0; i < event.prompt.tokens.size(); ++i) {
    const TokenLogprob token = {prompt.at(i + 1), event.prompt.tokens[i]};
    add_logprobs(token, std::span(event.prompt.top).subspan(i * num_top, num_top), whole, piece);
  }
}

CompletionChoice Completion::add(std::int32_t index, const EngineEvent& event) {
  const auto i = static_cast<std::size_t>(index);
  CompletionChoice& whole = choices_.at(i);
  CompletionChoice piece = {.index = index};
  if (whole.finish_reason) return piece;
  const bool is_first = whole.tokens.empty();
  if (is_first && request_.echo) {
    piece.text = request_.prompt_texts[i / static_cast<std::size_t>(request_.n)];
    if (request_.logprobs) add_prompt(event, whole, piece);
  }
  if (is_first && index % request_.n == 0) usage_.cached_tokens += event.cached_tokens;
  if (event.token != EngineEvent::kNoToken) {
    ++usage_.completion_tokens;
    // A token that ends the request is not part of its text.
    const bool is_end = event.finish == FinishReason::kStop;
    piece.text += texts_[i].add(is_end ? std::string_view() : tokenizer_.bytes(event.token));
    piece.tokens = {event.token};
    whole.tokens.push_back(event.token);
    if (request_.logprobs) add_logprobs({event.token, event.logprob}, event.top, whole, piece);
  }
  if (event.finish && !texts_[i].stopped()) {
    piece.text += texts_[i].finish();
    piece.finish_reason = to_string(*event.finish);
  } else if (texts_[i].stopped()) {
    piece.finish_reason = to_string(FinishReason::kStop);
  }
  if (piece.finish_reason) --num_open_;
  whole.text += piece.text;
  whole.finish_reason = piece.finish_reason;
  return piece;
}

bool Completion::ends_early(std::int32_t index, const EngineEvent& event) const {
  return choices_.at(static_cast<std::size_t>(index)).finish_reason && !event.finish;
}

std::string finish_text(const Completion& completion) {
  std::vector<std::string_view> reasons;
  for (const CompletionChoice& choice : completion.choices()) {
    reasons.push_back(choice.finish_reason.value_or("unfinished"));
  }
  return fmt::format("{}", fmt::join(reasons, ", "));
}

}  // namespace contextile
