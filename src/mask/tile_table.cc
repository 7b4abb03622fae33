#include "mask/tile_table.h"

#include <algorithm>
#include <utility>

namespace contextile {
namespace {

// A plan may lack a few tiles and still have each of them named.
constexpr std::int64_t kTilesListedByNobody = std::int64_t{1} << 20;
// Tiles of blocks with many ranges have many pieces, a band of the kernel's each: a right plan may
// list few tiles and have many. Nobody keeps them, they are added up in 2 to 25 ns each.
constexpr std::int64_t kPiecesListedByNobody = std::int64_t{1} << 30;
constexpr std::int64_t kPiecesOfTile = 64;

}  // namespace

TileTable::TileTable(std::vector<Tile> tiles, std::int32_t num_blocks)
    : tiles_(std::move(tiles)), first_of_q_block_(static_cast<std::size_t>(num_blocks) + 1) {
  std::size_t next = 0;
  for (std::size_t block = 0; block < first_of_q_block_.size(); ++block) {
    while (next < tiles_.size() && tiles_[next].q_block.index() < block) ++next;
    first_of_q_block_[block] = next;
  }
}

std::int64_t TileTable::find(BlockId q_block, BlockId kv_block) const {
  const auto at_block = [&](std::size_t block) {
    return tiles_.begin() + static_cast<std::ptrdiff_t>(first_of_q_block_[block]);
  };
  const auto begin = at_block(q_block.index());
  const auto end = at_block(q_block.index() + 1);
  if (begin == end) return -1;
  // Where all blocks from the row's first to this one have a tile, as under a causal mask.
  const std::int64_t beside = std::int64_t{kv_block.value} - begin->kv_block.value;
  if (beside >= 0 && beside < end - begin && begin[beside].kv_block == kv_block) {
    return begin + beside - tiles_.begin();
  }
  const auto at = std::ranges::lower_bound(begin, end, kv_block, {}, &Tile::kv_block);
  return at != end && at->kv_block == kv_block ? at - tiles_.begin() : -1;
}

std::optional<TileTable> tiles_beside(const Mask& mask, const Blocking& blocks,
                                      std::int64_t num_listed) {
  const TileIndex index(mask, blocks);
  if (index.num_pieces() > kPiecesOfTile * num_listed + kPiecesListedByNobody) return std::nullopt;
  std::optional<std::vector<Tile>> tiles = index.tiles_up_to(4 * num_listed + kTilesListedByNobody);
  if (!tiles) return std::nullopt;
  return TileTable(std::move(*tiles), blocks.num_blocks());
}

}  // namespace contextile
