// Rotary position embedding.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/serving/decoder_model.h"

namespace contextile {

class Rotary {
 public:
  // dim: of the rotated elements.
  Rotary(const RopeConfig& config, std::int32_t dim);

  // Rotates the last elements of every head, of head_dim elements, of a token at a position.
  void turn(std::int64_t position, std::span<float> heads_HD, std::int32_t head_dim) const;

 private:
  std::vector<double> frequencies_;  // of pairs, radians per token
  double factor_;                    // of sines and cosines
  bool interleaved_;
};

}  // namespace contextile
