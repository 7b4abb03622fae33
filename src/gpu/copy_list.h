// A list of copies within a device's memory as the parameter of one launch of the kernel
// `rows_copy`. A warp copies a piece of at most kBytesOfPiece bytes of one range.
#pragma once

#include <cstddef>
#include <cstdint>

namespace contextile::cuda {

// Rows of equal length at equal distances on both sides. A row has fewer than 2^31 words.
struct CopyRange {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t to_stride = 0;  // in bytes, as the next one
  std::int64_t from_stride = 0;
  std::int32_t num_rows = 0;
  // Width of an access, 16, 4, 2 or 1 bytes. Places, rows and strides are multiples of it.
  std::int32_t word_bytes = 1;

  [[nodiscard]] constexpr std::int64_t num_bytes() const { return row_bytes * num_rows; }
};

struct CopyList {
  static constexpr std::int64_t kBytesOfPiece = 4096;
  static constexpr int kMostRanges = 72;  // with them, the list fits into a launch's parameters
  static constexpr int kThreads = 128;    // of a block, which has kThreads / 32 warps

  struct Shape {
    std::int64_t num_pieces = 0;
    [[nodiscard]] constexpr std::int64_t num_rows() const { return num_pieces; }
  };

  Shape shape;  // a warp for each piece
  std::int32_t num_ranges = 0;
  std::int64_t end_piece[kMostRanges] = {};  // of all ranges up to this one
  CopyRange ranges[kMostRanges];
};
static_assert(sizeof(CopyList) <= 4096);

}  // namespace contextile::cuda
