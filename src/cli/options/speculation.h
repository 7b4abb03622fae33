// Speculative decoding: an option of serve, and the words that users read.
#pragma once

#include <string>
#include <string_view>

#include "cli/app.h"
#include "contextile/serving/engine.h"

namespace contextile {

void add_speculation_option(CLI::App& app, Speculation& speculation);
// Parses "off", or "ngram" with names and numbers behind a colon. Throws InvalidArgument.
[[nodiscard]] Speculation parse_speculation(std::string_view text);
// The setting that ranks compare, which parse_speculation understands.
[[nodiscard]] std::string to_string(const Speculation& speculation);
// Returns "drafts    …" for the start of a server, and for its end the share that was accepted;
// empty without drafts.
[[nodiscard]] std::string drafts_text(const Speculation& speculation);
[[nodiscard]] std::string accepted_text(const EngineStats& stats);

}  // namespace contextile
