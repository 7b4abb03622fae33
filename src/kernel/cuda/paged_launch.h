// The data that a launch of attention to keys in pages reads. Query rows of the heads that read one
// KV head are numbered as in launch.h, in each request from 0.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/cuda/launch.h"
#include "kernel/cuda/layout.h"

namespace contextile::cuda {

inline constexpr int kPagedRows = 16;      // rows of a CTA
inline constexpr int kPagedStepKeys = 64;  // keys that a CTA has on chip at a time; each warp
                                           // scores 16

// Keys or values of one layer in device memory.
struct PagedCache {
  const std::byte* data = nullptr;
  std::int64_t page_bytes = 0;
  std::int64_t token_bytes = 0;
  std::int64_t head_bytes = 0;
  const float* scale_H = nullptr;  // null: 1

  [[nodiscard]] CONTEXTILE_HD float scale(int kv_head) const {
    return scale_H == nullptr ? 1 : scale_H[kv_head];
  }
};

struct KeyRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
};

// Keys that some of a CTA's rows see. All rows see them unless the piece is masked.
struct PagedPiece {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  bool is_masked = false;
};

// The work of one CTA: some rows of a request and a run of the keys that they see.
struct PagedWork {
  std::int32_t first_row = 0;  // first row of the request in q and out
  std::int32_t begin = 0;      // flat rows of the request
  std::int32_t end = 0;
  std::int32_t first_page = 0;   // of the request's table
  std::int32_t first_split = 0;  // of the request's rows
  std::int32_t first_piece = 0;
  std::int32_t num_pieces = 0;
  std::int32_t part = -1;  // row of the parts where results wait for a merge; -1: they are whole
};

// Rows whose keys were cut into runs. Part p of flat row r is row first_part + p · (end - begin) +
// r - begin of the parts.
struct PagedMerge {
  std::int32_t first_row = 0;
  std::int32_t begin = 0;
  std::int32_t end = 0;
  std::int32_t first_part = 0;
  std::int32_t num_parts = 0;
};

struct PagedLaunch {
  DeviceRows<const std::uint16_t> q;
  DeviceRows<float> o, lse;
  PagedCache k, v;
  const PagedWork* works = nullptr;
  const PagedMerge* merges = nullptr;
  const PagedPiece* pieces = nullptr;
  const std::int32_t* pages = nullptr;
  // Row i of a request sees ranges [splits[first_split + i], splits[first_split + i + 1]).
  const std::int32_t* splits = nullptr;
  const KeyRange* ranges = nullptr;
  float* part_o = nullptr;    // [parts][kv_heads][value_dim]
  float* part_lse = nullptr;  // [parts][kv_heads]
  std::int32_t heads = 1;     // query heads of a KV head
  std::int32_t kv_heads = 1;
  std::int32_t head_dim = 0;
  std::int32_t value_dim = 0;
  std::int32_t page_size = 1;
  bool is_int8 = false;  // for caches of one byte; false: fp8
  float scale = 1;
  float softcap = 0;  // 0: none
};

}  // namespace contextile::cuda
