// The manifest of a plan file: everything except the devices' programs.
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
// Exclusive bound of ids, and of the number of objects with ids.
inline constexpr std::int64_t kEndOfInt32 = std::int64_t{1} << 31;

// Bytes of the FlatBuffer. O(blocks + bands + sequences).
[[nodiscard]] std::vector<std::uint8_t> encode_manifest(const Plan& plan);

// The directions that have programs of one mask, the same on every device.
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

// Untrusted bytes, aligned to 8: throws InvalidPlan naming `file` and the place. It checks
// everything that is later used as an index or a divisor (shape, devices, head groups, owners,
// tokens, enumerations).
[[nodiscard]] DecodedManifest decode_manifest(std::span<const std::uint8_t> bytes,
                                              std::string_view file);

}  // namespace contextile
