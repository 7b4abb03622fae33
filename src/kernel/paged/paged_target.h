// A table of the code for attention to keys in pages, compiled for one instruction set.
#pragma once

#include <cstdint>

#include "contextile/extend/paged_attention.h"

namespace contextile {

// Number of keys whose scores are computed together.
inline constexpr int kPagedChunk = 64;
// Number of keys whose values are added to a head's sums together.
inline constexpr int kPagedValues = 32;
// The elements of a cache are widened in groups of as many.
inline constexpr int kPagedGroup = 64;
// The rows of a head are padded to a multiple of this.
inline constexpr int kPagedRows = 4;

// Rows of a head that share vectors: `rows` rows and `keys` keys of each, kLanes lanes, or twice as
// many if a row tile is two vectors wide. Lane r·keys + i belongs to row r and the i-th key.
struct PagedPanel {
  std::int32_t first = 0;  // row
  std::int32_t rows = 0;
  std::int32_t keys = 1;
  std::int32_t first_lane = 0;  // of the head's lanes

  [[nodiscard]] constexpr std::int32_t lanes() const { return rows * keys; }
};

// The shape of a task. Its rows are grouped by KV head, [kv_heads][rows of a head]. `rows_of_head`
// of them count; the others up to `padded_rows` are zero queries.
struct PagedShape {
  std::int32_t kv_heads = 1;
  std::int32_t rows_of_head = 1;
  std::int32_t padded_rows = 1;
  std::int32_t padded_head_dim = 0;  // multiples of 16
  std::int32_t padded_value_dim = 0;
  const PagedPanel* panels = nullptr;
  std::int32_t num_panels = 0;
  std::int32_t lanes_of_head = 0;
  bool is_shared = false;  // values are the first elements of the keys of a single head
};

// Memory of one task, all of it padded. The caller allocates it, because code of one instruction
// set must not instantiate templates that other files share. Queries and outputs have the elements
// of their dims in the order of PagedTarget::element.
struct PagedWorkspace {
  const float* q = nullptr;  // [kv_heads][panels][head_dim / keys][rows][keys], times scale·log2(e)
  float* scores = nullptr;   // [kv_heads][panels][kPagedChunk / keys][rows][keys]
  float* tile = nullptr;     // [paged_tile]: keys or values as floats
  float* out = nullptr;      // [kv_heads][padded_rows][padded_value_dim]
  float* top = nullptr;      // [kv_heads][lanes_of_head]: largest score so far, in powers of 2
  float* sum = nullptr;      // [kv_heads][lanes_of_head]: parts of the sum of a row's weights
  float* shrink = nullptr;   // [kv_heads][lanes_of_head]
};

// Up to kPagedChunk keys, at the elements of head 0.
struct PagedKeys {
  const std::byte* k[kPagedChunk];
  const std::byte* v[kPagedChunk];
  int count = 0;
};

struct PagedChunk {
  const PagedKeys* keys = nullptr;
  const PagedKeys* next = nullptr;     // keys that come after these; the same ones if none do
  const std::uint8_t* seen = nullptr;  // [count][num_queries], 1: is seen, 0: is not; null: all are
  int num_queries = 1;  // row r of a head belongs to query r / (rows_of_head / num_queries)
};

// Number of floats of PagedWorkspace::tile.
[[nodiscard]] constexpr std::int64_t paged_tile(const PagedShape& shape) {
  const std::int64_t keys = shape.is_shared ? kPagedChunk : 16;
  const std::int64_t of_keys = keys * shape.padded_head_dim;
  const std::int64_t of_values = kPagedChunk * kPagedGroup;
  const std::int64_t most = of_keys > of_values ? of_keys : of_values;
  return most > shape.padded_value_dim ? most : shape.padded_value_dim;
}

struct PagedTarget {
  const char* name = nullptr;
  int lanes = 4;
  // Returns the element of a row of `dim` elements that is at a position of its floats.
  std::int32_t (*element)(KvDtype dtype, std::int32_t dim, std::int32_t position) = nullptr;
  // The floats that cached elements become are to be multiplied by this.
  float (*factor)(KvDtype dtype) = nullptr;
  // Adds the keys to out, top and sum.
  void (*take)(const PagedParams& params, const PagedKv& kv, const PagedShape& shape,
               const PagedChunk& chunk, const PagedWorkspace& workspace) = nullptr;
};

// Null if the compiler or the processor's family has no such instructions. The caller must check
// whether this CPU has them.
[[nodiscard]] const PagedTarget* paged_avx512();
[[nodiscard]] const PagedTarget* paged_avx2();
[[nodiscard]] const PagedTarget* paged_portable();  // never null

}  // namespace contextile
