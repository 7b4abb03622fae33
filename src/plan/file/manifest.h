// The manifest of a plan file: everything but the devices' programs.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/plan.h"

namespace contextile {

inline constexpr int kNumDtypes = 3;
inline constexpr int kNumRoles = 3;
// The most that a plan from outside may name.
inline constexpr std::int32_t kMaxShapeNumber = 1 << 20;  // heads, dims, layers
inline constexpr std::int64_t kMaxPosition = kUnbounded;  // exclusive
inline constexpr double kMaxPaddingFactor = 1e6;
// Ids, and counts of what has ids, are below.
inline constexpr std::int64_t kEndOfInt32 = std::int64_t{1} << 31;

// Bytes of the FlatBuffer. O(blocks + bands + sequences).
[[nodiscard]] std::vector<std::uint8_t> encode_manifest(const Plan& plan);

// Which directions the programs of one mask have, on every device alike.
struct MaskDirections {
  bool forward = false;
  bool backward = false;

  [[nodiscard]] bool has(Direction direction) const {
    return direction == Direction::kForward ? forward : backward;
  }
};
struct DecodedManifest {
  Plan plan;                                            // rounds without devices
  std::vector<std::vector<MaskDirections>> directions;  // by round and mask
  std::int64_t programs_per_device = 0;
};

// Untrusted bytes, aligned to 8: throws InvalidPlan naming `file` and the place. Checked:
// everything that later indexes or divides (shape, devices, head groups, owners, tokens,
// enumerations).
[[nodiscard]] DecodedManifest decode_manifest(std::span<const std::uint8_t> bytes,
                                              std::string_view file);

}  // namespace contextile
