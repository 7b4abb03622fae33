// One program as byte streams: what a plan file stores of it.
//
// Both ends predict every field from what came before (the unit's last known slot, the pairs of a
// full or causal tile, the previous tile's neighbour) and the stream holds only what was predicted
// wrongly: most tiles take two or three bytes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/plan.h"
#include "plan/file/byte_codec.h"

namespace contextile {

// What the codec knows beside the program.
struct ProgramContext {
  const PlanRound* round = nullptr;  // blocks and head groups
  std::span<const BlockId> local_blocks;
  Direction direction = Direction::kForward;
  std::int32_t num_devices = 1;
  Dtype dtype = Dtype::kBf16;
  Dtype partial_wire = Dtype::kF32;
};

struct ProgramBytes {
  std::vector<std::uint8_t> staging;
  std::vector<std::uint8_t> retain;
  std::vector<std::uint8_t> code;
};
struct ProgramByteViews {
  std::span<const std::uint8_t> staging;
  std::span<const std::uint8_t> retain;
  std::span<const std::uint8_t> code;
};

// Largest arena, in tokens, and largest number of pairs of one tile that a file may name.
inline constexpr std::int64_t kMaxArenaTokens = std::int64_t{1} << 40;
inline constexpr std::int64_t kMaxTilePairs = std::int64_t{1} << 62;

// O(instructions + tiles).
[[nodiscard]] ProgramBytes encode_program(const Program& program, const ProgramContext& context);
// Untrusted bytes: throws InvalidPlan unless every block, group, peer, kind and dtype is in range.
// Slots are not negative but may exceed their tables. Allocates a small multiple of the bytes.
[[nodiscard]] Program decode_program(const ProgramByteViews& bytes, const ProgramContext& context,
                                     const FilePlace& place);

}  // namespace contextile
