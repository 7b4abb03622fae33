#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/interrupt.h"
#include "serving/model/tensor_source.h"

namespace contextile {
namespace {

// SplitMix64 of Steele, Lea and Flood: a bijection whose outputs on successive inputs look random.
std::uint64_t mixed(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

// The Box-Muller transform: one normal number from 64 random bits.
float normal(std::uint64_t bits) {
  const double radius = std::sqrt(-2 * std::log((static_cast<double>(bits >> 32) + 1) * 0x1p-32));
  const double angle = 2 * std::numbers::pi * static_cast<double>(bits & 0xffffffffU) * 0x1p-32;
  return static_cast<float>(radius * std::cos(angle));
}

class RandomSource final : public TensorSource {
 public:
  explicit RandomSource(std::uint64_t seed) : seed_(seed) {}

  [[nodiscard]] bool contains(const std::string&) const override { return false; }
  [[nodiscard]] std::vector<std::string> names() const override { return {}; }
  [[nodiscard]] bool is_bf16(const std::string&) const override { return false; }
  void read_bf16(const MatrixPart& part, std::span<std::uint16_t>) const override {
    fail_argument("random weights, {}: expected fp32, found a request for bf16", part.name);
  }

  void read(const MatrixPart& part, std::span<float> out) const override {
    const bool is_vector = part.columns == 0;
    const bool is_norm = is_vector && part.name.ends_with("norm.weight");
    const float scale = is_vector ? 0.1F : 1 / std::sqrt(static_cast<float>(part.columns));
    const std::uint64_t tensor = XXH3_64bits_withSeed(part.name.data(), part.name.size(), seed_);
    const std::int64_t row_length = is_vector ? 1 : part.columns;
    std::size_t i = 0;
    for (std::int64_t row = part.row_range.begin; row < part.row_range.end; ++row) {
      check_interrupt();
      for (std::int64_t c = part.column_range.begin; c < part.column_range.end; ++c) {
        const auto at = static_cast<std::uint64_t>((part.index * part.rows + row) * row_length + c);
        out[i++] = is_norm ? 1 : scale * normal(mixed(tensor + at));
      }
    }
  }

 private:
  std::uint64_t seed_;
};

}  // namespace

std::unique_ptr<TensorSource> random_source(std::uint64_t seed) {
  return std::make_unique<RandomSource>(seed);
}

}  // namespace contextile
