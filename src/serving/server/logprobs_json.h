// The field `logprobs` of a completion as JSON text. It is written without a tree, because the
// logprobs of a prompt may be many.
#pragma once

#include <string>

#include "contextile/serving/completion_server.h"
#include "serving/server/protocol.h"

namespace contextile {

// Returns the text by which answers name a token: its own, or "token_id:2" if it has none of UTF-8.
[[nodiscard]] std::string token_name(const Tokenizer& tokenizer, std::int32_t token);

// Returns {"tokens", "token_logprobs", "top_logprobs", "text_offset"}.
[[nodiscard]] std::string logprobs_json(const ChoiceLogprobs& logprobs, const Tokenizer& tokenizer);

}  // namespace contextile
