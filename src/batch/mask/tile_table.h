// The tiles of a mask as a table to look into, for checking plans that have not been checked yet.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "contextile/mask.h"

namespace contextile {

class TileTable {
 public:
  // `tiles` are ordered by (q_block, kv_block).
  TileTable(std::vector<Tile> tiles, std::int32_t num_blocks);

  [[nodiscard]] std::span<const Tile> tiles() const { return tiles_; }
  // Index into tiles(), or -1 if no pair of the mask is there. O(1) where a row's tiles are
  // neighbours, as under a causal mask; else O(log n).
  [[nodiscard]] std::int64_t find(BlockId q_block, BlockId kv_block) const;

 private:
  // The tiles of a query block. It is small, so that lookups all over a large table stay in the
  // cache.
  struct Row {
    std::int64_t first = 0;  // into tiles_
    std::int32_t count = 0;
    std::int32_t first_kv = 0;
    bool has_gaps = false;  // key blocks between its first and its last have no tile
  };

  std::vector<Tile> tiles_;
  std::vector<Row> rows_;  // by query block
};

// The tiles of `mask` over `blocks`, for comparison with the `num_listed` tiles that a plan lists.
// Returns nothing if there are so many more that the plan is wrong whatever it lists: a small file
// must not demand memory and time without end. Throws InvalidArgument as TileIndex does.
[[nodiscard]] std::optional<TileTable> tiles_beside(const Mask& mask, const Blocking& blocks,
                                                    std::int64_t num_listed);

}  // namespace contextile
