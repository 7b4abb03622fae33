// Rows that a warp holds whole while it adds the rows of several sources.
#pragma once

#include <cstdint>

#include "kernel/cuda/layout.h"
#include "kernel/cuda/paired_sums.h"
#include "kernel/cuda/row_views.h"

namespace contextile::cuda {

// The sources of a call. They are among those that go with its list or, if they are many, in device
// memory.
template <typename Source>
struct Sources {
  const Source* far = nullptr;
  std::int32_t first = 0;
  std::int32_t count = 0;

  [[nodiscard]] CONTEXTILE_HD const Source& at(std::int32_t s, const Source* near) const {
    return far == nullptr ? near[first + s] : far[s];
  }
};

// The part of a row that a lane holds, by chunk.
template <typename Sum>
struct HeldSums {
  Sum x[kHeldChunks][kChunk] = {};
};
struct HeldFloats {
  float x[kHeldChunks][kChunk] = {};
};
struct HeldDoubles {
  double x[kHeldChunks][kChunk] = {};
};

// Rounds the sums of a lane's elements. Returns true if all roundings are decided.
template <typename Sum>
CONTEXTILE_HD bool decide(int lane, std::int32_t dim, int num_terms, const HeldSums<Sum>& sums,
                          HeldFloats& rounded) {
  bool decided = true;
  each_held_chunk(lane, dim, [&](int chunk, std::int32_t, int count) {
    CONTEXTILE_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      if (i < count && !sums.x[chunk][i].decides(num_terms, rounded.x[chunk][i])) decided = false;
    }
  });
  return decided;
}

}  // namespace contextile::cuda
