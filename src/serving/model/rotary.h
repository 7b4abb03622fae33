// Rotary position embedding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/serving/decoder_model.h"

namespace contextile {

class Rotary {
 public:
  Rotary(const RopeConfig& config, std::int32_t head_dim);

  // Rotates the pairs (d, d + head_dim/2) of every head of a token at a position.
  void turn(std::int64_t position, std::span<float> heads_HD) const;

 private:
  std::vector<double> frequencies_;  // of pairs, radians per token
};

}  // namespace contextile
