// Random numbers that are the same on every platform; the standard library's distributions are not.
#pragma once

#include <array>
#include <cstdint>

namespace contextile {

// xoshiro256** 1.0 of Blackman and Vigna, seeded through SplitMix64. Not for secrets.
class Rng {
 public:
  explicit Rng(std::uint64_t seed);

  // 64 random bits.
  [[nodiscard]] std::uint64_t next();
  // Uniform in [0, 1), a multiple of 2^-53.
  [[nodiscard]] double uniform();
  // Standard normal (Marsaglia's polar method).
  [[nodiscard]] double normal();

 private:
  std::array<std::uint64_t, 4> state_;
};

}  // namespace contextile
