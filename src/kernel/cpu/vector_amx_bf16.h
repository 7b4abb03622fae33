// Vectors of 16 floats whose products are made by tiles of 16 x 64 bytes: AMX-BF16 together with
// AVX-512 BF16. Include this only from files compiled for them.
//
// The instructions are written out, with memory clobbered, because the intrinsics of some compilers
// do not declare that they read and write memory.
#pragma once

#include <cstdint>

#include "kernel/cpu/vector_avx512_bf16.h"

namespace contextile {

// Coefficients of 2^f on [0, 1] in the form of kExp2Of, one degree less: relative error 2.9e-6.
inline constexpr float kShortExp2Of[4] = {6.930448449e-01F, 2.412802048e-01F, 5.224247419e-02F,
                                          1.342668429e-02F};

// A vector class that differs from VectorAvx512Bf16 only in its products.
struct VectorAmxBf16 : VectorAvx512Bf16 {
  static constexpr bool kHasTiles = true;
  static constexpr int kGridVectors = 2;  // panels of whole depths of a tile: 32, 64 or 96 rows
  static constexpr int kProductRows = 32;
  static constexpr int kForwardKeys = 256;
  static constexpr int kBackwardKeys = 384;
  static constexpr int kForwardPanels = 16;
  static constexpr int kBackwardPanels = 16;
  // Number of pairs of a tile along the depth, which is also its number of rows.
  static constexpr int kTilePairs = 16;

  // The left factor of a product: rows of pairs along the depth. Row m has its pairs at data[m ·
  // stride]. If `tail` is not null, it holds the last 16 pairs of every row instead, 16 per row.
  struct TileFactor {
    const Element* data = nullptr;
    std::int64_t stride = 0;
    const Element* tail = nullptr;
  };

  // While an object lives, its thread has tiles: all eight of 16 rows of 64 bytes.
  class TileUse {
   public:
    CONTEXTILE_INLINE TileUse() {
      alignas(64) struct {
        std::uint8_t palette = 1;
        std::uint8_t first_row = 0;
        std::uint8_t reserved[14] = {};
        std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
      } const config;
      static_assert(sizeof(config) == 64);
      asm volatile("ldtilecfg %0" ::"m"(config) : "memory");
    }
    CONTEXTILE_INLINE ~TileUse() { asm volatile("tilerelease" ::: "memory"); }
    TileUse(const TileUse&) = delete;
    TileUse& operator=(const TileUse&) = delete;
  };

  // Computes c[16·row_tiles][16·column_tiles] = a·b, added to c if kAdd; b[16·depth_tiles][≥
  // columns] are pairs. Strides count elements of four bytes.
  template <bool kAdd>
  static void multiply(std::int64_t row_tiles, std::int64_t column_tiles, std::int64_t depth_tiles,
                       const TileFactor& a, const Element* b, std::int64_t ldb, float* c,
                       std::int64_t ldc) {
    for (std::int64_t m = 0; m < row_tiles; m += 2) {
      const TileFactor rows{a.data + m * 16 * a.stride, a.stride,
                            a.tail == nullptr ? nullptr : a.tail + m * 16 * kTilePairs};
      float* const to = c + m * 16 * ldc;
      std::int64_t n = 0;
      if (m + 1 < row_tiles) {
        for (; n + 1 < column_tiles; n += 2) {
          multiply_block<2, 2, kAdd>(depth_tiles, rows, b + n * 16, ldb, to + n * 16, ldc);
        }
        if (n < column_tiles) {
          multiply_block<2, 1, kAdd>(depth_tiles, rows, b + n * 16, ldb, to + n * 16, ldc);
        }
        continue;
      }
      for (; n + 1 < column_tiles; n += 2) {
        multiply_block<1, 2, kAdd>(depth_tiles, rows, b + n * 16, ldb, to + n * 16, ldc);
      }
      if (n < column_tiles) {
        multiply_block<1, 1, kAdd>(depth_tiles, rows, b + n * 16, ldb, to + n * 16, ldc);
      }
    }
  }

  // Stores the first `numbers` bf16 numbers, followed by zeros.
  CONTEXTILE_INLINE static void store_first(Element* to, const Element* from, int numbers) {
    const __mmask32 mask = numbers >= 32 ? ~__mmask32{0} : (__mmask32{1} << numbers) - 1;
    _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(mask, from));
  }

  // Returns 2^x like exp2, with relative error 3e-6: weights are rounded to bf16.
  CONTEXTILE_INLINE static Float short_exp2(Float x) {
    const Float fraction = _mm512_reduce_ps(x, 1);  // above the integer below, which scalef takes
    Float p = set(kShortExp2Of[3]);
    p = fma(p, fraction, set(kShortExp2Of[2]));
    p = fma(p, fraction, set(kShortExp2Of[1]));
    p = fma(p, fraction, set(kShortExp2Of[0]));
    p = fma(p, fraction, set(1.0F));
    return _mm512_scalef_ps(p, x);
  }

 private:
  template <int kTile>
  CONTEXTILE_INLINE static void load_tile(const void* from, std::int64_t stride_bytes) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride_bytes), "i"(kTile)
                 : "memory");
  }
  template <int kTile>
  CONTEXTILE_INLINE static void store_tile(void* to, std::int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride_bytes), "i"(kTile)
                 : "memory");
  }
  template <int kTile>
  CONTEXTILE_INLINE static void start_tile(const float* from, std::int64_t stride_bytes, bool add) {
    if (add) {
      load_tile<kTile>(from, stride_bytes);
    } else {
      asm volatile("tilezero %%tmm%c0" ::"i"(kTile) : "memory");
    }
  }
  template <int kC, int kA, int kB>
  CONTEXTILE_INLINE static void multiply_tiles() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kC), "i"(kA), "i"(kB) : "memory");
  }

  // Multiplies up to 2 x 2 tiles. Tiles 0 to 3 hold c, 4 and 5 hold a, 6 and 7 hold b.
  template <int kRows, int kColumns, bool kAdd>
  CONTEXTILE_INLINE static void multiply_block(std::int64_t depth_tiles, const TileFactor& a,
                                               const Element* b, std::int64_t ldb, float* c,
                                               std::int64_t ldc) {
    const std::int64_t c_bytes = ldc * 4;
    const std::int64_t b_bytes = ldb * 4;
    float* const low = c + 16 * ldc;
    start_tile<0>(c, c_bytes, kAdd);
    if constexpr (kColumns == 2) start_tile<1>(c + 16, c_bytes, kAdd);
    if constexpr (kRows == 2) start_tile<2>(low, c_bytes, kAdd);
    if constexpr (kRows == 2 && kColumns == 2) start_tile<3>(low + 16, c_bytes, kAdd);
    for (std::int64_t k = 0; k < depth_tiles; ++k) {
      const bool is_tail = a.tail != nullptr && k + 1 == depth_tiles;
      const std::int64_t stride = is_tail ? kTilePairs : a.stride;
      const Element* const from = is_tail ? a.tail : a.data + k * kTilePairs;
      load_tile<6>(b + k * kTilePairs * ldb, b_bytes);
      load_tile<4>(from, stride * 4);
      multiply_tiles<0, 4, 6>();
      if constexpr (kRows == 2) {
        load_tile<5>(from + 16 * stride, stride * 4);
        multiply_tiles<2, 5, 6>();
      }
      if constexpr (kColumns == 2) {
        load_tile<7>(b + k * kTilePairs * ldb + 16, b_bytes);
        multiply_tiles<1, 4, 7>();
      }
      if constexpr (kRows == 2 && kColumns == 2) multiply_tiles<3, 5, 7>();
    }
    store_tile<0>(c, c_bytes);
    if constexpr (kColumns == 2) store_tile<1>(c + 16, c_bytes);
    if constexpr (kRows == 2) store_tile<2>(low, c_bytes);
    if constexpr (kRows == 2 && kColumns == 2) store_tile<3>(low + 16, c_bytes);
  }
};

}  // namespace contextile
