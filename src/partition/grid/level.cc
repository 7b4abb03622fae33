#include "partition/grid/level.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace contextile {
namespace {

void build_nets(GridLevel& level) {
  level.net_bytes.resize(IdRange<GridNetId>(2 * level.num_groups * level.num_blocks()));
  level.total_held_tokens = 0;
  for (const GridLevel::LevelBlock& block : level.blocks)
    level.total_held_tokens += block.held_tokens;
  for (const GridNetId net : level.nets()) {
    const bool row = level.side_of_net(net) == Side::kRow;
    level.net_bytes[net] = level.blocks[level.block_of_net(net)].tokens *
                           (row ? level.row_bytes_per_token : level.column_bytes_per_token);
  }
  level.first_pin.assign(IdRange<GridNetId>(level.num_nets() + 1), PinId{0});
  level.total_work = 0;
  for (GridLevel::LevelTile& tile : level.tiles) {
    tile.row_net = level.net(Side::kRow, tile.group, tile.row);
    tile.column_net = level.net(Side::kColumn, tile.group, tile.column);
    level.total_work += tile.work;
    for (const GridNetId net : {tile.row_net, tile.column_net}) {
      ++level.first_pin[GridNetId{net.value + 1}].value;
    }
  }
  std::int32_t pins = 0;
  for (PinId& first : level.first_pin) first.value = pins += first.value;
  level.net_tiles.resize(IdRange<PinId>(2 * level.num_tiles()));
  IdVector<GridNetId, PinId> next = level.first_pin;
  const auto list = [&](TileId t, GridNetId net) {
    const PinId pin{next[net].value++};
    level.net_tiles[pin] = t;
    return pin;
  };
  for (const TileId t : level.tiles.ids()) {
    level.row_pin.push_back(list(t, level.tiles[t].row_net));
    level.column_pin.push_back(list(t, level.tiles[t].column_net));
  }
}

// The properties of a sequence that coarsening depends on.
struct SequenceShape {
  double work = 0;
  double tiles = 0;
  std::int64_t blocks = 0;
  std::int64_t largest_block_tokens = 0;
};

IdVector<SequenceId, SequenceShape> sequence_shapes(const GridLevel& level) {
  IdVector<SequenceId, SequenceShape> shapes{IdRange<SequenceId>(level.num_sequences())};
  for (const GridLevel::LevelBlock& block : level.blocks) {
    SequenceShape& shape = shapes[block.sequence];
    ++shape.blocks;
    shape.largest_block_tokens = std::max(shape.largest_block_tokens, block.tokens);
  }
  for (const GridLevel::LevelTile& tile : level.tiles) {
    SequenceShape& shape = shapes[level.blocks[tile.row].sequence];
    shape.work += static_cast<double>(tile.work);
    ++shape.tiles;
  }
  return shapes;
}

// Returns the number of tiles after merging pairs of blocks: a quarter if the sequence is dense,
// more if it is a thin band.
double tiles_after_merge(const SequenceShape& shape, std::int32_t groups) {
  const auto blocks = static_cast<double>(shape.blocks);
  const double density = shape.tiles / (blocks * blocks * groups);
  const std::int64_t pairs = (shape.blocks + 1) / 2;
  const auto merged = static_cast<double>(pairs);
  return std::max(shape.tiles / 4, std::min(shape.tiles, merged * merged * groups * density));
}

}  // namespace

double GridLevel::mean_row_bytes() const {
  double weighted = 0;
  for (const LevelTile& tile : tiles) {
    weighted += static_cast<double>(tile.work) * static_cast<double>(net_bytes[tile.row_net]);
  }
  return total_work > 0 ? weighted / static_cast<double>(total_work) : 0;
}

GridLevel finest_level(const AttentionGrid& grid) {
  GridLevel level;
  level.num_groups = grid.head_groups;
  level.row_bytes_per_token = grid.row_bytes_per_token;
  level.column_bytes_per_token = grid.column_bytes_per_token;
  for (const GridBlock& block : grid.blocks) {
    level.blocks.push_back({block.tokens, block.tokens, block.sequence});
  }
  level.tiles.reserve(grid.tiles.size());
  for (const GridTile& tile : grid.tiles) {
    level.tiles.push_back({tile.row, tile.column, tile.group, {}, {}, tile.work});
  }
  build_nets(level);
  return level;
}

GridLevel coarsen(const GridLevel& fine, const IdVector<SequenceId, bool>& merge) {
  GridLevel coarse;
  coarse.num_groups = fine.num_groups;
  coarse.row_bytes_per_token = fine.row_bytes_per_token;
  coarse.column_bytes_per_token = fine.column_bytes_per_token;
  std::int32_t in_sequence = 0;
  SequenceId last_sequence;
  for (const GridLevel::LevelBlock& block : fine.blocks) {
    if (block.sequence != last_sequence) in_sequence = 0;
    last_sequence = block.sequence;
    if (!merge[block.sequence] || in_sequence % 2 == 0) {
      coarse.blocks.push_back({0, 0, block.sequence});
    }
    coarse.blocks.back().tokens += block.tokens;
    coarse.blocks.back().held_tokens += block.held_tokens;
    coarse.coarse_block.push_back(BlockId{coarse.num_blocks() - 1});
    ++in_sequence;
  }
  // Fine tiles, keyed by the coarse tile that they belong to.
  struct Key {
    std::uint64_t place = 0;
    TileId tile;
  };
  const std::uint64_t num_blocks = coarse.blocks.size();
  const std::uint64_t num_groups = fine.groups().size();
  std::vector<Key> keys;
  keys.reserve(fine.tiles.size());
  for (const TileId t : fine.tiles.ids()) {
    const GridLevel::LevelTile& tile = fine.tiles[t];
    const std::uint64_t row = coarse.coarse_block[tile.row].index();
    const std::uint64_t column = coarse.coarse_block[tile.column].index();
    keys.push_back({(row * num_blocks + column) * num_groups + tile.group.index(), t});
  }
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
    return std::pair(a.place, a.tile) < std::pair(b.place, b.tile);
  });
  coarse.coarse_tile.resize(fine.tiles.ids());
  for (std::size_t k = 0; k < keys.size(); ++k) {
    const GridLevel::LevelTile& tile = fine.tiles[keys[k].tile];
    if (k == 0 || keys[k].place != keys[k - 1].place) {
      coarse.tiles.push_back(
          {coarse.coarse_block[tile.row], coarse.coarse_block[tile.column], tile.group, {}, {}, 0});
    }
    coarse.tiles.back().work += tile.work;
    coarse.coarse_tile[keys[k].tile] = TileId{coarse.num_tiles() - 1};
  }
  build_nets(coarse);
  return coarse;
}

SubGrid sub_grid(const GridLevel& whole, const IdVector<TileId, bool>& keep,
                 const IdVector<BlockId, bool>& held) {
  SubGrid sub;
  sub.level.num_groups = whole.num_groups;
  sub.level.row_bytes_per_token = whole.row_bytes_per_token;
  sub.level.column_bytes_per_token = whole.column_bytes_per_token;
  IdVector<BlockId, bool> needed = held;
  for (const TileId t : whole.tiles.ids()) {
    if (!keep[t]) continue;
    needed[whole.tiles[t].row] = true;
    needed[whole.tiles[t].column] = true;
  }
  IdVector<BlockId, BlockId> new_id(whole.blocks.ids());
  SequenceId last_sequence;
  std::int32_t num_sequences = 0;
  for (const BlockId b : whole.blocks.ids()) {
    if (!needed[b]) continue;
    const GridLevel::LevelBlock& block = whole.blocks[b];
    if (block.sequence != last_sequence) ++num_sequences;
    last_sequence = block.sequence;
    sub.block_of.push_back(b);
    new_id[b] = sub.level.blocks.push_back(
        {block.tokens, held[b] ? block.held_tokens : 0, SequenceId{num_sequences - 1}});
  }
  for (const TileId t : whole.tiles.ids()) {
    if (!keep[t]) continue;
    const GridLevel::LevelTile& tile = whole.tiles[t];
    sub.tile_of.push_back(t);
    sub.level.tiles.push_back(
        {new_id[tile.row], new_id[tile.column], tile.group, {}, {}, tile.work});
  }
  build_nets(sub.level);
  return sub;
}

std::vector<GridLevel> coarsen_all(GridLevel finest, double mean_work, double tile_share,
                                   std::int64_t max_block_tokens) {
  std::vector<GridLevel> levels;
  levels.push_back(std::move(finest));
  while (true) {
    const GridLevel& level = levels.back();
    const IdVector<SequenceId, SequenceShape> shapes = sequence_shapes(level);
    IdVector<SequenceId, bool> merge(shapes.ids());
    bool any = false;
    for (const SequenceId s : shapes.ids()) {
      const SequenceShape& shape = shapes[s];
      if (shape.blocks < 2 || shape.tiles == 0 ||
          2 * shape.largest_block_tokens > max_block_tokens) {
        continue;
      }
      merge[s] = shape.work / tiles_after_merge(shape, level.num_groups) <= mean_work * tile_share;
      any = any || merge[s];
    }
    if (!any) return levels;
    levels.push_back(coarsen(level, merge));
  }
}

}  // namespace contextile
