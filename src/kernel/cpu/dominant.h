// Slopes of keys that dominate a row of attention.
//
// dS = P·(dP - delta) cancels if a row attends (almost) one key. Then dP equals delta except for
// the rounding of a sum of `value_dim` products in fp32, and nothing but that rounding would remain
// of the row's gradient. For a key with more than kDominant of a row's weight (a row has at most
// one), the sum is computed again in fp64.
#pragma once

#include <cstdint>

#include "kernel/cpu/pack.h"
#include "kernel/cpu/panels.h"
#include "kernel/cpu/task.h"

namespace contextile {

inline constexpr float kDominant = 0.875F;

// The rows of values and of dO that belong to the scores of one panel.
struct SlopeRows {
  const BackwardTile* tile = nullptr;
  Panel panel;
  std::int64_t heads_per_kv = 1;
  std::int64_t kv_head = 0;
};

template <class V, class Source>
CONTEXTILE_INLINE double dot_in_fp64(const char* a, const char* b, std::int64_t dim) {
  double sums[V::kLanes] = {};
  for (std::int64_t d = 0; d < dim; d += V::kLanes) {
    float x[V::kLanes];
    float y[V::kLanes];
    V::store(x, load_part<V, Source>(a, d, dim));
    V::store(y, load_part<V, Source>(b, d, dim));
    for (int i = 0; i < V::kLanes; ++i) sums[i] += static_cast<double>(x[i]) * y[i];
  }
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

// Returns dP of one key and one row of the panel in fp64.
template <class V>
CONTEXTILE_INLINE double value_times_dout(const SlopeRows& rows, std::int64_t key,
                                          std::int64_t row) {
  const ByteRows values = byte_rows(rows.tile->v_MHD);
  const ByteRows douts = byte_rows(rows.tile->do_NHD);
  const std::int64_t flat = rows.panel.first_row + row;
  const char* value = values.row(key, rows.kv_head);
  const char* dout = douts.row(flat / rows.heads_per_kv,
                               rows.kv_head * rows.heads_per_kv + flat % rows.heads_per_kv);
  return with_dtype<V>(rows.tile->v_MHD.dtype, [&](auto source) {
    return dot_in_fp64<V, decltype(source)>(value, dout, values.dim);
  });
}

// Replaces dP - delta of a key, for those of the kLanes rows from `first_row` of the panel whose
// weight dominates. dP is multiplied by the rows' factors of dropout (null: 1).
template <class V>
[[gnu::noinline]] void redo_dominant(const SlopeRows& rows, std::int64_t key,
                                     std::int64_t first_row, typename V::Float weight,
                                     const float* delta, const float* factors,
                                     typename V::Float& difference) {
  float weights[V::kLanes];
  float differences[V::kLanes];
  V::store(weights, weight);
  V::store(differences, difference);
  for (int i = 0; i < V::kLanes; ++i) {
    if (!(weights[i] > kDominant)) continue;
    const double factor = factors == nullptr ? 1 : double{factors[i]};
    differences[i] = static_cast<float>(factor * value_times_dout<V>(rows, key, first_row + i) -
                                        static_cast<double>(delta[i]));
  }
  difference = V::load(differences);
}

}  // namespace contextile
