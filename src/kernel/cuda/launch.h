// The data that a launch reads: the tiles and, for every block of rows that a CTA owns, the rows
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

// Flat rows [begin, end) of the streamed side of a tile. Without bands every pair attends. Threads
// that need no tile read 16 bytes.
struct alignas(16) StreamedRows {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t first_band = 0;
  std::int32_t num_bands = 0;
  std::int32_t tile = 0;
  std::int32_t unused[3] = {};
};
// A run is cut into blocks of as many rows as a CTA streams at a time. Only the last block of a run
// with bands may be shorter.
using StreamedRun = StreamedRows;
using StreamedBlock = StreamedRows;

// The work of one CTA: the flat rows it owns and the runs that they meet, in order.
struct OwnedBlock {
  std::int32_t tile = 0;  // the first tile of the slot
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t first_run = 0;
  std::int32_t num_blocks = 0;  // of all runs
  bool init = false;            // overwrite the slot
};

// Iterates over the blocks of runs. It reads a run when it comes to the first of its blocks.
class StreamedBlocks {
 public:
  CONTEXTILE_HD StreamedBlocks(const StreamedRun* runs, std::int32_t num_blocks, std::int32_t rows)
      : next_(runs), rows_(rows) {
    if (num_blocks > 0) run_ = *next_++;
  }
  [[nodiscard]] CONTEXTILE_HD StreamedBlock block() const {
    StreamedBlock block = run_;
    const std::int32_t most = run_.begin + rows_;
    block.end = most < run_.end ? most : run_.end;
    return block;
  }
  // Steps to the next block, which there must be.
  CONTEXTILE_HD void advance() {
    run_.begin += rows_;
    if (run_.begin >= run_.end) run_ = *next_++;
  }

 private:
  StreamedRun run_;  // its remaining rows
  const StreamedRun* next_;
  std::int32_t rows_;
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
  const StreamedRun* runs = nullptr;
  const TokenBand* bands = nullptr;
  const TileMaps* maps = nullptr;  // of every tile, for kernels of wgmma; otherwise null
  std::int32_t heads = 1;          // query heads of a KV head
  std::int32_t head_dim = 0;
  std::int32_t value_dim = 0;
  float scale = 1;
  float softcap = 0;  // 0: none
};

}  // namespace contextile::cuda
