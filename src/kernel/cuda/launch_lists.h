// The launches of a call of the attention kernels, and their lists in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <vector>

#include "contextile/extend/kernel.h"
#include "gpu/driver.h"
#include "kernel/cuda/launch.h"
#include "kernel/cuda/passes.h"
#include "kernel/cuda/tile_lists.h"

namespace contextile::cuda {

// Arrays one after another, which are written to the device in one piece.
class ByteList {
 public:
  // Adds an array. Returns its offset in bytes, a multiple of the alignment that any array needs.
  template <typename T>
  std::int64_t add(const std::vector<T>& array) {
    const std::size_t begin = bytes_.size();
    const std::size_t size = array.size() * sizeof(T);
    bytes_.resize(begin + (size + kAlignment - 1) / kAlignment * kAlignment);
    if (size > 0) std::memcpy(bytes_.data() + begin, array.data(), size);
    return static_cast<std::int64_t>(begin);
  }
  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kAlignment = alignof(TileMaps);
  std::vector<std::byte> bytes_;
};

// One launch: tiles [first, end) of a call, its lists at offsets of a piece of device memory.
struct ListedLaunch {
  Pass pass;
  Gradient gradient = Gradient::kQ;  // backward
  std::size_t first = 0;
  std::size_t end = 0;
  std::int32_t num_owned = 0;
  std::int64_t owned = 0;
  std::int64_t runs = 0;
  std::int64_t bands = 0;
  std::int64_t end_bytes = 0;  // of the lists
};

// Returns the launches of one call in order, without those that have nothing to do, and adds their
// lists to `lists`.
[[nodiscard]] std::vector<ListedLaunch> list_launches(Program program, const KernelParams& params,
                                                      std::span<const ForwardTile> tiles,
                                                      ByteList& lists);
[[nodiscard]] std::vector<ListedLaunch> list_launches(Program program, const KernelParams& params,
                                                      std::span<const BackwardTile> tiles,
                                                      ByteList& lists);

// Returns the memory of its tiles' tensors that a launch reads and writes.
[[nodiscard]] Access access_of(std::span<const ForwardTile> tiles, const ListedLaunch& launch);
[[nodiscard]] Access access_of(std::span<const BackwardTile> tiles, const ListedLaunch& launch);

// The tables of a call in device memory.
struct CallTables {
  const DeviceTile* tiles = nullptr;
  const TileMaps* maps = nullptr;  // for programs that read by maps
  std::byte* lists = nullptr;
};
// Puts the launch on the compute stream, with a block of threads for every owned block and KV head.
// `tensors` returns the access that Driver::launch may ask about.
void launch_listed(const RankStreams& streams, const KernelParams& params,
                   const ListedLaunch& launch, const CallTables& tables,
                   const std::function<Access()>& tensors);

}  // namespace contextile::cuda
