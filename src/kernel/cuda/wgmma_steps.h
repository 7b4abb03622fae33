// What the programs for wgmma are made of: warpgroups, barriers between them, products that are
// started and waited for, masks.
//
// Group is what stands for a warpgroup, 128 threads of a CTA of three: group 0 brings what is
// streamed into shared memory, groups 1 and 2 own 64 rows each. It is also the Cta of tile_steps.h
// for the warps of the group. What it does beside:
//   wait(barrier, parity)  until the phase of that parity is over;
//   await_turn, pass_turn  consumers start products in turns: while those of one are multiplied,
//   the
//                          other makes weights (FlashAttention-3, section 3.1);
//   producer_warp          which warp of group 0 this is: those have work of their own;
//   copy_box               a copy that ends at a barrier, as bytes that were expected there;
//   multiply_…             starts a product; its sums, its weights and its rows in shared memory
//                          belong to it until wait_products has seen it end;
//   pin                    what was written before stays before, and what is read after, after.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernel/cuda/launch.h"
#include "kernel/cuda/tile_steps.h"
#include "kernel/cuda/wgmma_layout.h"

namespace contextile::cuda {

inline constexpr int kProducer = 0;   // the index of that group
inline constexpr int kConsumers = 2;  // groups
inline constexpr int kWgmmaThreads = kGroupThreads * (1 + kConsumers);
inline constexpr int kWgmmaOwned = kGroupRows * kConsumers;

// Registers of a thread, of which a multiprocessor has 65536: the producer gives away what
// consumers take. At the start all have the largest multiple of 8 that fits.
template <int kOfProducer>
struct RegisterShares {
  static constexpr int kProducer = kOfProducer;
  static constexpr int kAtStart = 65536 / kWgmmaThreads / 8 * 8;
  static constexpr int kConsumer = (kAtStart * (1 + kConsumers) - kOfProducer) / kConsumers / 8 * 8;
};

// In shared memory (mbarrier): a phase is over when all have arrived and all expected bytes have.
using Barrier = std::uint64_t;

// Places that the producer fills and consumers empty, in turn.
inline constexpr int kStages = 2;
struct Ring {
  Barrier full[kStages];
  Barrier empty[kStages];  // every warp of the consumers arrives
};
// Where the block with that number is, and the parity of the phase in which it is.
struct Turn {
  int stage = 0;
  std::uint32_t parity = 0;
};
CONTEXTILE_HD Turn turn_of(std::int32_t block) {
  return {block % kStages, static_cast<std::uint32_t>(block / kStages % 2)};
}

template <typename Group, int kTiles>
using GroupSums = typename Group::template PerWarp<typename Group::template PerLane<Sums<kTiles>>>;

// A lane's part of 16 x 8·kTiles weights, rounded, as a left factor.
template <int kTiles>
struct Weights {
  std::uint32_t x[kTiles / 2][4] = {};
};
template <typename Group, int kTiles>
using GroupWeights =
    typename Group::template PerWarp<typename Group::template PerLane<Weights<kTiles>>>;

// The two of a program, by one thread, before anybody uses them. What fills a place arrives once,
// at the first ring as often as is said.
template <typename Group>
CONTEXTILE_HD void open_rings(Group& group, Ring* rings, int arrivals_at_first) {
  if (group.index() == kProducer && group.producer_warp() == 0) {
    group.one_lane([&] {
      CONTEXTILE_UNROLL
      for (int r = 0; r < 2; ++r) {
        CONTEXTILE_UNROLL
        for (int stage = 0; stage < kStages; ++stage) {
          group.open(rings[r].full[stage], r == 0 ? arrivals_at_first : 1);
          group.open(rings[r].empty[stage], kConsumers * kGroupWarps);
        }
      }
      group.publish_barriers();
    });
  }
  group.sync_cta();
}

// Starts copying kRows rows from `token` on, all columns, into a place of shared memory, which is
// full when they are there. By one thread.
template <int kRows, int kDim, typename Group>
CONTEXTILE_HD void copy_rows(Group& group, std::uint16_t* place, const BoxMap& map, int head,
                             std::int32_t token, Barrier& full) {
  CONTEXTILE_UNROLL
  for (int panel = 0; panel < kDim / kSwizzleCols; ++panel) {
    group.copy_box(place + panel * kRows * kSwizzleCols, map, panel * kSwizzleCols, head, token,
                   full);
  }
}

// Starts copying the 64 flat rows of a consumer; zeros for what is beyond `end` or `dim`.
template <int kDim, typename Group>
CONTEXTILE_HD void load_group_rows(Group& group, std::uint16_t* shared,
                                   const DeviceRows<const std::uint16_t>& rows, std::int32_t heads,
                                   std::int32_t kv_head, std::int32_t first, std::int32_t end,
                                   std::int32_t dim) {
  constexpr int kChunks = kDim / 8;
  group.each_thread([&](int thread) {
    CONTEXTILE_UNROLL
    for (int at = 0; at < kGroupRows * kChunks; at += kGroupThreads) {
      const int row = (at + thread) / kChunks;
      const int col = (at + thread) % kChunks * 8;
      const bool present = first + row < end && col < dim;
      const std::uint16_t* from = present ? rows.at(first + row, heads, kv_head) + col : rows.data;
      group.copy16(shared + swizzled_at<kGroupRows>(row, col), from, present);
    }
  });
}

// Starts sums := left · rightᵀ: 64 rows by kRows rows, both of kDim.
template <Number kNumber, int kDim, int kRows, typename Group>
CONTEXTILE_HD void start_scores(Group& group, const std::uint16_t* left, const std::uint16_t* right,
                                GroupSums<Group, kRows / 8>& sums) {
  const std::uint32_t left_at = group.address(left);
  const std::uint32_t right_at = group.address(right);
  CONTEXTILE_UNROLL
  for (int depth = 0; depth < kDim; depth += kDepth) {
    group.template multiply_rows<kNumber>(sums, rows_operand<kGroupRows>(left_at, depth),
                                          rows_operand<kRows>(right_at, depth), depth > 0);
  }
}

// Starts sums += weights · rows: 64 x kRows by kRows x kDim.
template <Number kNumber, int kDim, int kRows, typename Group>
CONTEXTILE_HD void start_weighted(Group& group, const GroupWeights<Group, kRows / 8>& weights,
                                  const std::uint16_t* rows, GroupSums<Group, kDim / 8>& sums) {
  const std::uint32_t rows_at = group.address(rows);
  CONTEXTILE_UNROLL
  for (int depth = 0; depth < kRows; depth += kDepth) {
    group.template multiply_weights<kNumber>(sums, weights, depth / kDepth,
                                             depth_operand<kRows>(rows_at, depth));
  }
}

// Sums become a left factor: a pair of sums is a register of it.
template <Number kNumber, int kTiles, typename Group>
CONTEXTILE_HD void round_weights(Group& group, const GroupSums<Group, kTiles>& sums,
                                 GroupWeights<Group, kTiles>& weights) {
  group.each_warp([&](int warp) {
    group.each_lane([&](int lane) {
      CONTEXTILE_UNROLL
      for (int step = 0; step < kTiles / 2; ++step) {
        CONTEXTILE_UNROLL
        for (int r = 0; r < 4; ++r) {
          const float* pair = &sums[warp][lane].x[step * 2 + r / 2][r % 2 * 2];
          weights[warp][lane].x[step][r] = Group::template pack<kNumber>(pair[0], pair[1]);
        }
      }
    });
  });
}

// A bit for every column below `end` among those of a lane, two of each tile.
CONTEXTILE_HD std::uint32_t columns_below(int lane, std::int32_t end, int tiles) {
  if (end <= 0) return 0;
  if (end >= tiles * 8) return ~std::uint32_t{0};
  const int rest = end % 8 - lane % 4 * 2;
  const int count = end / 8 * 2 + (rest < 0 ? 0 : rest > 2 ? 2 : rest);
  return count == 32 ? ~std::uint32_t{0} : (std::uint32_t{1} << count) - 1;
}

// The lane's columns of a block that a band lets an owned token attend.
template <int kTiles>
CONTEXTILE_HD std::uint32_t columns_of_band(const TokenBand& band, const StreamedBlock& block,
                                            std::int32_t owned_token, std::int32_t streamed_heads,
                                            int lane) {
  if (owned_token < band.owned_begin || owned_token >= band.owned_end) return 0;
  const std::int32_t lo = owned_token + band.lo;
  const std::int32_t hi = owned_token + band.hi + 1;
  const std::int32_t end = hi < band.streamed_end ? hi : band.streamed_end;
  const std::int32_t begin = lo > band.streamed_begin ? lo : band.streamed_begin;
  if (begin >= end) return 0;  // and no product overflows
  const std::int32_t flat_end = end * streamed_heads;
  const std::int32_t last = flat_end < block.end ? flat_end : block.end;
  return columns_below(lane, last - block.begin, kTiles) &
         ~columns_below(lane, begin * streamed_heads - block.begin, kTiles);
}

// Scores of a warp's 16 rows become -inf where a pair does not attend. As `attends`, for all
// columns of a row at once.
template <bool kKeysOwn, int kTiles, typename Cta>
CONTEXTILE_HD void mask_scores(Cta& cta, const Launch& launch, const StreamedBlock& block,
                               std::int32_t first_row,
                               typename Cta::template PerLane<Sums<kTiles>>& scores) {
  static_assert(kTiles * 2 <= 32, "a bit for every column of a lane");
  cta.each_lane([&](int lane) {
    CONTEXTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::int32_t row = first_row + lane / 4 + half * 8;
      const std::int32_t token = kKeysOwn ? row : row / launch.heads;
      std::uint32_t attended = 0;
      for (std::int32_t b = 0; b < block.num_bands; ++b) {
        attended |= columns_of_band<kTiles>(launch.bands[block.first_band + b], block, token,
                                            kKeysOwn ? launch.heads : 1, lane);
      }
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        CONTEXTILE_UNROLL
        for (int i = 0; i < 2; ++i) {
          if ((attended >> (tile * 2 + i) & 1) == 0) scores[lane].x[tile][half * 2 + i] = -INFINITY;
        }
      }
    }
  });
}

}  // namespace contextile::cuda
