// Document lengths drawn from the built-in distributions.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/rng.h"

namespace contextile {

struct LengthDistribution;

// An endless stream of independent document lengths. A name and a seed give the same lengths on
// every platform.
class LengthSampler {
 public:
  // Throws InvalidArgument on an unknown name, with the known ones.
  LengthSampler(std::string_view dataset, std::uint64_t seed);

  // Tokens of the next document, >= 1.
  [[nodiscard]] std::int64_t next();

 private:
  const LengthDistribution* distribution_;
  Rng rng_;
};

}  // namespace contextile
