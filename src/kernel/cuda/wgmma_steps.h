// The parts of the programs for wgmma: warpgroups, barriers between them, products that are started
// and waited for, masks.
//
// Group represents a warpgroup, 128 threads of a CTA of three groups: group 0 copies the streamed
// rows into shared memory, groups 1 and 2 own 64 rows each. It is also the Cta of tile_steps.h for
// the warps of the group. In addition it has:
//   wait(barrier, parity)  waits until the phase of that parity is over;
//   await_turn, pass_turn  let consumers start products in turns: while those of one are multiplied,
//                          the other computes weights (FlashAttention-3, section 3.1);
//   producer_warp          returns the warp of group 0 that this is: those have work of their own;
//   copy_box               starts a copy that ends at a barrier, as bytes that are expected there;
//   multiply_…             starts a product; its sums, its weights and its rows in shared memory
//                          belong to it until wait_products has seen it end;
//   pin                    keeps earlier writes before it and later reads after it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernel/cuda/launch.h"
#include "kernel/cuda/score_steps.h"
#include "kernel/cuda/tile_steps.h"
#include "kernel/cuda/wgmma_layout.h"

namespace contextile::cuda {

inline constexpr int kProducer = 0;   // index of that group
inline constexpr int kConsumers = 2;  // groups
inline constexpr int kWgmmaThreads = kGroupThreads * (1 + kConsumers);
inline constexpr int kWgmmaOwned = kGroupRows * kConsumers;

// Numbers of registers of a thread, of which a multiprocessor has 65536. The producer gives away
// the registers that consumers take. At the start all have the largest multiple of 8 that fits.
template <int kOfProducer>
struct RegisterShares {
  static constexpr int kProducer = kOfProducer;
  static constexpr int kAtStart = 65536 / kWgmmaThreads / 8 * 8;
  static constexpr int kConsumer = (kAtStart * (1 + kConsumers) - kOfProducer) / kConsumers / 8 * 8;
};

// A barrier in shared memory (mbarrier). A phase is over when all threads and all expected bytes
// have arrived.
using Barrier = std::uint64_t;

// Number of places that the producer fills and consumers empty, one after another.
inline constexpr int kStages = 2;
struct Ring {
  Barrier full[kStages];
  Barrier empty[kStages];  // every warp of the consumers arrives
};
// The place of a block, and the parity of the phase in which it is there. The first is in place 0.
struct Turn {
  int stage = 0;
  std::uint32_t parity = 0;
};
CONTEXTILE_HD Turn next_turn(Turn turn) {
  static_assert(kStages == 2);
  return {turn.stage ^ 1, turn.parity ^ static_cast<std::uint32_t>(turn.stage)};
}
CONTEXTILE_HD Turn turn_of(std::int32_t block) {
  const auto number = static_cast<std::uint32_t>(block);
  return {static_cast<int>(number % kStages), number / kStages % 2};
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

// Opens the two rings of a program, by one thread, before any thread uses them. A copy that fills a
// place arrives once; at the first ring there are `arrivals_at_first` arrivals.
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
// full when they have arrived. Called by one thread.
template <int kRows, int kDim, typename Group>
CONTEXTILE_HD void copy_rows(Group& group, std::uint16_t* place, const BoxMap& map, int head,
                             std::int32_t token, Barrier& full) {
  CONTEXTILE_UNROLL
  for (int panel = 0; panel < kDim / kSwizzleCols; ++panel) {
    group.copy_box(place + panel * kRows * kSwizzleCols, map, panel * kSwizzleCols, head, token,
                   full);
  }
}

// Starts copying the 64 flat rows of a consumer. Parts beyond `end` or `dim` become zeros.
template <int kDim, typename Group>
CONTEXTILE_HD void load_group_rows(Group& group, std::uint16_t* shared,
                                   DeviceRows<const std::uint16_t> rows, std::int32_t heads,
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

// Starts sums += weights · rows: 64 x kRows by kRows x kDim, or rows [kBegin, kEnd) of them.
template <Number kNumber, int kDim, int kRows, int kBegin = 0, int kEnd = kRows, typename Group>
CONTEXTILE_HD void start_weighted(Group& group, const GroupWeights<Group, kRows / 8>& weights,
                                  const std::uint16_t* rows, GroupSums<Group, kDim / 8>& sums) {
  const std::uint32_t rows_at = group.address(rows);
  CONTEXTILE_UNROLL
  for (int depth = kBegin; depth < kEnd; depth += kDepth) {
    group.template multiply_weights<kNumber>(sums, weights, depth / kDepth,
                                             depth_operand<kRows>(rows_at, depth));
  }
}

// Turns sums into a left factor, or the tiles [kBegin, kEnd) of them: each pair of sums becomes one
// of its registers.
template <Number kNumber, int kTiles, int kBegin = 0, int kEnd = kTiles, typename Group>
CONTEXTILE_HD void round_weights(Group& group, const GroupSums<Group, kTiles>& sums,
                                 GroupWeights<Group, kTiles>& weights) {
  group.each_warp([&](int warp) {
    group.each_lane([&](int lane) {
      CONTEXTILE_UNROLL
      for (int step = kBegin / 2; step < kEnd / 2; ++step) {
        CONTEXTILE_UNROLL
        for (int r = 0; r < 4; ++r) {
          const float* pair = &sums[warp][lane].x[step * 2 + r / 2][r % 2 * 2];
          weights[warp][lane].x[step][r] = Group::template pack<kNumber>(pair[0], pair[1]);
        }
      }
    });
  });
}

}  // namespace contextile::cuda
