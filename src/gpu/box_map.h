// Boxes of rows that a device copies into shared memory by itself (TMA).
#pragma once

#include <cstddef>
#include <cstdint>

namespace contextile::cuda {

// Describes elements of 16 bits in rows of tokens and heads, and the box of them that one copy
// brings. A box has columns innermost, then heads, then tokens; the pieces of 16 bytes of a row
// change places as in the 128-byte swizzle. The part of a box beyond the rows is zeros.
struct BoxSource {
  const void* data = nullptr;  // at a multiple of 16 bytes, as are the strides
  std::int32_t cols = 0;
  std::int32_t heads = 0;
  std::int64_t tokens = 0;
  std::int64_t head_stride_bytes = 0;
  std::int64_t token_stride_bytes = 0;
  std::int32_t box_cols = 0;  // at most 64: 128 bytes
  std::int32_t box_heads = 0;
  std::int32_t box_tokens = 0;
};

// The same as the device reads it (CUtensorMap); only the device's driver knows the format. The
// fence that orders a read of the map after its write works on 128 bytes.
struct alignas(128) BoxMap {
  std::byte opaque[128] = {};
};

}  // namespace contextile::cuda
