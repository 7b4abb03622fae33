#include "serving/model/rotary.h"

#include <algorithm>
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

// The pair, or the place between pairs, whose frequency makes so many turns in the trained context.
double pair_of(const RopeConfig& config, std::int32_t dim, double turns) {
  return dim *
         std::log(static_cast<double>(config.original_length) / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(config.theta));
}

double yarn_frequency(const RopeConfig& config, std::int32_t dim, std::int32_t pair,
                      double frequency) {
  double first = pair_of(config, dim, config.yarn->fast_turns);
  double last = pair_of(config, dim, config.yarn->slow_turns);
  if (config.yarn->whole_pairs) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, dim - 1.0);
  if (first == last) last += 0.001;
  const double ramp = std::clamp((pair - first) / (last - first), 0.0, 1.0);
  return frequency / config.factor * ramp + frequency * (1 - ramp);
}

}  // namespace

Rotary::Rotary(const RopeConfig& config, std::int32_t dim)
    : factor_(config.yarn ? config.yarn->attention_factor : 1), interleaved_(config.interleaved) {
  for (std::int32_t d = 0; d < dim / 2; ++d) {
    const double frequency = std::pow(config.theta, -2.0 * d / dim);
    frequencies_.push_back(config.yarn ? yarn_frequency(config, dim, d, frequency)
                                       : stretched(config, frequency));
  }
}

void Rotary::turn(std::int64_t position, std::span<float> heads_HD, std::int32_t head_dim) const {
  const std::size_t half = frequencies_.size();
  const auto dim = static_cast<std::size_t>(head_dim);
  for (std::size_t d = 0; d < half; ++d) {
    const double angle = static_cast<double>(position) * frequencies_[d];
    const auto cosine = static_cast<float>(factor_ * std::cos(angle));
    const auto sine = static_cast<float>(factor_ * std::sin(angle));
    const std::size_t first = interleaved_ ? 2 * d : d;
    const std::size_t second = first + (interleaved_ ? 1 : half);
    for (std::size_t head = dim - 2 * half; head < heads_HD.size(); head += dim) {
      float& x = heads_HD[head + first];
      float& y = heads_HD[head + second];
      const float turned = x * cosine - y * sine;
      y = y * cosine + x * sine;
      x = turned;
    }
  }
}

}  // namespace contextile
