// The factors of wgmma on warpgroups of sm_90a: rows in shared memory under the 128-byte swizzle,
// and the descriptors that name them (PTX manual, "Asynchronous warpgroup level matrix
// instructions").
#pragma once

#include <cstdint>

#include "kernel/cuda/layout.h"

namespace contextile::cuda {

inline constexpr int kGroupWarps = 4;
inline constexpr int kGroupThreads = kLanes * kGroupWarps;
inline constexpr int kGroupRows = 16 * kGroupWarps;  // rows of a sum: m64

inline constexpr int kSwizzleCols = 64;               // elements of 16 bits in 128 bytes
inline constexpr std::uint32_t kSwizzleBytes = 1024;  // period of the swizzle; aligns operands
inline constexpr int kDepth = 16;                     // depth of one product: k16

// Returns the place of an element of kRows rows, counted in elements. Columns are in panels of 64.
// A panel has 128 bytes for each row, whose eight chunks change places with the row. Copies of
// boxes (BoxSource) place rows like this.
template <int kRows>
CONTEXTILE_HD constexpr int swizzled_at(int row, int col) {
  return col / kSwizzleCols * kRows * kSwizzleCols + row * kSwizzleCols +
         (col % kSwizzleCols / 8 ^ row % 8) * 8 + col % 8;
}

// The content of a descriptor, in bytes. Eight rows of 128 bytes are a group.
struct Operand {
  std::uint32_t start = 0;    // in shared memory
  std::uint32_t leading = 0;  // to the next 64 elements, if those along the width are contiguous
  std::uint32_t stride = 0;   // to the next group
  std::uint32_t swizzle = 0;  // 1: 128 bytes
};

// Bits 0–13 hold start, 16–29 leading, 32–45 stride, each divided by 16. Bits 49–51 hold the place
// in the swizzle's pattern where it starts (0 at multiples of 1024 bytes), 62–63 the swizzle.
CONTEXTILE_HD constexpr std::uint64_t encode(const Operand& operand) {
  const auto field = [](std::uint32_t bytes) { return std::uint64_t{(bytes & 0x3ffffU) >> 4}; };
  return field(operand.start) | field(operand.leading) << 16 | field(operand.stride) << 32 |
         std::uint64_t{operand.swizzle} << 62;
}
CONTEXTILE_HD constexpr Operand decode(std::uint64_t descriptor) {
  const auto field = [&](int bit) {
    return static_cast<std::uint32_t>(descriptor >> bit & 0x3fffU) << 4;
  };
  return {field(0), field(16), field(32), static_cast<std::uint32_t>(descriptor >> 62)};
}

// Moves an operand that starts at 0 to some bytes behind `start`. Shared memory ends before the
// field does, so only the lower word changes: between products there is time for little more.
CONTEXTILE_HD constexpr std::uint64_t advance(std::uint64_t descriptor, std::uint32_t start,
                                              int bytes) {
  const auto low =
      static_cast<std::uint32_t>(descriptor) + static_cast<std::uint32_t>(bytes / 16) + start / 16;
  return (descriptor >> 32 << 32) | low;
}

// Returns a factor whose rows are those of the product, 16 columns of them from `depth` on: Q and K
// of scores. `rows` is the place where a tensor of kRows rows begins in shared memory.
template <int kRows>
CONTEXTILE_HD constexpr std::uint64_t rows_operand(std::uint32_t rows, int depth) {
  const int at = depth / kSwizzleCols * kRows * kSwizzleCols + depth % kSwizzleCols;
  return advance(encode({0, 16, kSwizzleBytes, 1}), rows, at * 2);
}
// Returns a right factor whose rows are the depth, 16 of them from `depth` on: V of outputs.
template <int kRows>
CONTEXTILE_HD constexpr std::uint64_t depth_operand(std::uint32_t rows, int depth) {
  return advance(encode({0, kRows * kSwizzleCols * 2, kSwizzleBytes, 1}), rows,
                 depth * kSwizzleCols * 2);
}

}  // namespace contextile::cuda
