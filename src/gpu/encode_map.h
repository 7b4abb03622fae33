// Makes the map of a BoxSource by cuTensorMapEncodeTiled, as the driver's manual describes it.
#pragma once

#include <array>
#include <cstdint>

#include "gpu/box_map.h"

namespace contextile::cuda {

using EncodeMap = int (*)(void* map, int type, std::uint32_t rank, void* data,
                          const std::uint64_t* sizes, const std::uint64_t* strides_bytes,
                          const std::uint32_t* box, const std::uint32_t* every, int interleave,
                          int swizzle, int promotion, int fill);

// Writes the map of `source` to `map` and returns the driver's result.
[[nodiscard]] inline int encode_map(EncodeMap encode, const BoxSource& source, BoxMap& map) {
  constexpr int kElementsOf16Bits = 1;
  constexpr int kNotInterleaved = 0;
  constexpr int kSwizzle128 = 3;
  constexpr int kPromote256 = 3;  // bytes fetched into the second-level cache
  constexpr int kFillZeros = 0;
  const std::array sizes = {static_cast<std::uint64_t>(source.cols),
                            static_cast<std::uint64_t>(source.heads),
                            static_cast<std::uint64_t>(source.tokens)};
  const std::array strides = {static_cast<std::uint64_t>(source.head_stride_bytes),
                              static_cast<std::uint64_t>(source.token_stride_bytes)};
  const std::array box = {static_cast<std::uint32_t>(source.box_cols),
                          static_cast<std::uint32_t>(source.box_heads),
                          static_cast<std::uint32_t>(source.box_tokens)};
  const std::array<std::uint32_t, 3> every = {1, 1, 1};
  return encode(&map, kElementsOf16Bits, 3, const_cast<void*>(source.data), sizes.data(),
                strides.data(), box.data(), every.data(), kNotInterleaved, kSwizzle128, kPromote256,
                kFillZeros);
}

}  // namespace contextile::cuda
