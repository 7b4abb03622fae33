// Random grids for the partitioner's tests.
#pragma once

#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/partition.h"
#include "support/mask_support.h"

namespace contextile {

// Returns a grid with a few sequences, some dense and causal and some thin bands, with blocks of
// uneven size and tails of few tokens.
inline AttentionGrid random_grid(Rng& rng, std::int32_t max_blocks = 40) {
  AttentionGrid grid;
  grid.head_groups = static_cast<std::int32_t>(random_between(rng, 1, 3));
  grid.row_bytes_per_token = random_between(rng, 1, 4096);
  grid.column_bytes_per_token = random_between(rng, 1, 4096);
  SequenceId sequence{0};
  while (static_cast<std::int32_t>(grid.blocks.size()) < max_blocks) {
    const auto first = static_cast<std::int32_t>(grid.blocks.size());
    const std::int64_t count = random_between(rng, 1, 12);
    const std::int64_t reach = random_chance(rng, 0.5) ? count : random_between(rng, 1, 3);
    for (std::int64_t b = 0; b < count; ++b) {
      const bool tail = b + 1 == count;
      grid.blocks.push_back({tail ? random_between(rng, 1, 1024) : 1024, sequence});
    }
    for (std::int32_t i = 0; i < count; ++i) {
      for (std::int32_t j = std::max<std::int32_t>(0, i - static_cast<std::int32_t>(reach) + 1);
           j <= i; ++j) {
        const BlockId row{first + i};
        const BlockId column{first + j};
        const std::int64_t rows = grid.blocks[row].tokens;
        const std::int64_t columns = grid.blocks[column].tokens;
        for (const GroupId g : IdRange<GroupId>(grid.head_groups)) {
          grid.tiles.push_back({row, column, g, i == j ? rows * (rows + 1) / 2 : rows * columns});
        }
      }
    }
    ++sequence.value;
  }
  return grid;
}

}  // namespace contextile
