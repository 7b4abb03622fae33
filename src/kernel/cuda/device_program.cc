#include "kernel/cuda/device_program.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "kernel/cuda/access.h"
#include "kernel/cuda/row_launch.h"
#include "kernel/cuda/tile_maps.h"

namespace contextile::cuda {
namespace {

std::uintptr_t address_of(const void* data) { return reinterpret_cast<std::uintptr_t>(data); }

template <typename Tile>
constexpr bool kIsForward = std::is_same_v<Tile, ForwardTile>;

// Returns the rows of an array at the place of the part.
TensorView rows_of(const TilePart& part, std::span<const TensorView> arrays, std::int64_t tokens,
                   std::int32_t heads) {
  const TensorView& array = arrays[static_cast<std::size_t>(part.array)];
  TensorView rows = slice(array, part.first_token, tokens, part.first_head, heads);
  rows.token_stride *= part.token_step;
  return rows;
}

}  // namespace

// Sorts the arrays by address for binary search. Empty arrays are omitted: they begin where the
// next array begins, and no tile has rows in them.
PartFinder::PartFinder(std::span<const TensorView> arrays) : arrays_(arrays) {
  CONTEXTILE_CHECK(arrays.size() <= kMaxArrays, "cuda lists: expected up to {} arrays, found {}",
                   kMaxArrays, arrays.size());
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    const TensorView& array = arrays[a];
    const std::int64_t bytes = array.tokens * array.token_stride * bytes_per_element(array.dtype);
    if (bytes == 0) continue;
    const std::uintptr_t begin = address_of(array.data);
    places_.push_back(
        {begin, begin + static_cast<std::uintptr_t>(bytes), static_cast<std::int32_t>(a)});
  }
  std::ranges::sort(places_, {}, &Place::begin);
}

// The array is the last one that begins at or before the address. The distance to its begin, in
// elements, is divided by its strides: whole tokens first, then whole heads in the rest.
TilePart PartFinder::find(const void* data, std::int64_t token_stride,
                          std::int64_t head_stride) const {
  const std::uintptr_t at = address_of(data);
  auto place = std::ranges::upper_bound(places_, at, {}, &Place::begin);
  CONTEXTILE_CHECK(place != places_.begin() && at < (--place)->end,
                   "cuda lists: expected tensors that are rows of the arrays, found one at {}",
                   data);
  const TensorView& array = arrays_[static_cast<std::size_t>(place->array)];
  const std::int64_t elements =
      static_cast<std::int64_t>(at - place->begin) / bytes_per_element(array.dtype);
  const std::int64_t in_token = elements % array.token_stride;
  CONTEXTILE_CHECK(token_stride % array.token_stride == 0 && head_stride == array.head_stride,
                   "cuda lists: expected tensors whose strides are those of their arrays ({} and "
                   "{} elements), or whole multiples between tokens, found {} and {}",
                   array.token_stride, array.head_stride, token_stride, head_stride);
  return {place->array, static_cast<std::int32_t>(in_token / array.head_stride),
          elements / array.token_stride, token_stride / array.token_stride};
}

TilePart PartFinder::part_of(const TensorView& rows) const {
  return find(rows.data, rows.token_stride, rows.head_stride);
}
TilePart PartFinder::part_of(const RowStats& rows) const {
  return find(rows.data, rows.token_stride, rows.head_stride);
}

// Tiles and launches of all lists lie in two flat arrays, and each list knows its part of both.
// Offsets in `bytes` stay valid on the device, because `upload` begins the device's memory with
// them.
template <typename Tile>
DeviceProgram<Tile>::DeviceProgram(const RankStreams& streams, Program program,
                                   const KernelParams& params, std::span<const TensorView> arrays,
                                   std::span<const std::vector<Tile>> lists)
    : streams_(streams), program_(program), params_(params), is_loaded_(arrays.size()) {
  const PartFinder find(arrays);
  ByteList bytes;
  for (const std::vector<Tile>& tiles : lists) {
    List list{.first_tile = tiles_.size(), .first_launch = launches_.size()};
    add_tiles(find, tiles);
    const std::vector<ListedLaunch> launches =
        list_launches(program, params, std::span<const Tile>(tiles), bytes);
    launches_.insert(launches_.end(), launches.begin(), launches.end());
    list.end_tile = tiles_.size();
    list.end_launch = launches_.size();
    lists_.push_back(list);
  }
  upload(bytes);
}

// Replaces the addresses of tiles by places in arrays, which stay the same when arrays move.
template <typename Tile>
void DeviceProgram<Tile>::add_tiles(const PartFinder& find, std::span<const Tile> tiles) {
  for (const Tile& tile : tiles) {
    KnownTile known;
    TileParts& parts = known.parts;
    known.num_rows = tile.q_NHD.tokens;
    known.num_keys = tile.k_MHD.tokens;
    parts.q = find.part_of(tile.q_NHD);
    parts.k = find.part_of(tile.k_MHD);
    parts.v = find.part_of(tile.v_MHD);
    parts.lse = find.part_of(tile.lse_NH);
    if constexpr (kIsForward<Tile>) {
      parts.o = find.part_of(tile.o_NHD);
      known.init = tile.init;
    } else {
      parts.dout = find.part_of(tile.do_NHD);
      parts.delta = find.part_of(tile.delta_NH);
      parts.dq = find.part_of(tile.dq_NHD);
      parts.dk = find.part_of(tile.dk_MHD);
      parts.dv = find.part_of(tile.dv_MHD);
      known.init = tile.init_dq;
      known.init_dkv = tile.init_dkv;
    }
    // Kernels read these operands 16 bytes at a time, so `begin` has to check their alignment. A
    // forward tile has no dout, whose array is then -1.
    for (const TilePart& part : {parts.q, parts.k, parts.v, parts.dout}) {
      if (part.array >= 0) is_loaded_[static_cast<std::size_t>(part.array)] = true;
    }
    tiles_.push_back(known);
  }
}

// Writes everything that stays the same for all calls in one piece: the lists of launches, then the
// places of tiles. Without tiles no launch reads any of it.
template <typename Tile>
void DeviceProgram<Tile>::upload(const ByteList& lists) {
  if (tiles_.empty()) return;
  ByteList all = lists;
  std::vector<TileParts> parts;
  parts.reserve(tiles_.size());
  for (const KnownTile& tile : tiles_) parts.push_back(tile.parts);
  parts_ = all.add(parts);
  memory_bytes_ = std::ssize(all.bytes());
  memory_ = std::make_unique<StreamMemory>(streams_.driver, streams_.compute, memory_bytes_);
  streams_.driver.write(streams_.compute, memory_->data(), all.bytes());
}

// The call's memory may begin anywhere, so the gap before the maps depends on its address.
// `call_bytes` counts the largest gap.
template <typename Tile>
std::byte* DeviceProgram<Tile>::maps_in(std::byte* call) const {
  const std::uintptr_t end = address_of(call + tile_bytes());
  const auto alignment = static_cast<std::uintptr_t>(kMapAlignment);
  return call + tile_bytes() + (alignment - end % alignment) % alignment;
}

// Maps hold addresses and strides, so they are made again when an array has other ones. They are in
// the order of tiles, because `run` finds them by the number of a list's first tile.
template <typename Tile>
void DeviceProgram<Tile>::make_maps(std::span<const TensorView> arrays) const {
  std::vector<PlacedArray> places;
  for (const TensorView& array : arrays) {
    places.push_back({array.data, array.token_stride, array.head_stride});
  }
  if (places == mapped_arrays_) return;
  maps_.clear();
  mapped_arrays_.clear();
  for (const List& list : lists_) {
    const std::vector<Tile> tiles = tiles_of(list, arrays);
    const std::vector<TileMaps> some = [&] {
      if constexpr (kIsForward<Tile>) {
        return tile_maps(streams_.driver, program_, tiles);
      } else {
        return tile_maps(streams_.driver, program_, params_, tiles);
      }
    }();
    maps_.insert(maps_.end(), some.begin(), some.end());
  }
  mapped_arrays_ = std::move(places);
}

// Turns the places of all tiles of all lists into addresses, by one launch whose rows are tiles.
// The arrays are arguments of that launch, so nothing is uploaded for kernels without maps.
template <typename Tile>
void DeviceProgram<Tile>::begin(std::span<const TensorView> arrays, std::byte* call) const {
  if (tiles_.empty()) return;
  PlaceCall place;
  place.shape = {.tokens = std::ssize(tiles_), .heads = 1, .dim = 1};
  place.parts = reinterpret_cast<const TileParts*>(memory_->data() + parts_);
  place.tiles = reinterpret_cast<DeviceTile*>(call);
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    if (is_loaded_[a]) check_rows(arrays[a]);
    place.arrays[a] = {arrays[a].data, arrays[a].token_stride, arrays[a].head_stride};
  }
  const auto num_tiles = static_cast<std::int64_t>(tiles_.size());
  launch_rows(streams_, "rows_place", place, [&] {
    const auto parts_bytes = num_tiles * static_cast<std::int64_t>(sizeof(TileParts));
    return Access{.reads = {{memory_->data() + parts_, parts_bytes, 1, 0}},
                  .writes = {{call, tile_bytes(), 1, 0}}};
  });
  if (!reads_maps()) return;
  make_maps(arrays);
  // The driver reads `maps_` before it returns, so the next call may change them.
  streams_.driver.write(streams_.compute, maps_in(call), std::as_bytes(std::span(maps_)));
}

// Puts a list's launches on the stream, in order. Launches count the tiles of their list from 0, so
// both tables begin at the list's first tile.
template <typename Tile>
void DeviceProgram<Tile>::run(std::size_t list, std::span<const TensorView> arrays,
                              std::byte* call) const {
  const List& mine = lists_.at(list);
  const auto* const tiles = reinterpret_cast<const DeviceTile*>(call) + mine.first_tile;
  for (std::size_t i = mine.first_launch; i < mine.end_launch; ++i) {
    const ListedLaunch& launch = launches_[i];
    const auto* const maps =
        reads_maps() ? reinterpret_cast<const TileMaps*>(maps_in(call)) + mine.first_tile : nullptr;
    const CallTables tables{.tiles = tiles, .maps = maps, .lists = memory_->data()};
    // The access is asked for only by drivers that check the order of work. It names the tensors of
    // the tiles, and the tables that `begin` wrote.
    launch_listed(streams_, params_, launch, tables, [&] {
      Access access = access_of(std::span<const Tile>(tiles_of(mine, arrays)), launch);
      const auto at = static_cast<std::int64_t>(mine.first_tile * sizeof(DeviceTile));
      const auto bytes =
          static_cast<std::int64_t>((mine.end_tile - mine.first_tile) * sizeof(DeviceTile));
      access.reads.push_back({call + at, bytes, 1, 0});
      if (reads_maps()) access.reads.push_back({maps_in(call), map_bytes(), 1, 0});
      return access;
    });
  }
}

// The inverse of `add_tiles`, with the arrays of this call. Tiles come without bands: maps and
// accesses depend on their tensors alone.
template <typename Tile>
std::vector<Tile> DeviceProgram<Tile>::tiles_of(const List& list,
                                                std::span<const TensorView> arrays) const {
  std::vector<Tile> tiles;
  for (std::size_t t = list.first_tile; t < list.end_tile; ++t) {
    const KnownTile& known = tiles_[t];
    const TileParts& parts = known.parts;
    const auto queries = [&](const TilePart& part) {
      return rows_of(part, arrays, known.num_rows, params_.q_heads);
    };
    const auto keys = [&](const TilePart& part) {
      return rows_of(part, arrays, known.num_keys, params_.kv_heads);
    };
    Tile tile;
    tile.q_NHD = queries(parts.q);
    tile.k_MHD = keys(parts.k);
    tile.v_MHD = keys(parts.v);
    tile.lse_NH = as_stats(queries(parts.lse));
    if constexpr (kIsForward<Tile>) {
      tile.o_NHD = queries(parts.o);
      tile.init = known.init;
    } else {
      tile.do_NHD = queries(parts.dout);
      tile.delta_NH = as_stats(queries(parts.delta));
      tile.dq_NHD = queries(parts.dq);
      tile.dk_MHD = keys(parts.dk);
      tile.dv_MHD = keys(parts.dv);
      tile.init_dq = known.init;
      tile.init_dkv = known.init_dkv;
    }
    tiles.push_back(tile);
  }
  return tiles;
}

template class DeviceProgram<ForwardTile>;
template class DeviceProgram<BackwardTile>;

}  // namespace contextile::cuda
