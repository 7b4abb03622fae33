// The parts of forward and backward: rows into shared memory, products of a warp.
//
// Cta represents a block of threads. PerLane<T> and PerWarp<T> are the data that every lane and
// every warp has of its own; each_thread, each_lane and each_warp run their argument for all of
// them. On the device a thread has only its own part and runs the argument only for itself. Between
// two syncs warps share nothing that they write.
#pragma once

#include <cstdint>

#include "kernel/cuda/launch.h"
#include "kernel/cuda/layout.h"

namespace contextile::cuda {

// A lane's part of 16 x 8·kTiles sums.
template <int kTiles>
struct Sums {
  float x[kTiles][4] = {};
};

// The four registers that a lane passes to mma or gets from ldmatrix, two numbers each.
struct Registers {
  std::uint32_t x[4] = {};
};

// Starts copying flat rows [first, first + kRows) of one KV head. Parts beyond `end` or `dim`
// become zeros. Rows begin at multiples of 16 bytes.
template <int kRows, int kDim, typename Cta>
CONTEXTILE_HD void load_rows(Cta& cta, std::uint16_t* shared,
                             const DeviceRows<const std::uint16_t>& rows, std::int32_t heads,
                             std::int32_t kv_head, std::int32_t first, std::int32_t end,
                             std::int32_t dim) {
  constexpr int kChunks = kDim / 8;
  static_assert(kRows * kChunks % kThreads == 0);
  cta.each_thread([&](int thread) {
    CONTEXTILE_UNROLL_FOUR  // all turns at once keep addresses, too: spills from head dim 192 on
        for (int at = 0; at < kRows * kChunks; at += kThreads) {
      const int row = (at + thread) / kChunks;
      const int col = (at + thread) % kChunks * 8;
      const bool present = first + row < end && col < dim;
      const std::uint16_t* from = present ? rows.at(first + row, heads, kv_head) + col : rows.data;
      cta.copy16(shared + shared_at<kDim>(row, col), from, present);
    }
  });
}

// Sets two neighboring numbers to keep · held + part, without reading them if `keep` is 0.
// `is_wide`: they are at a multiple of their size.
CONTEXTILE_HD void put_pair(float* held, bool is_wide, float keep, float first, float second) {
  if (is_wide) {
    auto* const pair = reinterpret_cast<Floats<2>*>(held);
    Floats<2> old = {};
    if (keep != 0) old = *pair;
    *pair = {{keep * old.x[0] + first, keep * old.x[1] + second}};
  } else {
    float old[2] = {};
    if (keep != 0) {
      old[0] = held[0];
      old[1] = held[1];
    }
    held[0] = keep * old[0] + first;
    held[1] = keep * old[1] + second;
  }
}

// Reads the 16 x 16 left factor whose corner is (row, col).
template <int kDim, typename Cta>
CONTEXTILE_HD void read_left(Cta& cta, const std::uint16_t* shared, int row, int col,
                             typename Cta::template PerLane<Registers>& out) {
  typename Cta::template PerLane<const std::uint16_t*> from;
  cta.each_lane([&](int lane) {
    const Place place = row_of_left(lane);
    from[lane] = shared + shared_at<kDim>(row + place.row, col + place.col);
  });
  cta.template load_matrices<false>(from, out);
}

// Adds the products of one step of 16 along the depth to sums.
template <Number kNumber, int kDim, int kTiles, typename Cta>
CONTEXTILE_HD void multiply_step(Cta& cta, const typename Cta::template PerLane<Registers>& left,
                                 const std::uint16_t* right, int depth,
                                 typename Cta::template PerLane<Sums<kTiles>>& sums) {
  CONTEXTILE_UNROLL
  for (int tile = 0; tile < kTiles; tile += 2) {
    typename Cta::template PerLane<const std::uint16_t*> from;
    typename Cta::template PerLane<Registers> b;
    cta.each_lane([&](int lane) {
      const Place place = row_of_right(lane);
      from[lane] = right + shared_at<kDim>(tile * 8 + place.row, depth + place.col);
    });
    cta.template load_matrices<false>(from, b);
    cta.template multiply<kNumber>(sums, tile, left, b, 0);
    cta.template multiply<kNumber>(sums, tile + 1, left, b, 1);
  }
}

// Computes sums := left · rightᵀ. left: 16 rows from `first_row`; right: 8·kTiles rows; both of
// kDim.
template <Number kNumber, int kDim, int kTiles, typename Cta>
CONTEXTILE_HD void multiply_rows(Cta& cta, const std::uint16_t* left, int first_row,
                                 const std::uint16_t* right,
                                 typename Cta::template PerLane<Sums<kTiles>>& sums) {
  cta.each_lane([&](int lane) { sums[lane] = {}; });
  CONTEXTILE_UNROLL_TWICE  // all turns at once would keep addresses where sums need the registers
      for (int depth = 0; depth < kDim; depth += 16) {
    typename Cta::template PerLane<Registers> a;
    read_left<kDim>(cta, left, first_row, depth, a);
    multiply_step<kNumber, kDim, kTiles>(cta, a, right, depth, sums);
  }
}

// The left factors of 16 rows of kDim, in registers.
template <typename Cta, int kDim>
struct KeptRows {
  typename Cta::template PerLane<Registers> x[kDim / 16];
};
template <int kDim, typename Cta>
CONTEXTILE_HD void keep_rows(Cta& cta, const std::uint16_t* rows, int first_row,
                             KeptRows<Cta, kDim>& kept) {
  CONTEXTILE_UNROLL
  for (int depth = 0; depth < kDim; depth += 16) {
    read_left<kDim>(cta, rows, first_row, depth, kept.x[depth / 16]);
  }
}

// Computes sums := left · rightᵀ. right: 8·kTiles rows of kDim.
template <Number kNumber, int kDim, int kTiles, typename Cta>
CONTEXTILE_HD void multiply_kept(Cta& cta, const KeptRows<Cta, kDim>& left,
                                 const std::uint16_t* right,
                                 typename Cta::template PerLane<Sums<kTiles>>& sums) {
  cta.each_lane([&](int lane) { sums[lane] = {}; });
  CONTEXTILE_UNROLL
  for (int depth = 0; depth < kDim; depth += 16) {
    multiply_step<kNumber, kDim, kTiles>(cta, left.x[depth / 16], right, depth, sums);
  }
}

// Computes sums += weights · rows. The weights are 16 x 8·kDepthTiles, as the sums of another
// product left them; the rows of kDim are in shared memory.
template <Number kNumber, int kDim, int kDepthTiles, typename Cta>
CONTEXTILE_HD void add_weighted_rows(Cta& cta,
                                     typename Cta::template PerLane<Sums<kDepthTiles>>& weights,
                                     const std::uint16_t* rows,
                                     typename Cta::template PerLane<Sums<kDim / 8>>& sums) {
  CONTEXTILE_UNROLL
  for (int depth = 0; depth < kDepthTiles; depth += 2) {
    typename Cta::template PerLane<Registers> a;
    cta.each_lane([&](int lane) {
      const Sums<kDepthTiles>& w = weights[lane];
      CONTEXTILE_UNROLL
      for (int r = 0; r < 4; ++r) {  // a pair of sums is a register of the left factor
        const float* pair = &w.x[depth + r / 2][r % 2 * 2];
        a[lane].x[r] = Cta::template pack<kNumber>(pair[0], pair[1]);
      }
    });
    CONTEXTILE_UNROLL
    for (int tile = 0; tile < kDim / 8; tile += 2) {
      typename Cta::template PerLane<const std::uint16_t*> from;
      typename Cta::template PerLane<Registers> b;
      cta.each_lane([&](int lane) {
        const Place place = row_of_left(lane);
        from[lane] = rows + shared_at<kDim>(depth * 8 + place.row, tile * 8 + place.col);
      });
      cta.template load_matrices<true>(from, b);
      cta.template multiply<kNumber>(sums, tile, a, b, 0);
      cta.template multiply<kNumber>(sums, tile + 1, a, b, 1);
    }
  }
}

}  // namespace contextile::cuda
