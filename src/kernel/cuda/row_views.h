// Rows in device memory as row kernels see them: strided, of any type, several elements at a time.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "kernel/cuda/layout.h"

namespace contextile::cuda {

inline constexpr int kMaxRowDim = 256;
// A lane takes that many neighboring elements at a time. Lanes have neighboring chunks.
inline constexpr int kChunk = 4;
inline constexpr int kChunksOfWarp = kLanes * kChunk;           // elements
inline constexpr int kHeldChunks = kMaxRowDim / kChunksOfWarp;  // of a row in one lane

enum class RowType : std::uint8_t { kF32, kBf16, kF16 };

struct alignas(16) FourWords {
  std::uint32_t x[kChunk];
};
struct alignas(8) FourHalves {
  std::uint32_t pairs[kChunk / 2];
};

// Rows of heads, token by token. Strides count elements.
struct RowsView {
  void* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  RowType type = RowType::kF32;
  bool is_wide = false;  // every row begins at a multiple of a chunk's bytes

  [[nodiscard]] CONTEXTILE_HD std::int64_t at(std::int64_t token, std::int32_t head) const {
    return token * token_stride + head * head_stride;
  }
  [[nodiscard]] CONTEXTILE_HD float load(std::int64_t element) const {
    if (type == RowType::kF32) return static_cast<const float*>(data)[element];
    return number_of(static_cast<const std::uint16_t*>(data)[element]);
  }
  CONTEXTILE_HD void store(std::int64_t element, float value) const {
    if (type == RowType::kF32) {
      static_cast<float*>(data)[element] = value;
    } else {
      static_cast<std::uint16_t*>(data)[element] = bits_of(value);
    }
  }

  // The first `count` elements of a chunk: a whole one by one access if the view is wide.
  CONTEXTILE_HD void load_chunk(std::int64_t element, int count, float (&x)[kChunk]) const {
    if (!is_wide || count < kChunk) {
      CONTEXTILE_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        if (i < count) x[i] = load(element + i);
      }
    } else if (type == RowType::kF32) {
      const Floats<kChunk> all =
          *reinterpret_cast<const Floats<kChunk>*>(static_cast<const float*>(data) + element);
      CONTEXTILE_UNROLL
      for (int i = 0; i < kChunk; ++i) x[i] = all.x[i];
    } else {
      const FourHalves all =
          *reinterpret_cast<const FourHalves*>(static_cast<const std::uint16_t*>(data) + element);
      CONTEXTILE_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        x[i] = number_of(static_cast<std::uint16_t>(all.pairs[i / 2] >> (i % 2 * 16)));
      }
    }
  }
  CONTEXTILE_HD void store_chunk(std::int64_t element, int count, const float (&x)[kChunk]) const {
    if (!is_wide || count < kChunk) {
      CONTEXTILE_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        if (i < count) store(element + i, x[i]);
      }
    } else if (type == RowType::kF32) {
      *reinterpret_cast<Floats<kChunk>*>(static_cast<float*>(data) +
                                         element) = {{x[0], x[1], x[2], x[3]}};
    } else {
      const auto pair = [&](int i) {
        return bits_of(x[i]) | std::uint32_t{bits_of(x[i + 1])} << 16;
      };
      *reinterpret_cast<FourHalves*>(static_cast<std::uint16_t*>(data) +
                                     element) = {{pair(0), pair(2)}};
    }
  }

 private:
  [[nodiscard]] CONTEXTILE_HD float number_of(std::uint16_t bits) const {
    return type == RowType::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
  [[nodiscard]] CONTEXTILE_HD std::uint16_t bits_of(float value) const {
    return type == RowType::kBf16 ? float_to_bf16(value) : float_to_f16(value);
  }
};

struct StatsView {
  float* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  [[nodiscard]] CONTEXTILE_HD float& at(std::int64_t token, std::int32_t head) const {
    return data[token * token_stride + head * head_stride];
  }
};

struct PartialView {
  RowsView o;
  StatsView lse;
};

// The rows of a call, and the row of each warp.
struct RowShape {
  std::int64_t tokens = 0;
  std::int32_t heads = 0;
  std::int32_t dim = 0;

  [[nodiscard]] CONTEXTILE_HD std::int64_t num_rows() const { return tokens * heads; }
  [[nodiscard]] CONTEXTILE_HD std::int64_t token(std::int64_t row) const { return row / heads; }
  [[nodiscard]] CONTEXTILE_HD std::int32_t head(std::int64_t row) const {
    return static_cast<std::int32_t>(row % heads);
  }
};

// Calls work(d, count) for every chunk of a lane: the elements [d, d + count) of a row.
template <typename Work>
CONTEXTILE_HD void each_chunk(int lane, std::int32_t dim, const Work& work) {
  for (std::int32_t d = lane * kChunk; d < dim; d += kChunksOfWarp) {
    work(d, dim - d < kChunk ? dim - d : kChunk);
  }
}
// Calls work(number of the chunk, d, count), for rows that a warp holds whole.
template <typename Work>
CONTEXTILE_HD void each_held_chunk(int lane, std::int32_t dim, const Work& work) {
  CONTEXTILE_UNROLL
  for (int chunk = 0; chunk < kHeldChunks; ++chunk) {
    const std::int32_t d = chunk * kChunksOfWarp + lane * kChunk;
    if (d < dim) work(chunk, d, dim - d < kChunk ? dim - d : kChunk);
  }
}

}  // namespace contextile::cuda
