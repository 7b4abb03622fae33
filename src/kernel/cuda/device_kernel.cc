#include "kernel/cuda/device_kernel.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>
#include <vector>

#include "kernel/cuda/access.h"
#include "kernel/cuda/passes.h"
#include "kernel/cuda/tables.h"
#include "kernel/cuda/tile_maps.h"

namespace contextile::cuda {
namespace {

constexpr std::int64_t kTableAlignment = alignof(TileMaps);

// The tiles of a call, and their maps for kernels that read by them.
struct CallTiles {
  std::vector<DeviceTile> tiles;
  std::vector<TileMaps> maps;
};

// The arrays of a launch, one after another in device memory.
class UploadedTable {
 public:
  UploadedTable(const RankStreams& streams, const CallTiles& tiles, const LaunchTable& table)
      : memory_(streams.driver, streams.compute, total_bytes(tiles, table)) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(total_bytes(tiles, table)));
    std::int64_t end = 0;
    const auto put = [&](const auto& array) {
      using Element = std::remove_cvref_t<decltype(array[0])>;
      if (!array.empty())
        std::memcpy(bytes.data() + end, array.data(), array.size() * sizeof(Element));
      const auto* at = reinterpret_cast<const Element*>(memory_.data() + end);
      end += padded(array);
      return at;
    };
    maps_ = put(tiles.maps);
    tiles_ = put(tiles.tiles);
    owned_ = put(table.owned);
    blocks_ = put(table.blocks);
    bands_ = put(table.bands);
    streams.driver.write(streams.compute, memory_.data(), bytes);
    rows_ = {memory_.data(), end, 1, 0};
  }

  [[nodiscard]] Launch launch(const KernelParams& params) const {
    return {tiles_,          owned_,
            blocks_,         bands_,
            maps_,           params.q_heads / params.kv_heads,
            params.head_dim, params.value_dim,
            params.scale,    params.softcap};
  }
  [[nodiscard]] const Rows& rows() const { return rows_; }

 private:
  template <typename T>
  static std::int64_t padded(const std::vector<T>& array) {
    const auto bytes = static_cast<std::int64_t>(array.size() * sizeof(T));
    return (bytes + kTableAlignment - 1) / kTableAlignment * kTableAlignment;
  }
  static std::int64_t total_bytes(const CallTiles& tiles, const LaunchTable& table) {
    return padded(tiles.maps) + padded(tiles.tiles) + padded(table.owned) + padded(table.blocks) +
           padded(table.bands);
  }

  StreamMemory memory_;
  const DeviceTile* tiles_;
  const OwnedBlock* owned_;
  const StreamedBlock* blocks_;
  const TokenBand* bands_;
  const TileMaps* maps_;
  Rows rows_;
};

Access access_of(std::span<const ForwardTile> tiles) {
  Access access;
  for (const ForwardTile& tile : tiles) {
    for (const TensorView& view : {tile.q_NHD, tile.k_MHD, tile.v_MHD})
      append_rows(access.reads, view);
    if (!tile.init) {
      append_rows(access.reads, tile.o_NHD);
      append_stats(access.reads, tile.lse_NH, tile.o_NHD);
    }
    append_rows(access.writes, tile.o_NHD);
    append_stats(access.writes, tile.lse_NH, tile.o_NHD);
  }
  return access;
}

Access access_of(std::span<const BackwardTile> tiles, Gradient gradient) {
  Access access;
  const auto adds = [&](const TensorView& view, bool init) {
    if (!init) append_rows(access.reads, view);
    append_rows(access.writes, view);
  };
  for (const BackwardTile& tile : tiles) {
    for (const TensorView& view : {tile.q_NHD, tile.k_MHD, tile.v_MHD, tile.do_NHD}) {
      append_rows(access.reads, view);
    }
    append_stats(access.reads, tile.lse_NH, tile.q_NHD);
    append_stats(access.reads, tile.delta_NH, tile.q_NHD);
    if (!keys_own(gradient)) {
      adds(tile.dq_NHD, tile.init_dq);
      continue;
    }
    if (has_first(gradient)) adds(tile.dk_MHD, tile.init_dkv);
    if (has_second(gradient)) adds(tile.dv_MHD, tile.init_dkv);
  }
  return access;
}

// One launch of a table: a block of threads for every owned block and KV head.
void launch_table(const RankStreams& streams, const KernelParams& params, const Pass& pass,
                  const CallTiles& tiles, const LaunchTable& table,
                  const std::function<Access()>& access) {
  if (table.owned.empty()) return;
  const UploadedTable uploaded(streams, tiles, table);
  const Launch launch = uploaded.launch(params);
  streams.driver.launch(streams.compute,
                        {.kernel = pass.entry.name,
                         .blocks_x = static_cast<std::int32_t>(table.owned.size()),
                         .blocks_y = params.kv_heads,
                         .threads = pass.threads,
                         .shared_bytes = pass.entry.shared_bytes},
                        std::as_bytes(std::span(&launch, 1)), [&] {
                          Access all = access();
                          all.reads.push_back(uploaded.rows());
                          return all;
                        });
}

}  // namespace

std::byte* DeviceRowMemory::allocate(std::int64_t bytes) const {
  return streams_.driver.allocate_on(streams_.compute, bytes);
}
void DeviceRowMemory::free(std::byte* memory) const noexcept {
  streams_.driver.free_on(streams_.compute, memory);
}
void DeviceRowMemory::write(std::byte* to, std::span<const std::byte> from) const {
  streams_.driver.write(streams_.compute, to, from);
}
void DeviceRowMemory::read(std::span<std::byte> to, const std::byte* from) const {
  streams_.driver.read(streams_.compute, to, from);
}
void DeviceRowMemory::wait() const { streams_.driver.synchronize(streams_.compute); }
void DeviceRowMemory::poison(std::byte* memory, std::int64_t bytes) const {
  streams_.driver.fill(streams_.compute, memory, 0xff, bytes);
}

void DeviceKernel::check_shape(const AttentionShape& shape) const {
  for (const std::int32_t dim : {shape.head_dim, shape.value_dim}) check_inputs(shape.dtype, dim);
}

std::unique_ptr<const PreparedBands> DeviceKernel::prepare_bands(
    const KernelParams& params, std::int64_t num_rows, std::int64_t num_keys,
    std::span<const LocalBand> bands) const {
  return std::make_unique<DeviceBands>(params, bands, num_rows, num_keys,
                                       owned_rows(taken_program(params, program_)));
}

void DeviceKernel::forward(const KernelParams& params, std::span<const ForwardTile> tiles) const {
  if (tiles.empty()) return;
  const Program program = taken_program(params, program_);
  const CallTiles device{device_tiles(tiles), tile_maps(streams_.driver, program, tiles)};
  const Pass pass = forward_pass(program, params, tiles[0].q_NHD.dtype);
  for (std::size_t first = 0; first < tiles.size();) {
    const std::size_t end = end_of_launch(tiles, first);
    launch_table(streams_, params, pass, device,
                 forward_table(params, tiles, first, end, pass.rows),
                 [&] { return access_of(tiles.subspan(first, end - first)); });
    first = end;
  }
}

void DeviceKernel::backward(const KernelParams& params, std::span<const BackwardTile> tiles) const {
  if (tiles.empty()) return;
  const Program program = taken_program(params, program_);
  const CallTiles device{device_tiles(tiles), tile_maps(streams_.driver, program, params, tiles)};
  for (std::size_t first = 0; first < tiles.size();) {
    const std::size_t end = end_of_launch(tiles, first);
    for (const Gradient gradient : kGradients) {
      const Pass pass = gradient_pass(program, params, tiles[0].q_NHD.dtype, gradient);
      if (pass.entry.name.empty()) continue;
      const auto table_of = keys_own(gradient) ? key_gradient_table : query_gradient_table;
      launch_table(streams_, params, pass, device, table_of(params, tiles, first, end, pass.rows),
                   [&] { return access_of(tiles.subspan(first, end - first), gradient); });
    }
    first = end;
  }
}

}  // namespace contextile::cuda
