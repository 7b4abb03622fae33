// Makes the lists that launches read from tiles. The code of the CPU kernels classifies the tiles,
// in panels of as many rows as a CTA owns; then they are cut into blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "contextile/extend/kernel.h"
#include "kernel/cpu/panels.h"
#include "kernel/cuda/launch.h"

namespace contextile::cuda {

// The table of one launch: every slot once, all tiles of a slot in listed order, the longest work
// first. Tiles are numbered as in the call. A block of owned rows has a few runs for each of its
// bands, so a table grows with rows, not with pairs of blocks.
struct LaunchTable {
  std::vector<OwnedBlock> owned;
  std::vector<StreamedRun> runs;
  std::vector<TokenBand> bands;
};

// Numbers of rows: those that a CTA owns, and the most that a block of the other side has.
struct BlockRows {
  std::int32_t owned = kOwnedRows;
  std::int32_t streamed = 0;
};

// The bands of a tile as owners of all passes meet them, computed once for all calls.
class DeviceBands : public PreparedBands {
 public:
  // Numbers of rows that a CTA owns.
  struct Owned {
    std::int32_t forward = kOwnedRows;
    std::int32_t gradients = kOwnedRows;
  };
  DeviceBands(const KernelParams& params, std::span<const LocalBand> bands, std::int64_t num_rows,
              std::int64_t num_keys, const Owned& owned);

  [[nodiscard]] const PanelBands& forward_queries() const {
    return forward_queries_ ? *forward_queries_ : queries_;
  }
  [[nodiscard]] const PanelBands& queries() const { return queries_; }
  [[nodiscard]] const PanelBands& keys() const { return keys_; }
  [[nodiscard]] std::int64_t size_bytes() const override {
    return queries_.size_bytes() + keys_.size_bytes() +
           (forward_queries_ ? forward_queries_->size_bytes() : 0);
  }

 private:
  std::optional<PanelBands> forward_queries_;  // if they differ from those of dQ
  PanelBands queries_;
  PanelBands keys_;
};

// Returns the end of the tiles from `first` on that one launch can take. It ends before the first
// tile that starts a slot again that they write, or pairs a slot with other rows than they do.
[[nodiscard]] std::size_t end_of_launch(std::span<const ForwardTile> tiles, std::size_t first);
[[nodiscard]] std::size_t end_of_launch(std::span<const BackwardTile> tiles, std::size_t first);

// Returns the table of tiles [first, end) of a call. If tiles are prepared, they hold DeviceBands
// of the same number of owned rows.
[[nodiscard]] LaunchTable forward_table(const KernelParams& params,
                                        std::span<const ForwardTile> tiles, std::size_t first,
                                        std::size_t end, const BlockRows& rows);
// Query rows own dQ.
[[nodiscard]] LaunchTable query_gradient_table(const KernelParams& params,
                                               std::span<const BackwardTile> tiles,
                                               std::size_t first, std::size_t end,
                                               const BlockRows& rows);
// Keys own dK and dV.
[[nodiscard]] LaunchTable key_gradient_table(const KernelParams& params,
                                             std::span<const BackwardTile> tiles, std::size_t first,
                                             std::size_t end, const BlockRows& rows);

// Throws InvalidArgument unless tensors are bf16 or f16 and dims are multiples of 8 up to 256.
void check_inputs(Dtype dtype, std::int32_t dim);
// Throws for a tensor in these cases, and if its rows do not begin at multiples of 16 bytes.
void check_rows(const TensorView& view);
// Returns the tiles of a call with the types of the device. Throws InvalidArgument unless q, k, v
// and dout are bf16 or f16, dims are multiples of 8 up to 256 and rows begin at multiples of 16
// bytes.
[[nodiscard]] std::vector<DeviceTile> device_tiles(std::span<const ForwardTile> tiles);
[[nodiscard]] std::vector<DeviceTile> device_tiles(std::span<const BackwardTile> tiles);

}  // namespace contextile::cuda
