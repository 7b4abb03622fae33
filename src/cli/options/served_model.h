// The model a command serves, as its option names it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "contextile/serving/completion_server.h"
#include "contextile/serving/decoder_model.h"

namespace contextile {

struct ServedModel {
  std::string name;    // as clients call it
  std::string folder;  // of Hugging Face's format; empty: random weights
  std::uint64_t seed = 1;
  DecoderConfig config;
};

// A folder, or "random" with sizes behind it ("random:layers=2,heads=8"). Throws InvalidArgument
// that names the option, and IoError.
[[nodiscard]] ServedModel parse_served_model(const std::string& text,
                                             std::string_view option = "--model");
// The sizes and variants of a model, which ranks compare before they serve.
[[nodiscard]] std::string config_text(const DecoderConfig& config);
// The weights' identity, which ranks compare before they serve: a digest of the files, or the seed.
[[nodiscard]] std::string weights_identity(const ServedModel& model);
[[nodiscard]] DecoderWeights weights_of(const ServedModel& model, const DecoderPart& part);
[[nodiscard]] std::unique_ptr<Tokenizer> tokenizer_of(const ServedModel& model);

}  // namespace contextile
