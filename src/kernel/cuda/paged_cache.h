// Copies keys and values of a step from their pages into shared memory and widens bytes to 16 bits
// there.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernel/cuda/paged_launch.h"
#include "kernel/cuda/tile_steps.h"

namespace contextile::cuda {

// The place of a key. Page -1 means that there is no such key.
struct KeyPlace {
  std::int32_t page = -1;
  std::int32_t token = 0;  // of the page
};

// Finds the places of keys [begin, end), up to kPagedStepKeys.
template <typename Cta>
CONTEXTILE_HD void find_places(Cta& cta, const PagedLaunch& launch, const PagedWork& work,
                               const PagedPiece& step, KeyPlace* places) {
  cta.each_thread([&](int thread) {
    if (thread >= kPagedStepKeys) return;
    const std::int32_t key = step.begin + thread;
    KeyPlace place;
    if (key < step.end) {
      place.page = launch.pages[work.first_page + key / launch.page_size];
      place.token = key % launch.page_size;
    }
    places[thread] = place;
  });
}

// Starts copying the rows of a step: bytes unchanged, one row after another; 16 bits as load_rows
// does. Absent keys and columns beyond `dim` become zeros.
template <bool kBytes, int kDim, typename Cta>
CONTEXTILE_HD void load_paged_rows(Cta& cta, std::uint16_t* shared, const PagedCache& cache,
                                   const KeyPlace* places, int kv_head, std::int32_t dim) {
  constexpr int kElements = kBytes ? 16 : 8;  // elements of one copy
  constexpr int kChunks = kDim / kElements;
  static_assert(kPagedStepKeys * kChunks % kThreads == 0);
  const std::byte* const head = cache.data + kv_head * cache.head_bytes;
  cta.each_thread([&](int thread) {
    CONTEXTILE_UNROLL_FOUR
    for (int at = 0; at < kPagedStepKeys * kChunks; at += kThreads) {
      const int row = (at + thread) / kChunks;
      const int col = (at + thread) % kChunks * kElements;
      const KeyPlace place = places[row];
      const bool present = place.page >= 0 && col < dim;
      const std::byte* const from = present ? head + place.page * cache.page_bytes +
                                                  place.token * cache.token_bytes +
                                                  col * (16 / kElements)
                                            : cache.data;
      std::uint16_t* const to =
          shared + (kBytes ? (row * kDim + col) / 2 : shared_at<kDim>(row, col));
      cta.copy16(to, reinterpret_cast<const std::uint16_t*>(from), present);
    }
  });
}

// The exponent of e4m3 in the bits of fp32's is 120 too small. The largest magnitude encodes NaN.
CONTEXTILE_HD float fp8_value(std::uint32_t byte) {
  if ((byte & 0x7fU) == 0x7fU) return std::numeric_limits<float>::quiet_NaN();
  return std::bit_cast<float>(((byte & 0x80U) << 24) | ((byte & 0x7fU) << 20)) * 0x1p120F;
}

// The bits of 2^23 + byte + 128 hold the byte.
CONTEXTILE_HD float int8_value(std::uint32_t byte) {
  return std::bit_cast<float>(0x4b000000U | (byte ^ 0x80U)) - 8388736.0F;
}

// Widens the bytes of a step to 16 bits, which hold both kinds exactly.
template <Number kNumber, int kDim, typename Cta>
CONTEXTILE_HD void widen_rows(Cta& cta, const std::uint16_t* bytes, bool is_int8,
                              std::uint16_t* shared) {
  constexpr int kChunks = kDim / 16;
  const auto value = [&](std::uint32_t word, int i) {
    const std::uint32_t byte = (word >> (8 * i)) & 0xffU;
    return is_int8 ? int8_value(byte) : fp8_value(byte);
  };
  cta.each_thread([&](int thread) {
    CONTEXTILE_UNROLL_TWICE
    for (int at = 0; at < kPagedStepKeys * kChunks; at += kThreads) {
      const int row = (at + thread) / kChunks;
      const int col = (at + thread) % kChunks * 16;
      const Registers narrow = Cta::read16(bytes + (row * kDim + col) / 2);
      CONTEXTILE_UNROLL
      for (int half = 0; half < 2; ++half) {
        Registers wide;
        CONTEXTILE_UNROLL
        for (int r = 0; r < 4; ++r) {
          const std::uint32_t word = narrow.x[half * 2 + r / 2];
          wide.x[r] =
              Cta::template pack<kNumber>(value(word, r % 2 * 2), value(word, r % 2 * 2 + 1));
        }
        Cta::write16(shared + shared_at<kDim>(row, col + half * 8), wide);
      }
    }
  });
}

}  // namespace contextile::cuda
