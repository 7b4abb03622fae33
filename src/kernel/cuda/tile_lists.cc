#include "kernel/cuda/tile_lists.h"

#include <algorithm>
#include <limits>
#include <map>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "kernel/cpu/panels.h"

namespace contextile::cuda {
namespace {

constexpr std::int32_t kLargestDim = 256;

// The side of a tile whose rows own the result.
struct OwnedSide {
  const void* slot = nullptr;
  bool init = false;
  std::int64_t owned_tokens = 0;
  std::int64_t streamed_tokens = 0;
  std::vector<LocalBand> bands;            // owned tokens as q, streamed ones as k
  const PanelBands* classified = nullptr;  // the same bands if they were classified before
};

LocalBand transposed(const LocalBand& band) { return {band.k, band.q, -band.hi, -band.lo}; }
std::vector<LocalBand> transposed(std::span<const LocalBand> bands) {
  std::vector<LocalBand> result;
  result.reserve(bands.size());
  for (const LocalBand& band : bands) result.push_back(transposed(band));
  return result;
}

const DeviceBands* prepared_of(const PreparedBands* prepared) {
  return static_cast<const DeviceBands*>(prepared);
}

class TileListBuilder {
 public:
  TileListBuilder(std::int32_t owned_heads, std::int32_t streamed_heads, const BlockRows& rows)
      : owned_heads_(owned_heads),
        streamed_heads_(streamed_heads),
        owned_rows_(rows.owned),
        rows_(rows.streamed) {}

  // Makes the table of a launch. The longest work comes first.
  LaunchTable build(std::span<const OwnedSide> sides, std::size_t first_tile) {
    std::map<const void*, std::size_t> group_of_slot;
    std::vector<std::vector<std::size_t>> groups;
    for (std::size_t i = 0; i < sides.size(); ++i) {
      const auto [at, is_new] = group_of_slot.try_emplace(sides[i].slot, groups.size());
      if (is_new) groups.emplace_back();
      groups[at->second].push_back(i);
    }
    for (const std::vector<std::size_t>& group : groups) add_group(sides, group, first_tile);
    std::stable_sort(table_.owned.begin(), table_.owned.end(),
                     [](const auto& a, const auto& b) { return a.num_blocks > b.num_blocks; });
    return std::move(table_);
  }

 private:
  // Adds the owned blocks of one slot with the blocks that they meet in all its tiles.
  void add_group(std::span<const OwnedSide> sides, std::span<const std::size_t> group,
                 std::size_t first_tile) {
    const OwnedSide& slot = sides[group.front()];
    const std::int64_t rows = slot.owned_tokens * owned_heads_;
    std::vector<PanelBands> made;
    made.reserve(group.size());
    std::vector<const PanelBands*> classified;
    for (const std::size_t i : group) {
      const OwnedSide& side = sides[i];
      const std::int64_t most = std::max(rows, side.streamed_tokens * streamed_heads_);
      CONTEXTILE_CHECK(most < std::numeric_limits<std::int32_t>::max() - owned_rows_,
                       "tile: expected fewer than 2^31 rows of heads, found {}", most);
      classified.push_back(side.classified);
      if (side.classified != nullptr) continue;
      made.emplace_back(side.bands, side.owned_tokens, side.streamed_tokens, owned_heads_,
                        owned_rows_, 1);
      classified.back() = &made.back();
    }
    const auto num_rows = static_cast<std::int32_t>(rows);
    for (std::int32_t begin = 0; begin < num_rows; begin += owned_rows_) {
      OwnedBlock owned;
      owned.tile = static_cast<std::int32_t>(first_tile + group.front());
      owned.begin = begin;
      owned.end = std::min(begin + owned_rows_, num_rows);
      owned.first_run = checked_count(std::ssize(table_.runs), "runs in a launch");
      owned.init = slot.init;
      std::int64_t num_blocks = 0;
      for (std::size_t i = 0; i < group.size(); ++i) {
        const auto tile = static_cast<std::int32_t>(first_tile + group[i]);
        for (const PanelStep& step : classified[i]->steps(begin / owned_rows_)) {
          num_blocks += add_step(tile, step, *classified[i]);
        }
      }
      owned.num_blocks = checked_count(num_blocks, "blocks that a block meets");
      if (owned.num_blocks > 0 || owned.init) table_.owned.push_back(owned);
    }
  }

  static std::int32_t checked_count(std::int64_t count, std::string_view things) {
    CONTEXTILE_CHECK(count < std::numeric_limits<std::int32_t>::max(),
                     "cuda lists: expected fewer than 2^31 {}, found {}", things, count);
    return static_cast<std::int32_t>(count);
  }

  // Adds the runs of a step: the blocks in front of those that are full, these, and the rest. Only
  // full ones do not refer to its bands. Returns the number of blocks.
  std::int64_t add_step(std::int32_t tile, const PanelStep& step, const PanelBands& classified) {
    const std::int32_t first_band = checked_count(std::ssize(table_.bands), "bands in a launch");
    for (std::uint32_t b = 0; b < step.num_bands; ++b) {
      const LaneBand& band = classified.band(step.first_band + b);
      table_.bands.push_back(
          {band.q_begin, band.q_end, band.k_begin, band.k_end, band.lo, band.hi});
    }
    const std::int32_t begin = step.begin * streamed_heads_;
    const std::int32_t end = step.end * streamed_heads_;
    const std::int32_t before = std::max(step.full_begin * streamed_heads_ - begin, 0);
    std::int32_t full_begin = std::min(begin + (before + rows_ - 1) / rows_ * rows_, end);
    const std::int32_t full = std::min(step.full_end * streamed_heads_, end) - full_begin;
    std::int32_t full_end = full_begin + std::max(full, 0) / rows_ * rows_;
    if (full_begin == full_end) full_begin = full_end = end;
    const auto num_bands = static_cast<std::int32_t>(step.num_bands);
    if (begin < full_begin) table_.runs.push_back({begin, full_begin, first_band, num_bands, tile});
    if (full_begin < full_end) table_.runs.push_back({full_begin, full_end, 0, 0, tile});
    if (full_end < end) table_.runs.push_back({full_end, end, first_band, num_bands, tile});
    return (std::int64_t{end} - begin + rows_ - 1) / rows_;
  }

  const std::int32_t owned_heads_;
  const std::int32_t streamed_heads_;
  const std::int32_t owned_rows_;
  const std::int32_t rows_;
  LaunchTable table_;
};

// The first tile that wrote each slot.
template <typename Tile>
using FirstOfSlot = std::map<const void*, const Tile*>;

// Returns true if a tile can join those before it that write a slot of its own.
template <typename Tile, typename SameRows>
bool joins(FirstOfSlot<Tile>& first_of_slot, const void* slot, bool init, const Tile& tile,
           const SameRows& same_rows) {
  const auto [at, is_new] = first_of_slot.try_emplace(slot, &tile);
  return is_new || (!init && same_rows(*at->second, tile));
}

template <typename Tile>
OwnedSide query_side(const Tile& tile, const void* slot, bool init) {
  OwnedSide side{slot, init, tile.q_NHD.tokens, tile.k_MHD.tokens, {}, nullptr};
  if (tile.prepared != nullptr) {
    const DeviceBands& bands = *prepared_of(tile.prepared);
    constexpr bool kIsForward = std::is_same_v<Tile, ForwardTile>;
    side.classified = kIsForward ? &bands.forward_queries() : &bands.queries();
  } else {
    side.bands.assign(tile.bands.begin(), tile.bands.end());
  }
  return side;
}

template <typename T>
DeviceRows<T> rows_of(const TensorView& view) {
  return {static_cast<T*>(view.data), view.token_stride, view.head_stride};
}

DeviceRows<float> rows_of(const RowStats& stats) {
  return {stats.data, stats.token_stride, stats.head_stride};
}

DeviceRows<const std::uint16_t> input_rows(const TensorView& view) {
  check_rows(view);
  return rows_of<const std::uint16_t>(view);
}

template <typename Tile>
DeviceTile inputs_of(const Tile& tile) {
  DeviceTile device;
  device.q = input_rows(tile.q_NHD);
  device.k = input_rows(tile.k_MHD);
  device.v = input_rows(tile.v_MHD);
  device.lse = rows_of(tile.lse_NH);
  return device;
}

// Makes the table of query rows as owners. `slot` is their result, and `init` is true if they start
// it.
template <typename Tile>
LaunchTable query_table(const KernelParams& params, std::span<const Tile> tiles, std::size_t first,
                        const BlockRows& rows, TensorView Tile::*slot, bool Tile::*init) {
  std::vector<OwnedSide> sides;
  for (const Tile& tile : tiles) sides.push_back(query_side(tile, (tile.*slot).data, tile.*init));
  return TileListBuilder(params.q_heads / params.kv_heads, 1, rows).build(sides, first);
}

}  // namespace

void check_inputs(Dtype dtype, std::int32_t dim) {
  CONTEXTILE_CHECK(dtype != Dtype::kF32, "cuda kernels: expected bf16 or f16, found f32");
  CONTEXTILE_CHECK(dim % 8 == 0 && dim <= kLargestDim,
                   "cuda kernels: expected a head dim that is a multiple of 8 up to {}, found {}",
                   kLargestDim, dim);
}

void check_rows(const TensorView& view) {
  const auto address = reinterpret_cast<std::uintptr_t>(view.data);
  check_inputs(view.dtype, view.dim);
  // A stride that no index is multiplied with may have any value.
  const bool tokens_fit = view.tokens <= 1 || view.token_stride % 8 == 0;
  const bool heads_fit = view.heads <= 1 || view.head_stride % 8 == 0;
  CONTEXTILE_CHECK(address % 16 == 0 && tokens_fit && heads_fit,
                   "cuda kernels: expected rows at multiples of 16 bytes, found strides of {}, {}",
                   view.token_stride, view.head_stride);
}

DeviceBands::DeviceBands(const KernelParams& params, std::span<const LocalBand> bands,
                         std::int64_t num_rows, std::int64_t num_keys, const Owned& owned)
    : queries_(bands, num_rows, num_keys, params.q_heads / params.kv_heads, owned.gradients, 1),
      keys_(transposed(bands), num_keys, num_rows, 1, owned.gradients, 1) {
  if (owned.forward == owned.gradients) return;
  forward_queries_.emplace(bands, num_rows, num_keys, params.q_heads / params.kv_heads,
                           owned.forward, 1);
}

std::size_t end_of_launch(std::span<const ForwardTile> tiles, std::size_t first) {
  FirstOfSlot<ForwardTile> first_of_slot;
  const auto same = [](const ForwardTile& a, const ForwardTile& b) {
    return a.q_NHD.data == b.q_NHD.data;
  };
  for (std::size_t i = first; i < tiles.size(); ++i) {
    if (!joins(first_of_slot, tiles[i].o_NHD.data, tiles[i].init, tiles[i], same)) return i;
  }
  return tiles.size();
}

std::size_t end_of_launch(std::span<const BackwardTile> tiles, std::size_t first) {
  FirstOfSlot<BackwardTile> first_of_query_slot;
  FirstOfSlot<BackwardTile> first_of_key_slot;
  const auto same_queries = [](const BackwardTile& a, const BackwardTile& b) {
    return a.q_NHD.data == b.q_NHD.data && a.do_NHD.data == b.do_NHD.data &&
           a.lse_NH.data == b.lse_NH.data && a.delta_NH.data == b.delta_NH.data;
  };
  const auto same_keys = [](const BackwardTile& a, const BackwardTile& b) {
    return a.k_MHD.data == b.k_MHD.data && a.v_MHD.data == b.v_MHD.data;
  };
  for (std::size_t i = first; i < tiles.size(); ++i) {
    const BackwardTile& tile = tiles[i];
    if (!joins(first_of_query_slot, tile.dq_NHD.data, tile.init_dq, tile, same_queries) ||
        !joins(first_of_key_slot, tile.dk_MHD.data, tile.init_dkv, tile, same_keys)) {
      return i;
    }
  }
  return tiles.size();
}

LaunchTable forward_table(const KernelParams& params, std::span<const ForwardTile> tiles,
                          std::size_t first, std::size_t end, const BlockRows& rows) {
  return query_table(params, tiles.subspan(first, end - first), first, rows, &ForwardTile::o_NHD,
                     &ForwardTile::init);
}

LaunchTable query_gradient_table(const KernelParams& params, std::span<const BackwardTile> tiles,
                                 std::size_t first, std::size_t end, const BlockRows& rows) {
  return query_table(params, tiles.subspan(first, end - first), first, rows, &BackwardTile::dq_NHD,
                     &BackwardTile::init_dq);
}

LaunchTable key_gradient_table(const KernelParams& params, std::span<const BackwardTile> tiles,
                               std::size_t first, std::size_t end, const BlockRows& rows) {
  std::vector<OwnedSide> sides;
  for (const BackwardTile& tile : tiles.subspan(first, end - first)) {
    OwnedSide side{tile.dk_MHD.data, tile.init_dkv, tile.k_MHD.tokens, tile.q_NHD.tokens, {},
                   nullptr};
    if (tile.prepared != nullptr) {
      side.classified = &prepared_of(tile.prepared)->keys();
    } else {
      side.bands = transposed(tile.bands);
    }
    sides.push_back(std::move(side));
  }
  return TileListBuilder(1, params.q_heads / params.kv_heads, rows).build(sides, first);
}

std::vector<DeviceTile> device_tiles(std::span<const ForwardTile> tiles) {
  std::vector<DeviceTile> list;
  for (const ForwardTile& tile : tiles) {
    list.push_back(inputs_of(tile));
    list.back().o = rows_of<float>(tile.o_NHD);
  }
  return list;
}

std::vector<DeviceTile> device_tiles(std::span<const BackwardTile> tiles) {
  std::vector<DeviceTile> list;
  for (const BackwardTile& tile : tiles) {
    DeviceTile device = inputs_of(tile);
    device.dout = input_rows(tile.do_NHD);
    device.delta = rows_of(tile.delta_NH);
    device.dq = rows_of<float>(tile.dq_NHD);
    device.dk = rows_of<float>(tile.dk_MHD);
    device.dv = rows_of<float>(tile.dv_MHD);
    list.push_back(device);
  }
  return list;
}

}  // namespace contextile::cuda
