#include <cmath>

#include "serving/model/model_parts.h"

namespace contextile {
namespace {

// The factor of YaRN for scores and for sines and cosines; m is that of the model.
double yarn_factor(double factor, double m) {
  return factor <= 1 ? 1 : 0.1 * m * std::log(factor) + 1;
}

void read_yarn(const ConfigReader& scaling, DecoderConfig& config) {
  RopeConfig::Yarn yarn;
  yarn.fast_turns = scaling.positive("beta_fast", yarn.fast_turns);
  yarn.slow_turns = scaling.positive("beta_slow", yarn.slow_turns);
  yarn.whole_pairs = scaling.flag("truncate", true);
  config.rope.factor = scaling.positive("factor");
  config.rope.original_length = scaling.count("original_max_position_embeddings");
  // 0 is as good as none.
  const auto m_of = [&](const char* key) {
    return scaling.has(key) && scaling.at(key) != 0 ? scaling.positive(key) : 0;
  };
  const double m = m_of("mscale");
  const double m_all = m_of("mscale_all_dim");
  const double factor = config.rope.factor;
  if (scaling.has("attention_factor")) {
    yarn.attention_factor = scaling.positive("attention_factor");
  } else {
    yarn.attention_factor = m > 0 && m_all > 0 ? yarn_factor(factor, m) / yarn_factor(factor, m_all)
                                               : yarn_factor(factor, 1);
  }
  if (config.latent && m_all > 0) {
    config.scale = config.score_scale() * yarn_factor(factor, m_all) * yarn_factor(factor, m_all);
  }
  config.rope.yarn = yarn;
}

void read_scaling(const ConfigReader& scaling, DecoderConfig& config) {
  scaling.expect("partial_rotary_factor", 1.0);
  const char* key = scaling.has("rope_type") ? "rope_type" : "type";
  const std::string kind = scaling.has(key) ? scaling.word(key) : "default";
  if (kind == "default") return;
  if (kind == "yarn") return read_yarn(scaling, config);
  if (kind != "linear" && kind != "llama3") {
    scaling.fail(key, "expected default, linear, llama3 or yarn, found {}", quote(kind));
  }
  RopeConfig& rope = config.rope;
  rope.factor = scaling.positive("factor");
  if (kind == "linear") return;
  rope.low_frequency = scaling.positive("low_freq_factor");
  rope.high_frequency = scaling.positive("high_freq_factor");
  rope.original_length = scaling.count("original_max_position_embeddings");
}

}  // namespace

// Newer files have theta and scaling in one object, older ones as separate keys. The older object
// counts alone where a file has both, as in transformers.
void read_rope(const ConfigReader& reader, DecoderConfig& config) {
  reader.expect("partial_rotary_factor", 1.0);
  config.rope.theta = reader.positive("rope_theta", config.rope.theta);
  const char* key = reader.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  if (!reader.has(key)) return;
  const ConfigReader scaling(reader.at(key), reader.where() + ", " + key);
  config.rope.theta = scaling.positive("rope_theta", config.rope.theta);
  read_scaling(scaling, config);
}

}  // namespace contextile
