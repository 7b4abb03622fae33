// The end of forward: a panel's result is divided by its sum and merged into the rows of its slot.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernel/cpu/logaddexp.h"
#include "kernel/cpu/pack.h"
#include "kernel/cpu/scores.h"
#include "kernel/cpu/task.h"

namespace contextile {

// A number below every score, so that a row that has seen nothing needs no test.
inline constexpr float kLeastTop = -1e30F;

// One panel of a task: its queries and its results so far.
template <class V>
struct ForwardPanel {
  Panel panel;
  typename V::Element* queries = nullptr;  // [depth stride][width]
  float* out = nullptr;                    // [value dim][width], of weights 2^(score - top)
  float* top = nullptr;            // [width] largest score in units of log2, at least kLeastTop
  float* sum = nullptr;            // [width] sum of the weights; 0: nothing seen
  std::int32_t* tokens = nullptr;  // [width]
  LaneTerms lanes;                 // with terms
  bool is_started = false;
  bool has_out = false;       // a step has written `out`
  std::size_t last_tile = 0;  // the last keys that it meets end at last_key of last_tile
  std::int64_t last_key = -1;
};

// Weights by which a row's new result joins its slot: slot = held·slot + fresh·new.
struct RowWeights {
  float fresh = 0;
  float held = 0;
  bool is_kept = false;  // the slot stays as it is
};

// Merges the log-sum-exp of a row into its slot. The slot's O counts only if its LSE is finite.
template <class V>
inline RowWeights merge_lse(float top, float sum, float& slot, bool init) {
  constexpr float kEmpty = kNoScore;
  const bool is_empty = sum == 0;
  const double lse = is_empty ? kEmpty : double{top} * kLn2 + double{std::log(sum)};
  if (init || slot == kEmpty) {
    if (is_empty && !init) return {0, 0, true};
    slot = static_cast<float>(lse);
    return {is_empty ? 0.0F : 1 / sum, 0, false};
  }
  if (is_empty) return {0, 0, true};
  const double merged = logaddexp(slot, lse);
  const RowWeights weights{static_cast<float>(std::exp(lse - merged) / double{sum}),
                           static_cast<float>(std::exp(double{slot} - merged)), false};
  slot = static_cast<float>(merged);
  return weights;
}

// Writes the rows of a panel to their slots, kLanes rows at a time.
template <class V>
[[gnu::noinline]] void finish_panel(const ForwardTask& task, const ForwardPanel<V>& state) {
  using Float = typename V::Float;
  const ForwardTile& tile = task.tiles[0];
  const std::int64_t heads = task.params->q_heads / task.params->kv_heads;
  const std::int64_t width = std::int64_t{state.panel.vectors} * V::kLanes;
  const std::int64_t dim = task.params->value_dim;
  std::int64_t token = state.panel.first_row / heads;
  std::int64_t head = state.panel.first_row % heads;
  for (std::int64_t first = 0; first < state.panel.num_rows; first += V::kLanes) {
    RowWeights weights[V::kLanes];
    float* rows[V::kLanes];
    const std::int64_t count = smaller(V::kLanes, state.panel.num_rows - first);
    bool is_plain = count == V::kLanes;  // every row is overwritten
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t q_head = task.kv_head * heads + head;
      float& slot =
          tile.lse_NH.data[token * tile.lse_NH.token_stride + q_head * tile.lse_NH.head_stride];
      weights[i] = merge_lse<V>(state.top[first + i], state.sum[first + i], slot, tile.init);
      is_plain = is_plain && !weights[i].is_kept && weights[i].held == 0;
      rows[i] = static_cast<float*>(tile.o_NHD.data) + token * tile.o_NHD.token_stride +
                q_head * tile.o_NHD.head_stride;
      if (++head == heads) {
        head = 0;
        ++token;
      }
    }
    // `out` has queries in lanes; blocks of it are transposed into rows.
    for (std::int64_t d = 0; d < dim; d += V::kLanes) {
      Float block[V::kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) block[i] = V::load(state.out + (d + i) * width + first);
      V::transpose(block);
      if (is_plain && d + V::kLanes <= dim) {
#pragma GCC unroll 16
        for (int i = 0; i < V::kLanes; ++i) {
          V::store(rows[i] + d, V::mul(V::set(weights[i].fresh), block[i]));
        }
        continue;
      }
      for (std::int64_t i = 0; i < count; ++i) {
        if (weights[i].is_kept) continue;
        Float value = V::mul(V::set(weights[i].fresh), block[i]);
        if (weights[i].held != 0) {
          value = V::fma(V::set(weights[i].held), load_row_part<V>(rows[i] + d, dim - d), value);
        }
        store_row_part<V>(rows[i] + d, value, dim - d);
      }
    }
  }
}

}  // namespace contextile
