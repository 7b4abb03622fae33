// The tokens of every rank under the fixed layouts of context parallelism, and blocks cut from the
// tokens of a rank.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "contextile/base.h"
#include "contextile/extend/arrangement.h"
#include "contextile/extend/strategies.h"
#include "contextile/mask.h"
#include "contextile/workload.h"

namespace contextile {

// Returns the ascending ranges of every rank, sequence after sequence: the originals' local order.
// Chunk sizes are those of a sequence padded to a multiple of the number of chunks, clipped to its
// real tokens, so short sequences leave the last ranks empty. O(sequences · ranks).
[[nodiscard]] std::vector<std::vector<Range>> rank_ranges(TokenLayout layout,
                                                          std::span<const Range> sequences,
                                                          std::int32_t num_ranks);

// Blocks with the ranks that work on them. Without a home layout, these ranks are also the owners.
struct WorkBlocks {
  Blocking blocks;
  std::vector<Rank> workers;  // of every block
};

// Appends blocks for `ranges`, in order, each of at most `block_size` tokens (unset: no limit). A
// block never mixes roles or tokens of different home owners.
void append_blocks(const Workload& workload, std::span<const Range> ranges, Rank worker,
                   std::optional<std::int64_t> block_size, WorkBlocks& out);

}  // namespace contextile
