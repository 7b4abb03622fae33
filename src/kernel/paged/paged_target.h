// A table of the code for attention to keys in pages, compiled for one instruction set.
#pragma once

#include <cstdint>

#include "contextile/extend/paged_attention.h"

namespace contextile {

// Number of keys whose weights are computed together.
inline constexpr int kPagedChunk = 64;
// Number of keys whose scores are computed together for one head and then the next one.
inline constexpr int kPagedTileKeys = 16;
// Tokens are fetched into the cache when they are at least as many tokens ahead.
inline constexpr int kPagedFetch = 16;
// The place of a token in memory is found out as many tokens before it is fetched.
inline constexpr int kPagedWarm = 16;
// Number of keys whose values are added to a head's sums together.
inline constexpr int kPagedValues = 32;
// The elements of a cache are widened in groups of as many.
inline constexpr int kPagedGroup = 64;
// Keys and values that were widened lie in blocks of as many dims, [blocks][keys][kPagedBlock].
inline constexpr int kPagedBlock = 128;
// The rows of a head are padded to a multiple of this.
inline constexpr int kPagedRows = 4;

// Rows of a head that share vectors: `rows` rows and `keys` keys of each, kLanes lanes, or twice as
// many if a row tile is two vectors wide. Lane r·keys + i belongs to row r and the i-th key. Panels
// with more than one key have few rows.
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
  // Times scale·log2(e): [kv_heads][panels][head_dim][rows], or [head_dim / kLanes][rows][kLanes]
  // in a panel with few rows.
  const float* q = nullptr;
  float* scores = nullptr;  // [kv_heads][panels][kPagedChunk / keys][rows][keys]
  float* tile = nullptr;    // [paged_tile]: keys or values as floats, in blocks
  float* out = nullptr;     // [kv_heads][padded_rows][padded_value_dim]
  float* top = nullptr;     // [kv_heads][lanes_of_head]: largest score so far, in powers of 2
  float* sum = nullptr;     // [kv_heads][lanes_of_head]: parts of the sum of a row's weights
  float* shrink = nullptr;  // [kv_heads][lanes_of_head]
};

// Up to kPagedChunk keys, at the elements of head 0. kPagedChunk keys that are read later, or the
// last key again, follow, so that they can be fetched into the cache.
struct PagedKeys {
  const std::byte* k[2 * kPagedChunk];
  const std::byte* v[2 * kPagedChunk];
  int count = 0;
};

struct PagedChunk {
  const PagedKeys* keys = nullptr;
  const std::uint8_t* seen = nullptr;  // [count][num_queries], 1: is seen, 0: is not; null: all are
  int num_queries = 1;  // row r of a head belongs to query r / (rows_of_head / num_queries)
};

// Number of floats of PagedWorkspace::tile.
[[nodiscard]] constexpr std::int64_t paged_tile(const PagedShape& shape) {
  const auto in_blocks = [](std::int64_t dim) {
    return (dim + kPagedBlock - 1) / kPagedBlock * kPagedBlock;
  };
  const std::int64_t keys = shape.is_shared ? kPagedChunk : kPagedTileKeys;
  const std::int64_t of_keys = keys * in_blocks(shape.padded_head_dim);
  const std::int64_t of_values = std::int64_t{kPagedValues} * kPagedBlock;
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
