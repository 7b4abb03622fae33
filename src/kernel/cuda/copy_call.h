// The kernel of lists of copies: a warp for each piece of a range.
#pragma once

#include <cstdint>

#include "gpu/copy_list.h"
#include "kernel/cuda/layout.h"
#include "kernel/cuda/row_views.h"

namespace contextile::cuda {

static_assert(CopyList::kThreads == kThreads);

struct CopyCall : CopyList {
  // Returns the first range that ends behind a piece.
  [[nodiscard]] CONTEXTILE_HD std::int32_t range_of(std::int64_t piece) const {
    std::int32_t first = 0;
    std::int32_t last = num_ranges - 1;
    while (first < last) {
      const std::int32_t middle = (first + last) / 2;
      if (piece < end_piece[middle]) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
    return first;
  }

  // Copies the piece of a range that begins at byte `begin`. Lanes take neighboring words, and
  // each reads several words before it writes the first.
  template <typename Word, typename Cta>
  CONTEXTILE_HD static void copy_piece(Cta& cta, const CopyRange& range, std::int64_t begin) {
    constexpr int kWord = static_cast<int>(sizeof(Word));
    constexpr int kWords = static_cast<int>(kBytesOfPiece) / kWord;
    constexpr int kAtOnce = 8;
    static_assert(kWords % (kAtOnce * kLanes) == 0);
    const std::int64_t words_of_row = range.row_bytes / kWord;
    const std::int64_t first = begin / kWord;
    const std::int64_t rest = range.num_bytes() / kWord - first;
    const std::int32_t count = rest < kWords ? static_cast<std::int32_t>(rest) : kWords;
    const std::int64_t first_row = first / words_of_row;
    const auto width = static_cast<std::uint32_t>(words_of_row);
    const auto first_col = static_cast<std::uint32_t>(first % words_of_row);
    cta.each_lane([&](int lane) {
      for (std::int32_t turn = lane; turn < count; turn += kAtOnce * kLanes) {
        Word words[kAtOnce];
        std::byte* places[kAtOnce];
        CONTEXTILE_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          const std::int32_t at = turn + i * kLanes;
          if (at >= count) continue;
          const std::uint32_t col = first_col + static_cast<std::uint32_t>(at);
          const std::int64_t row = first_row + col / width;
          const std::int64_t byte = std::int64_t{col % width} * kWord;
          places[i] = range.to + row * range.to_stride + byte;
          words[i] = *reinterpret_cast<const Word*>(range.from + row * range.from_stride + byte);
        }
        CONTEXTILE_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          if (turn + i * kLanes < count) *reinterpret_cast<Word*>(places[i]) = words[i];
        }
      }
    });
  }

  template <typename Cta>
  CONTEXTILE_HD void run(Cta& cta, std::int64_t piece) const {
    const std::int32_t number = range_of(piece);
    const CopyRange& range = ranges[number];
    const std::int64_t first_piece = number == 0 ? 0 : end_piece[number - 1];
    const std::int64_t begin = (piece - first_piece) * kBytesOfPiece;
    switch (range.word_bytes) {
      case 16:
        return copy_piece<FourWords>(cta, range, begin);
      case 4:
        return copy_piece<std::uint32_t>(cta, range, begin);
      case 2:
        return copy_piece<std::uint16_t>(cta, range, begin);
      default:
        return copy_piece<std::uint8_t>(cta, range, begin);
    }
  }
};
static_assert(sizeof(CopyCall) == sizeof(CopyList));

}  // namespace contextile::cuda
