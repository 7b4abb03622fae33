// All attention of a program on a rank's compute stream: lists that are uploaded once, and one
// launch per run that passes the places of the tensors.
//
// Arrays of the caller may be elsewhere in every call. Lists of addresses would have to go to the
// device again with each call. Lists of places in arrays stay, and the arrays themselves, at most
// 18, are arguments of the launch that turns places into addresses. The attention kernels read only
// addresses. Kernels of cuda:wgmma also read maps of the tensors, which hold addresses and go to
// the device with each call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "contextile/extend/kernel.h"
#include "gpu/driver.h"
#include "kernel/cuda/launch_lists.h"
#include "kernel/cuda/passes.h"
#include "kernel/cuda/place_call.h"
#include "kernel/prepared_program.h"

namespace contextile::cuda {

// Finds the array whose rows a tensor is, by address. Throws InvalidArgument if a tensor's rows are
// not rows of an array, or not equally far apart in it.
class PartFinder {
 public:
  explicit PartFinder(std::span<const TensorView> arrays);
  [[nodiscard]] TilePart part_of(const TensorView& rows) const;
  [[nodiscard]] TilePart part_of(const RowStats& rows) const;

 private:
  [[nodiscard]] TilePart find(const void* data, std::int64_t token_stride,
                              std::int64_t head_stride) const;

  struct Place {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    std::int32_t array = 0;
  };
  std::span<const TensorView> arrays_;
  std::vector<Place> places_;  // of the arrays that are not empty, ascending
};

// A program that runs on cuda:mma or cuda:wgmma.
template <typename Tile>
class DeviceProgram : public PreparedProgram {
 public:
  // Prepares a program as AttentionKernel::prepare_forward and prepare_backward do. `streams` must
  // outlive it.
  DeviceProgram(const RankStreams& streams, Program program, const KernelParams& params,
                std::span<const TensorView> arrays, std::span<const std::vector<Tile>> lists);

  [[nodiscard]] std::int64_t size_bytes() const override {
    return memory_bytes_ + std::ssize(tiles_) * static_cast<std::int64_t>(sizeof(KnownTile)) +
           std::ssize(launches_) * static_cast<std::int64_t>(sizeof(ListedLaunch));
  }
  [[nodiscard]] std::int64_t call_bytes() const override {
    return tile_bytes() + (reads_maps() ? map_bytes() + kMapAlignment : 0);
  }
  void begin(std::span<const TensorView> arrays, std::byte* call) const override;
  void run(std::size_t list, std::span<const TensorView> arrays, std::byte* call) const override;

 private:
  // A tile: the places of its tensors, and its other properties.
  struct KnownTile {
    TileParts parts;
    std::int64_t num_rows = 0;
    std::int64_t num_keys = 0;
    bool init = false;      // of o, or dq
    bool init_dkv = false;  // backward
  };
  struct List {
    std::size_t first_tile = 0;
    std::size_t end_tile = 0;
    std::size_t first_launch = 0;
    std::size_t end_launch = 0;
  };

  // The memory of a call holds the tiles, then the maps at the next multiple of their alignment.
  static constexpr std::int64_t kMapAlignment = alignof(TileMaps);
  [[nodiscard]] bool reads_maps() const { return program_ == Program::kWgmma && !tiles_.empty(); }
  [[nodiscard]] std::int64_t tile_bytes() const {
    return std::ssize(tiles_) * static_cast<std::int64_t>(sizeof(DeviceTile));
  }
  [[nodiscard]] std::int64_t map_bytes() const {
    return std::ssize(tiles_) * static_cast<std::int64_t>(sizeof(TileMaps));
  }
  [[nodiscard]] std::byte* maps_in(std::byte* call) const;
  // Makes the maps of all tiles, unless the arrays are those of the last call.
  void make_maps(std::span<const TensorView> arrays) const;

  void add_tiles(const PartFinder& find, std::span<const Tile> tiles);
  void upload(const ByteList& lists);
  // Returns the tiles of a list in these arrays, for drivers that check the order of work.
  [[nodiscard]] std::vector<Tile> tiles_of(const List& list,
                                           std::span<const TensorView> arrays) const;

  const RankStreams& streams_;
  const Program program_;
  const KernelParams params_;
  std::vector<KnownTile> tiles_;
  std::vector<bool> is_loaded_;  // by array: its rows are copied 16 bytes at a time
  std::vector<List> lists_;
  std::vector<ListedLaunch> launches_;
  std::int64_t parts_ = 0;  // offset of the tiles' places in the memory
  std::int64_t memory_bytes_ = 0;
  std::unique_ptr<const StreamMemory> memory_;
  // The arrays and maps of the last call. One thread uses a program.
  mutable std::vector<PlacedArray> mapped_arrays_;
  mutable std::vector<TileMaps> maps_;
};

extern template class DeviceProgram<ForwardTile>;
extern template class DeviceProgram<BackwardTile>;

}  // namespace contextile::cuda
