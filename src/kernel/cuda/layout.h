// The places of elements: how the instructions of a warp deal elements of matrices to its lanes,
// and how rows lie in shared memory. The same functions place elements on the device and in the
// loops that emulate it.
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

// Returns the pointer as one that the compiler knows to be in global memory, not in shared.
template <typename T>
CONTEXTILE_HD T* in_global_memory(T* place) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(place));
#endif
  return place;
}

// Numbers that one access reads or writes, at a multiple of their size.
template <int kCount>
struct alignas(kCount * sizeof(float)) Floats {
  float x[kCount];
};
template <int kCount>
CONTEXTILE_HD bool is_at_multiple_of(const float* place) {
  return reinterpret_cast<std::uintptr_t>(place) % sizeof(Floats<kCount>) == 0;
}

// The type of inputs and weights.
enum class Number : std::uint8_t { kBf16, kF16 };

struct Place {
  int row = 0;
  int col = 0;
};

// Returns the place of element i (of 4) of a lane in the 16 x 8 sum of mma.sync.m16n8k16.
CONTEXTILE_HD constexpr Place place_in_sum(int lane, int i) {
  return {lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2};
}
// Returns the place of half `half` of register `r` (of 4) of a lane in the left 16 x 16 factor.
CONTEXTILE_HD constexpr Place place_in_left(int lane, int r, int half) {
  return {lane / 4 + 8 * (r % 2), lane % 4 * 2 + half + 8 * (r / 2)};
}
// Returns the place of half `half` of register `r` (of 2) of a lane in the right 16 x 8 factor.
CONTEXTILE_HD constexpr Place place_in_right(int lane, int r, int half) {
  return {lane % 4 * 2 + half + 8 * r, lane / 4};
}

// ldmatrix.x4 reads four 8 x 8 matrices; lane l names row l % 8 of matrix l / 8. These functions
// return the place where that row begins, from the corner of the part that is read:
// - the left factor from its rows, and two neighbouring right factors from rows of depth (.trans):
//   the matrices go down first;
CONTEXTILE_HD constexpr Place row_of_left(int lane) { return {lane % 16, lane / 16 * 8}; }
// - two neighbouring right factors from rows of width: the matrices go along the depth first.
CONTEXTILE_HD constexpr Place row_of_right(int lane) {
  return {lane / 16 * 8 + lane % 8, lane / 8 % 2 * 8};
}

// Returns the place of an element of a row of kDim in shared memory. Eight elements (16 bytes) stay
// together; the eight rows of a matrix spread over all banks. Rows of an odd multiple of 32 begin
// alternately in the two halves of the banks, so four places in each half are enough.
template <int kDim>
CONTEXTILE_HD constexpr int shared_at(int row, int col) {
  static_assert(kDim % 32 == 0);
  const int turn = kDim % 64 == 0 ? row % 8 : row / 2 % 4;
  return row * kDim + ((col / 8) ^ turn) * 8 + col % 8;
}

}  // namespace contextile::cuda
