// How the ranks of a served model split its work: options of serve.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/app.h"
#include "contextile/serving/decoder_model.h"
#include "contextile/serving/engine.h"

namespace contextile {

struct ServingRanks {
  std::optional<std::int32_t> tensor_parallel;
  std::optional<std::int32_t> context_parallel;
  std::optional<std::int32_t> decode_context_parallel;
  std::string prefill = "auto";
  std::optional<std::int64_t> prefill_tokens;

  // True if one of the numbers of ranks is given.
  [[nodiscard]] bool is_set() const {
    return tensor_parallel || context_parallel || decode_context_parallel;
  }
};

void add_serving_ranks_options(CLI::App& app, ServingRanks& ranks);

// The number of ranks that the options name by themselves, or nothing.
[[nodiscard]] std::optional<std::int32_t> num_ranks_of(const ServingRanks& ranks);
// The part of the first of so many ranks. Throws InvalidArgument if the options name others.
[[nodiscard]] DecoderPart part_of(const ServingRanks& ranks, std::int32_t num_ranks);
// How prompts are computed. Throws InvalidArgument on another --prefill, on a mode whose heads do
// not divide, and on a strategy that cannot plan prompts of the model.
[[nodiscard]] PrefillPolicy prefill_policy(const ServingRanks& ranks, const DecoderConfig& config,
                                           const DecoderPart& part);
// Returns the settings that ranks compare before they serve, and the words that users read.
[[nodiscard]] std::vector<EngineSetting> settings_of(const ServingRanks& ranks,
                                                     const DecoderPart& part);
[[nodiscard]] std::string ranks_text(const ServingRanks& ranks, const DecoderPart& part);

}  // namespace contextile
