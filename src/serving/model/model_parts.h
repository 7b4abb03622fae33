// The parts of a config.json that say how positions are rotated, which feed-forwards are experts,
// and whether keys are latent.
#pragma once

#include <string>

#include "contextile/serving/decoder_model.h"
#include "serving/model/config_reader.h"

namespace contextile {

// Sets config.rope, and config.scale where YaRN changes it.
void read_rope(const ConfigReader& reader, DecoderConfig& config);
// Sets config.experts and config.dense_layers if the family has some; the other sets config.latent
// and the sizes of heads.
void read_experts(const ConfigReader& reader, const std::string& family, DecoderConfig& config);
void read_latent(const ConfigReader& reader, const std::string& family, DecoderConfig& config);

}  // namespace contextile
