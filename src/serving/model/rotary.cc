#include "serving/model/rotary.h"

#include <cmath>
#include <numbers>

namespace contextile {
namespace {

// Llama 3.1's scaling: long wavelengths are stretched, short ones stay, with a ramp between.
double stretched(const RopeConfig& config, double frequency) {
  if (config.factor == 1) return frequency;
  if (config.original_length == 0) return frequency / config.factor;
  const double turns =
      static_cast<double>(config.original_length) * frequency / (2 * std::numbers::pi);
  if (turns < config.low_frequency) return frequency / config.factor;
  if (turns > config.high_frequency) return frequency;
  const double smooth =
      (turns - config.low_frequency) / (config.high_frequency - config.low_frequency);
  return (1 - smooth) * frequency / config.factor + smooth * frequency;
}

}  // namespace

Rotary::Rotary(const RopeConfig& config, std::int32_t head_dim) {
  for (std::int32_t d = 0; d < head_dim / 2; ++d) {
    frequencies_.push_back(stretched(config, std::pow(config.theta, -2.0 * d / head_dim)));
  }
}

void Rotary::turn(std::int64_t position, std::span<float> heads_HD) const {
  const std::size_t half = frequencies_.size();
  for (std::size_t d = 0; d < half; ++d) {
    const double angle = static_cast<double>(position) * frequencies_[d];
    const auto cosine = static_cast<float>(std::cos(angle));
    const auto sine = static_cast<float>(std::sin(angle));
    for (std::size_t head = 0; head < heads_HD.size(); head += 2 * half) {
      float& x = heads_HD[head + d];
      float& y = heads_HD[head + half + d];
      const float turned = x * cosine - y * sine;
      y = y * cosine + x * sine;
      x = turned;
    }
  }
}

}  // namespace contextile
