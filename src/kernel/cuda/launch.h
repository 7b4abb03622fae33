// The data that a launch reads: the tiles and, for every block of rows that a CTA owns, the blocks
// that it meets.
//
// The rows of all heads that read one KV head are numbered token by token, head by head: flat row r
// is token r / heads, head r % heads. Keys have one head.
#pragma once

#include <cstdint>

#include "gpu/box_map.h"
#include "kernel/cuda/layout.h"

namespace contextile::cuda {

// A band between owned and streamed tokens: streamed - owned in [lo, hi].
struct TokenBand {
  std::int32_t owned_begin = 0, owned_end = 0;
  std::int32_t streamed_begin = 0, streamed_end = 0;
  std::int32_t lo = 0, hi = 0;

  [[nodiscard]] CONTEXTILE_HD bool holds(std::int32_t owned, std::int32_t streamed) const {
    return owned >= owned_begin && owned < owned_end && streamed >= streamed_begin &&
           streamed < streamed_end && streamed - owned >= lo && streamed - owned <= hi;
  }
};

// Flat rows [begin, end) of the streamed side of a tile. A block without bands is full: every pair
// attends.
struct StreamedBlock {
  std::int32_t tile = 0;
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t first_band = 0;
  std::int32_t num_bands = 0;
};

// The work of one CTA: the flat rows it owns and what they meet, in order.
struct OwnedBlock {
  std::int32_t tile = 0;  // the first tile of the slot
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t first_block = 0;
  std::int32_t num_blocks = 0;
  bool init = false;  // overwrite the slot
};

// A tensor of tokens and heads in device memory. Strides count elements.
template <typename T>
struct DeviceRows {
  T* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  [[nodiscard]] CONTEXTILE_HD T* at(std::int32_t flat, std::int32_t heads,
                                    std::int32_t kv_head) const {
    const std::int32_t token = flat / heads;
    const std::int32_t head = kv_head * heads + flat % heads;
    return data + token * token_stride + head * head_stride;
  }
};

struct DeviceTile {
  DeviceRows<const std::uint16_t> q, k, v, dout;
  DeviceRows<float> o, lse, delta, dq, dk, dv;
};

// A tile's tensors as boxes of rows: 64 columns of one KV head. A box has as many keys as a block,
// or the query rows of as many whole tokens as a block holds.
struct TileMaps {
  BoxMap k, v, q, dout;
};

struct Launch {
  const DeviceTile* tiles = nullptr;
  const OwnedBlock* owned = nullptr;
  const StreamedBlock* blocks = nullptr;
  const TokenBand* bands = nullptr;
  const TileMaps* maps = nullptr;  // of every tile, for kernels of wgmma; otherwise null
  std::int32_t heads = 1;          // query heads of a KV head
  std::int32_t head_dim = 0;
  std::int32_t value_dim = 0;
  float scale = 1;
  float softcap = 0;  // 0: none
};

}  // namespace contextile::cuda
