// The section of one rank in a plan file: its blocks and programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "contextile/plan.h"
#include "plan/file/manifest.h"

namespace contextile {

// Largest arena, in tokens, and largest number of pairs of one tile that a file may name.
inline constexpr std::int64_t kMaxArenaTokens = std::int64_t{1} << 40;
inline constexpr std::int64_t kMaxTilePairs = std::int64_t{1} << 62;

// Bytes of the FlatBuffer. Throws InvalidPlan if ids do not fit the plan, or if the rank's programs
// have other masks and directions than rank 0's. O(instructions + tiles).
[[nodiscard]] std::vector<std::uint8_t> encode_device(const Plan& plan, std::size_t rank);

// The rank's programs by round. Untrusted bytes, aligned to 8: throws InvalidPlan naming `file` and
// the place unless every block, group, peer, kind and dtype is in range. Slots are not negative but
// may exceed their tables. Allocates a small multiple of the bytes.
[[nodiscard]] std::vector<DeviceProgram> decode_device(const DecodedManifest& manifest,
                                                       std::span<const std::uint8_t> bytes,
                                                       std::size_t rank, std::string_view file);

}  // namespace contextile
