// The completions of one call, as their tokens come.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/serving/completion_server.h"
#include "contextile/serving/engine.h"
#include "serving/server/protocol.h"
#include "serving/server/text_stream.h"

namespace contextile {

// The requests of a call to the engines: n for each prompt, with seeds from `seed` on.
[[nodiscard]] std::vector<GenerationRequest> requests_of(
    const CompletionRequest& asked, std::uint64_t seed,
    const std::vector<std::int32_t>& end_tokens);

class Completion {
 public:
  // Both must outlive this object.
  Completion(const CompletionRequest& request, const Tokenizer& tokenizer);

  // The piece that a token adds to its completion; its last piece if the completion ends.
  [[nodiscard]] CompletionChoice add(std::int32_t index, const EngineEvent& event);
  // True if a completion has ended though its request goes on: its text has come to a stop
  // sequence.
  [[nodiscard]] bool ends_early(std::int32_t index, const EngineEvent& event) const;
  [[nodiscard]] bool is_finished() const { return num_open_ == 0; }
  [[nodiscard]] const CompletionUsage& usage() const { return usage_; }
  // All pieces put together.
  [[nodiscard]] const std::vector<CompletionChoice>& choices() const { return choices_; }

 private:
  void add_logprobs(const TokenLogprob& token, std::span<const TokenLogprob> top,
                    CompletionChoice& whole, CompletionChoice& piece);
  void add_prompt(const EngineEvent& event, CompletionChoice& whole, CompletionChoice& piece);

  const CompletionRequest& request_;
  const Tokenizer& tokenizer_;
  std::vector<TextStream> texts_;
  std::vector<CompletionChoice> choices_;
  std::vector<std::int64_t> offsets_;  // of the next token of each choice
  std::size_t num_open_;
  CompletionUsage usage_;
};

// Why each of the completions ended, in one line.
[[nodiscard]] std::string finish_text(const Completion& completion);

}  // namespace contextile
