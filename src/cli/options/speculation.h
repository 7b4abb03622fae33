// Speculative decoding: an option of serve, and the words that users read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cli/app.h"
#include "contextile/serving/engine.h"

namespace contextile {

// Drafts of a second model.
struct DraftOptions {
  std::string model;                   // as parse_served_model takes it; empty: none
  std::optional<std::int32_t> tokens;  // most drafts of a request and step
};

void add_speculation_option(CLI::App& app, Speculation& speculation);
void add_draft_model_options(CLI::App& app, DraftOptions& draft);
// Returns the speculation of --speculate or of --draft-model. Throws InvalidArgument if both are
// given, or --draft-tokens without a model.
[[nodiscard]] Speculation speculation_of(const Speculation& lookups, const DraftOptions& draft);
// Parses "off", or "ngram" with names and numbers behind a colon. Throws InvalidArgument.
[[nodiscard]] Speculation parse_speculation(std::string_view text);
// The setting that ranks compare, which parse_speculation understands.
[[nodiscard]] std::string to_string(const Speculation& speculation);
// Returns "drafts    …" for the start of a server that looks drafts up, and for its end the share
// that was accepted; empty without drafts.
[[nodiscard]] std::string drafts_text(const Speculation& speculation);
[[nodiscard]] std::string accepted_text(const EngineStats& stats);

}  // namespace contextile
