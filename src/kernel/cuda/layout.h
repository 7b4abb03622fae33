// How the instructions of a warp deal elements of matrices to its lanes, and how rows lie in shared
// memory. The same functions place elements on the device and in the loops that stand for it.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define CONTEXTILE_HD __host__ __device__ __forceinline__
#define CONTEXTILE_UNROLL _Pragma("unroll")
#define CONTEXTILE_UNROLL_TWICE _Pragma("unroll 2")
#define CONTEXTILE_UNROLL_FOUR _Pragma("unroll 4")
#else
#define CONTEXTILE_HD inline
#define CONTEXTILE_UNROLL
#define CONTEXTILE_UNROLL_TWICE
#define CONTEXTILE_UNROLL_FOUR
#endif

namespace contextile::cuda {

inline constexpr int kLanes = 32;
inline constexpr int kWarps = 4;  // of a CTA; each owns 16 of its rows
inline constexpr int kThreads = kLanes * kWarps;
inline constexpr int kOwnedRows = 16 * kWarps;

// What inputs and weights are.
enum class Number : std::uint8_t { kBf16, kF16 };

struct Place {
  int row = 0;
  int col = 0;
};

// mma.sync.m16n8k16: element i (of 4) of a lane in the 16 x 8 sum.
CONTEXTILE_HD constexpr Place place_in_sum(int lane, int i) {
  return {lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2};
}
// Half `half` of register `r` (of 4) of a lane in the left 16 x 16 factor.
CONTEXTILE_HD constexpr Place place_in_left(int lane, int r, int half) {
  return {lane / 4 + 8 * (r % 2), lane % 4 * 2 + half + 8 * (r / 2)};
}
// Half `half` of register `r` (of 2) of a lane in the right 16 x 8 factor.
CONTEXTILE_HD constexpr Place place_in_right(int lane, int r, int half) {
  return {lane % 4 * 2 + half + 8 * r, lane / 4};
}

// ldmatrix.x4 reads four 8 x 8 matrices; lane l names row l % 8 of matrix l / 8. Where that row
// begins, from the corner of what is read:
// - the left factor from rows of it, and two right factors side by side from rows of depth
//   (.trans): the matrices go down first;
CONTEXTILE_HD constexpr Place row_of_left(int lane) { return {lane % 16, lane / 16 * 8}; }
// - two right factors side by side from rows of width: the matrices go along the depth first.
CONTEXTILE_HD constexpr Place row_of_right(int lane) {
  return {lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8};
}

// Where an element of a row of kDim stands in shared memory. Eight elements (16 bytes) stay
// together; the eight rows of a matrix spread over all banks. Rows of an odd multiple of 32 begin
// by turns in either half of the banks, so that four places in each are enough.
template <int kDim>
CONTEXTILE_HD constexpr int shared_at(int row, int col) {
  static_assert(kDim % 32 == 0);
  const int turn = kDim % 64 == 0 ? row % 8 : row / 2 % 4;
  return row * kDim + ((col / 8) ^ turn) * 8 + col % 8;
}

}  // namespace contextile::cuda
