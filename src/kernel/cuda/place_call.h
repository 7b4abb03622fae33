// Finds the tensors of tiles in a call: lists are made once for a plan, but arrays move.
#pragma once

#include <cstdint>

#include "kernel/cuda/launch.h"
#include "kernel/cuda/row_calls.h"

namespace contextile::cuda {

// An operand of a tile as a part of an array of the call, from a token and a head on.
struct TilePart {
  std::int32_t array = -1;  // none: the tile has no such operand
  std::int32_t first_head = 0;
  std::int64_t first_token = 0;
  // Tokens of the array from one row to the next. A unit with several head groups of an arena takes
  // as many of the arena's tokens for each of its own.
  std::int64_t token_step = 1;
};

// The parts of a tile's operands, named as in DeviceTile.
struct TileParts {
  TilePart q, k, v, dout;
  TilePart o, lse, delta, dq, dk, dv;
};

// Bound on the arrays of a program: inputs, arenas and accumulators of all kinds and parts.
inline constexpr int kMaxArrays = 18;

// Strides count elements.
struct PlacedArray {
  void* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  friend bool operator==(const PlacedArray&, const PlacedArray&) = default;
};

// Sets `tiles` to the places of the parts in these arrays. The shape has a row for each tile.
struct PlaceCall {
  RowShape shape;
  const TileParts* parts = nullptr;
  DeviceTile* tiles = nullptr;
  PlacedArray arrays[kMaxArrays];

  template <typename T>
  CONTEXTILE_HD void place(const TilePart& part, DeviceRows<T>& rows) const {
    if (part.array < 0) return;
    const PlacedArray& array = arrays[part.array];
    const std::int64_t at =
        part.first_token * array.token_stride + part.first_head * array.head_stride;
    rows = {static_cast<T*>(array.data) + at, part.token_step * array.token_stride,
            array.head_stride};
  }

  template <typename Cta>
  CONTEXTILE_HD void run(Cta& cta, std::int64_t row) const {
    cta.each_lane([&](int lane) {
      if (lane != 0) return;
      const TileParts& part = parts[row];
      DeviceTile tile;
      place(part.q, tile.q);
      place(part.k, tile.k);
      place(part.v, tile.v);
      place(part.dout, tile.dout);
      place(part.o, tile.o);
      place(part.lse, tile.lse);
      place(part.delta, tile.delta);
      place(part.dq, tile.dq);
      place(part.dk, tile.dk);
      place(part.dv, tile.dv);
      tiles[row] = tile;
    });
  }
};

}  // namespace contextile::cuda
