#include "batch/mask/tile_table.h"

#include <algorithm>
#include <utility>

namespace contextile {
namespace {

// A plan may lack this many tiles and still have each of them named.
constexpr std::int64_t kTilesListedByNobody = std::int64_t{1} << 20;
// Tiles of blocks with many ranges have many pieces, each of them a band for the kernel: a right
// plan may list few tiles and have many pieces. Pieces are not kept; adding them up takes 2 to 25
// ns each.
constexpr std::int64_t kPiecesListedByNobody = std::int64_t{1} << 30;
constexpr std::int64_t kPiecesOfTile = 4096;

}  // namespace

TileTable::TileTable(std::vector<Tile> tiles, std::int32_t num_blocks)
    : tiles_(std::move(tiles)), rows_(static_cast<std::size_t>(num_blocks)) {
  std::size_t next = 0;
  for (std::size_t block = 0; block < rows_.size(); ++block) {
    while (next < tiles_.size() && tiles_[next].q_block.index() < block) ++next;
    Row& row = rows_[block];
    row.first = static_cast<std::int64_t>(next);
    const std::size_t first = next;
    while (next < tiles_.size() && tiles_[next].q_block.index() == block) ++next;
    if (next == first) continue;
    row.count = static_cast<std::int32_t>(next - first);
    row.first_kv = tiles_[first].kv_block.value;
    row.has_gaps = tiles_[next - 1].kv_block.value - row.first_kv + 1 != row.count;
  }
}

std::int64_t TileTable::find(BlockId q_block, BlockId kv_block) const {
  const Row& row = rows_[q_block.index()];
  const std::int64_t beside = std::int64_t{kv_block.value} - row.first_kv;
  if (!row.has_gaps) return beside >= 0 && beside < row.count ? row.first + beside : -1;
  const auto begin = tiles_.begin() + row.first;
  const auto end = begin + row.count;
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
