// The models, ranks and cache that the options of serve describe, before weights are loaded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands/simulated_serving.h"
#include "cli/options/served_model.h"
#include "cli/options/serving_ranks.h"
#include "cli/options/speculation.h"
#include "cli/options/transport_option.h"
#include "contextile/serving/completion_server.h"
#include "contextile/serving/engine.h"

namespace contextile {

struct ServeCommandOptions {
  static constexpr const char* kRandom = "random";
  static constexpr std::int64_t kKvTokens = 65'536;

  std::string model;  // empty: kRandom, or with --simulate the preset of predictions
  std::string name;   // empty: the model's
  TransportOptions transport;
  std::optional<std::int32_t> ranks;
  ServingRanks split;
  std::string store;  // empty: a lost rank ends the others
  ServeOptions serve;
  EngineOptions engine;
  DraftOptions draft;
  bool reads_generation_config = true;
  std::optional<std::int64_t> kv_tokens;  // unset: kKvTokens, or what fits
  std::string mode = "auto";
  std::string kv_dtype = "f32";
  std::string wire = "f32";
  HopBReading hop_b = HopBReading::kAttention;
  std::int32_t hop_b_groups = 1;
  SimulatedServingOptions simulated;
};

// A model, and how ranks compute it.
struct ServedDecoder {
  ServedModel model;
  DecoderPart part;  // of the first rank
  DecoderOptions decoder;

  // Bytes of a rank's pages, over all layers.
  [[nodiscard]] std::int64_t page_bytes() const;
};

// Everything that the ranks of a group have in common.
struct Serving : ServedDecoder {
  std::optional<ServedDecoder> draft;
  EngineOptions engine;
};

// Throws InvalidArgument where options do not fit the models, each other or this machine's memory.
[[nodiscard]] Serving serving_of(const ServeCommandOptions& options, std::int32_t num_ranks);
// Returns the settings in which ranks may not differ: they would fail at the first request, or
// answer with wrong tokens.
[[nodiscard]] std::vector<EngineSetting> settings_of(const Serving& serving,
                                                     const ServingRanks& split);
// Return the line on the cache, and that on drafts, if there are some, for the start of a server.
[[nodiscard]] std::string cache_text(const Serving& serving);
[[nodiscard]] std::string drafts_text(const Serving& serving);

}  // namespace contextile
