// A table of the code for attention to gathered keys, compiled for one instruction set.
#pragma once

#include <cstdint>

#include "contextile/extend/paged_attention.h"

namespace contextile {

// Number of keys whose scores are computed together, and number of keys in one tile of products.
inline constexpr int kPagedChunk = 64;
inline constexpr int kPagedKeys = 4;

// The shape of a task. Its rows are grouped by KV head, [kv_heads][rows of a head]. `rows_of_head`
// of them count; the others up to `padded_rows` are zero queries.
struct PagedShape {
  std::int32_t kv_heads = 1;
  std::int32_t rows_of_head = 1;
  std::int32_t padded_rows = 1;
  std::int32_t padded_head_dim = 0;  // multiples of 16
  std::int32_t padded_value_dim = 0;
  const float* k_scale = nullptr;  // [kv_heads]; null: 1
};

// Memory of one task, all of it padded. The caller allocates it, because code of one instruction
// set must not instantiate templates that other files share.
struct PagedWorkspace {
  const float* q = nullptr;  // [kv_heads][padded_rows][padded_head_dim], times scale·log2(e)
  float* scores = nullptr;   // [kv_heads][padded_rows][kPagedChunk]
  float* tile = nullptr;     // [paged_tile(the larger padded dim)]: keys or values as floats
  float* out = nullptr;      // [kv_heads][padded_rows][padded_value_dim]
  float* top = nullptr;      // [kv_heads][padded_rows]: largest score so far, in powers of 2
  float* sum = nullptr;      // [kv_heads][padded_rows]
};

// Up to kPagedChunk keys.
struct PagedKeys {
  const std::byte* k[kPagedChunk];  // head 0
  const std::byte* v[kPagedChunk];
  const std::byte* next[kPagedKeys];  // keys that come after these; the last ones if none do
  int count = 0;
  const std::uint8_t* seen = nullptr;  // [count][num_queries], 1: is seen, 0: is not; null: all are
  int num_queries = 1;  // row r of a head belongs to query r / (rows_of_head / num_queries)
};

// Number of floats of PagedWorkspace::tile.
[[nodiscard]] constexpr std::int64_t paged_tile(std::int64_t padded_dim) {
  return kPagedKeys * padded_dim > kPagedChunk * 64 ? kPagedKeys * padded_dim : kPagedChunk * 64;
}

struct PagedTarget {
  const char* name = nullptr;
  // The rows of a head are padded to a multiple of this.
  int row_tile = 1;
  // Adds the keys to out, top and sum.
  void (*take)(const PagedParams& params, const PagedKv& kv, const PagedShape& shape,
               const PagedKeys& keys, const PagedWorkspace& workspace) = nullptr;
};

// Null if the compiler or the processor's family has no such instructions. The caller must check
// whether this CPU has them.
[[nodiscard]] const PagedTarget* paged_avx512();
[[nodiscard]] const PagedTarget* paged_avx2();
[[nodiscard]] const PagedTarget* paged_portable();  // never null

}  // namespace contextile
