#include "partition/level.h"

#include <algorithm>
#include <utility>

namespace contextile {
namespace {

void build_nets(GridLevel& level) {
  const std::int32_t num_blocks = level.num_blocks();
  const std::int32_t row_nets = level.num_groups * num_blocks;
  level.net_bytes.resize(2 * static_cast<std::size_t>(row_nets));
  level.total_held_tokens = 0;
  for (const GridLevel::LevelBlock& block : level.blocks)
    level.total_held_tokens += block.held_tokens;
  for (std::int32_t net = 0; net < 2 * row_nets; ++net) {
    const std::int64_t tokens = level.blocks[static_cast<std::size_t>(net % num_blocks)].tokens;
    level.net_bytes[static_cast<std::size_t>(net)] =
        tokens * (net < row_nets ? level.row_bytes_per_token : level.column_bytes_per_token);
  }
  level.first_tile.assign(level.net_bytes.size() + 1, 0);
  level.total_work = 0;
  for (GridLevel::LevelTile& tile : level.tiles) {
    tile.row_net = tile.group * num_blocks + tile.row;
    tile.column_net = row_nets + tile.group * num_blocks + tile.column;
    level.total_work += tile.work;
    ++level.first_tile[static_cast<std::size_t>(tile.row_net) + 1];
    ++level.first_tile[static_cast<std::size_t>(tile.column_net) + 1];
  }
  for (std::size_t net = 1; net < level.first_tile.size(); ++net) {
    level.first_tile[net] += level.first_tile[net - 1];
  }
  level.net_tiles.resize(2 * level.tiles.size());
  std::vector<std::int32_t> next(level.first_tile.begin(), level.first_tile.end() - 1);
  const auto list = [&](std::size_t t, std::int32_t net) {
    const std::int32_t slot = next[static_cast<std::size_t>(net)]++;
    level.net_tiles[static_cast<std::size_t>(slot)] = static_cast<std::int32_t>(t);
    return slot;
  };
  for (std::size_t t = 0; t < level.tiles.size(); ++t) {
    level.row_slot.push_back(list(t, level.tiles[t].row_net));
    level.column_slot.push_back(list(t, level.tiles[t].column_net));
  }
}

// What coarsening needs to know of a sequence.
struct SequenceShape {
  double work = 0;
  double tiles = 0;
  std::int64_t blocks = 0;
  std::int64_t largest_block_tokens = 0;
};

std::vector<SequenceShape> sequence_shapes(const GridLevel& level) {
  std::vector<SequenceShape> shapes(static_cast<std::size_t>(level.num_sequences()));
  for (const GridLevel::LevelBlock& block : level.blocks) {
    SequenceShape& shape = shapes[static_cast<std::size_t>(block.sequence)];
    ++shape.blocks;
    shape.largest_block_tokens = std::max(shape.largest_block_tokens, block.tokens);
  }
  for (const GridLevel::LevelTile& tile : level.tiles) {
    SequenceShape& shape =
        shapes[static_cast<std::size_t>(level.blocks[static_cast<std::size_t>(tile.row)].sequence)];
    shape.work += static_cast<double>(tile.work);
    ++shape.tiles;
  }
  return shapes;
}

// Tiles left after merging pairs of blocks: a quarter if the sequence is dense, more if it is a
// thin band.
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
    weighted += static_cast<double>(tile.work) *
                static_cast<double>(net_bytes[static_cast<std::size_t>(tile.row_net)]);
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
    level.tiles.push_back({tile.row, tile.column, tile.group, 0, 0, tile.work});
  }
  build_nets(level);
  return level;
}

GridLevel coarsen(const GridLevel& fine, const std::vector<bool>& merge) {
  GridLevel coarse;
  coarse.num_groups = fine.num_groups;
  coarse.row_bytes_per_token = fine.row_bytes_per_token;
  coarse.column_bytes_per_token = fine.column_bytes_per_token;
  std::int32_t in_sequence = 0;
  for (std::size_t b = 0; b < fine.blocks.size(); ++b) {
    const std::int32_t sequence = fine.blocks[b].sequence;
    if (b == 0 || sequence != fine.blocks[b - 1].sequence) in_sequence = 0;
    if (!merge[static_cast<std::size_t>(sequence)] || in_sequence % 2 == 0) {
      coarse.blocks.push_back({0, 0, sequence});
    }
    coarse.blocks.back().tokens += fine.blocks[b].tokens;
    coarse.blocks.back().held_tokens += fine.blocks[b].held_tokens;
    coarse.coarse_block.push_back(coarse.num_blocks() - 1);
    ++in_sequence;
  }
  struct Key {
    std::uint64_t place = 0;
    std::int32_t tile = 0;
  };
  const auto num_blocks = static_cast<std::uint64_t>(coarse.blocks.size());
  std::vector<Key> keys(fine.tiles.size());
  for (std::size_t t = 0; t < fine.tiles.size(); ++t) {
    const GridLevel::LevelTile& tile = fine.tiles[t];
    const auto row =
        static_cast<std::uint64_t>(coarse.coarse_block[static_cast<std::size_t>(tile.row)]);
    const auto column =
        static_cast<std::uint64_t>(coarse.coarse_block[static_cast<std::size_t>(tile.column)]);
    keys[t] = {(row * num_blocks + column) * static_cast<std::uint64_t>(fine.num_groups) +
                   static_cast<std::uint64_t>(tile.group),
               static_cast<std::int32_t>(t)};
  }
  std::sort(keys.begin(), keys.end(), [](const Key& a, const Key& b) {
    return std::pair(a.place, a.tile) < std::pair(b.place, b.tile);
  });
  coarse.coarse_tile.resize(fine.tiles.size());
  for (std::size_t k = 0; k < keys.size(); ++k) {
    const GridLevel::LevelTile& tile = fine.tiles[static_cast<std::size_t>(keys[k].tile)];
    if (k == 0 || keys[k].place != keys[k - 1].place) {
      coarse.tiles.push_back({coarse.coarse_block[static_cast<std::size_t>(tile.row)],
                              coarse.coarse_block[static_cast<std::size_t>(tile.column)],
                              tile.group, 0, 0, 0});
    }
    coarse.tiles.back().work += tile.work;
    coarse.coarse_tile[static_cast<std::size_t>(keys[k].tile)] = coarse.num_tiles() - 1;
  }
  build_nets(coarse);
  return coarse;
}

SubGrid sub_grid(const GridLevel& whole, const std::vector<bool>& keep,
                 const std::vector<bool>& held) {
  SubGrid sub;
  sub.level.num_groups = whole.num_groups;
  sub.level.row_bytes_per_token = whole.row_bytes_per_token;
  sub.level.column_bytes_per_token = whole.column_bytes_per_token;
  std::vector<bool> needed = held;
  for (std::size_t t = 0; t < whole.tiles.size(); ++t) {
    if (!keep[t]) continue;
    needed[static_cast<std::size_t>(whole.tiles[t].row)] = true;
    needed[static_cast<std::size_t>(whole.tiles[t].column)] = true;
  }
  std::vector<std::int32_t> new_index(whole.blocks.size(), -1);
  std::int32_t last_sequence = -1;
  std::int32_t sequence = -1;
  for (std::size_t b = 0; b < whole.blocks.size(); ++b) {
    if (!needed[b]) continue;
    const GridLevel::LevelBlock& block = whole.blocks[b];
    if (block.sequence != last_sequence) ++sequence;
    last_sequence = block.sequence;
    new_index[b] = sub.level.num_blocks();
    sub.block_of.push_back(static_cast<std::int32_t>(b));
    sub.level.blocks.push_back({block.tokens, held[b] ? block.held_tokens : 0, sequence});
  }
  for (std::size_t t = 0; t < whole.tiles.size(); ++t) {
    if (!keep[t]) continue;
    const GridLevel::LevelTile& tile = whole.tiles[t];
    sub.tile_of.push_back(static_cast<std::int32_t>(t));
    sub.level.tiles.push_back({new_index[static_cast<std::size_t>(tile.row)],
                               new_index[static_cast<std::size_t>(tile.column)], tile.group, 0, 0,
                               tile.work});
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
    const std::vector<SequenceShape> shapes = sequence_shapes(level);
    std::vector<bool> merge(shapes.size());
    bool any = false;
    for (std::size_t s = 0; s < shapes.size(); ++s) {
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
