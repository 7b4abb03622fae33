#include "kernel/cuda/device_kernel.h"

#include <cstdint>
#include <span>
#include <vector>

#include "kernel/cuda/device_program.h"
#include "kernel/cuda/launch_lists.h"
#include "kernel/cuda/passes.h"
#include "kernel/cuda/tile_lists.h"
#include "kernel/cuda/tile_maps.h"

namespace contextile::cuda {
namespace {

std::vector<TileMaps> maps_of(Driver& driver, Program program, const KernelParams&,
                              std::span<const ForwardTile> tiles) {
  return tile_maps(driver, program, tiles);
}
std::vector<TileMaps> maps_of(Driver& driver, Program program, const KernelParams& params,
                              std::span<const BackwardTile> tiles) {
  return tile_maps(driver, program, params, tiles);
}

// Runs a call whose tiles were not prepared: its lists and tiles go to the device first, in one
// piece.
template <typename Tile>
void run_tiles(const RankStreams& streams, Program program, const KernelParams& params,
               std::span<const Tile> tiles) {
  if (tiles.empty()) return;
  ByteList bytes;
  const std::int64_t maps = bytes.add(maps_of(streams.driver, program, params, tiles));
  const std::int64_t placed = bytes.add(device_tiles(tiles));
  const std::int64_t end = std::ssize(bytes.bytes());
  const std::vector<ListedLaunch> launches = list_launches(program, params, tiles, bytes);
  const StreamMemory memory(streams.driver, streams.compute, std::ssize(bytes.bytes()));
  streams.driver.write(streams.compute, memory.data(), bytes.bytes());
  const CallTables tables{reinterpret_cast<const DeviceTile*>(memory.data() + placed),
                          reinterpret_cast<const TileMaps*>(memory.data() + maps), memory.data()};
  for (const ListedLaunch& launch : launches) {
    launch_listed(streams, params, launch, tables, [&] {
      Access access = access_of(tiles, launch);
      access.reads.push_back({memory.data() + maps, end - maps, 1, 0});
      return access;
    });
  }
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
  if (bytes > 0) streams_.driver.fill(streams_.compute, memory, 0xff, bytes);
}

void DeviceKernel::check_shape(const AttentionShape& shape) const {
  for (const std::int32_t dim : {shape.head_dim, shape.value_dim}) check_inputs(shape.dtype, dim);
}

std::unique_ptr<const PreparedBands> DeviceKernel::prepare_bands(
    const KernelParams& params, std::int64_t num_rows, std::int64_t num_keys,
    std::span<const LocalBand> bands) const {
  return std::make_unique<DeviceBands>(
      params, bands, num_rows, num_keys,
      DeviceBands::Owned{owned_rows(forward_program(params, program_)),
                         owned_rows(gradient_program(params, program_))});
}

void DeviceKernel::forward(const KernelParams& params, std::span<const ForwardTile> tiles) const {
  run_tiles(streams_, forward_program(params, program_), params, tiles);
}

void DeviceKernel::backward(const KernelParams& params, std::span<const BackwardTile> tiles) const {
  run_tiles(streams_, gradient_program(params, program_), params, tiles);
}

std::unique_ptr<const PreparedProgram> DeviceKernel::prepare_forward(
    const KernelParams& params, std::span<const TensorView> arrays,
    std::span<const std::vector<ForwardTile>> lists) const {
  return std::make_unique<DeviceProgram<ForwardTile>>(streams_, forward_program(params, program_),
                                                      params, arrays, lists);
}

std::unique_ptr<const PreparedProgram> DeviceKernel::prepare_backward(
    const KernelParams& params, std::span<const TensorView> arrays,
    std::span<const std::vector<BackwardTile>> lists) const {
  return std::make_unique<DeviceProgram<BackwardTile>>(streams_, gradient_program(params, program_),
                                                       params, arrays, lists);
}

}  // namespace contextile::cuda
