// Attention to gathered keys as code compiled for one instruction set, a table.
#pragma once

#include <cstdint>

#include "contextile/extend/paged_attention.h"

namespace contextile {

// Keys whose scores are found together, and of one tile of products.
inline constexpr int kPagedChunk = 64;
inline constexpr int kPagedKeys = 4;

// What a task computes: rows are grouped by KV head, [kv_heads][rows of a head], of which
// `rows_of_head` count and the rest up to `padded_rows` are zero queries.
struct PagedShape {
  std::int32_t kv_heads = 1;
  std::int32_t rows_of_head = 1;
  std::int32_t padded_rows = 1;
  std::int32_t padded_head_dim = 0;  // multiples of 16
  std::int32_t padded_value_dim = 0;
  const float* k_scale = nullptr;  // [kv_heads]; null: 1
};

// Memory of one task, all of it padded; the caller's, because code of one instruction set must not
// instantiate what other files share.
struct PagedWorkspace {
  const float* q = nullptr;  // [kv_heads][padded_rows][padded_head_dim], times scale·log2(e)
  float* scores = nullptr;   // [kv_heads][padded_rows][kPagedChunk]
  float* tile = nullptr;     // [paged_tile(the larger padded dim)]: keys or values as floats
  float* out = nullptr;      // [kv_heads][padded_rows][padded_value_dim]
  float* top = nullptr;      // [kv_heads][padded_rows]: largest score so far, in powers of 2
  float* sum = nullptr;      // [kv_heads][padded_rows]
};

// Up to kPagedChunk keys. Bit r of seen[j] says that query r of the request sees key j; null: all
// see all.
struct PagedKeys {
  const std::byte* k[kPagedChunk];  // head 0
  const std::byte* v[kPagedChunk];
  const std::byte* next[kPagedKeys];  // keys that come after these; the last ones where none do
  int count = 0;
  const std::uint8_t* seen = nullptr;  // [count][num_queries], 0 or 1
  int num_queries = 1;  // row r of a head is of query r / (rows_of_head / num_queries)
};

// Floats of PagedWorkspace::tile.
[[nodiscard]] constexpr std::int64_t paged_tile(std::int64_t padded_dim) {
  return kPagedKeys * padded_dim > kPagedChunk * 64 ? kPagedKeys * padded_dim : kPagedChunk * 64;
}

struct PagedTarget {
  const char* name = nullptr;
  // Rows of a head are padded to multiples of this.
  int row_tile = 1;
  // Takes the keys into out, top and sum.
  void (*take)(const PagedParams& params, const PagedKv& kv, const PagedShape& shape,
               const PagedKeys& keys, const PagedWorkspace& workspace) = nullptr;
};

// Null where the compiler or the processor's family has no such instructions; whether this CPU has
// them is for the caller to ask.
[[nodiscard]] const PagedTarget* paged_avx512();
[[nodiscard]] const PagedTarget* paged_avx2();
[[nodiscard]] const PagedTarget* paged_portable();  // never null

}  // namespace contextile
