// Forward on panels: online softmax over blocks of packed keys.
//
// Queries stand in lanes: scores[key][query] = K·Qᵀ, out[d][query] = Vᵀ·P. Maximum, sum, rescaling
// and mask act on whole vectors, and K and V are read in their own order.
#pragma once

#include <cmath>
#include <cstdint>

#include "runtime/merge.h"
#include "runtime/simd_pack.h"
#include "runtime/simd_scores.h"
#include "runtime/simd_task.h"
#include "runtime/tensor.h"

namespace contextile {

// Below every score, so that a row that has seen nothing needs no test.
inline constexpr float kLeastTop = -1e30F;

// One panel of a task: its queries and what it has so far.
struct ForwardPanel {
  Panel panel;
  float* queries = nullptr;        // [dim][width]
  float* out = nullptr;            // [value dim][width], of weights 2^(score - top)
  float* top = nullptr;            // [width] largest score in units of log2, at least kLeastTop
  float* sum = nullptr;            // [width] of the weights; 0: nothing seen
  std::int32_t* tokens = nullptr;  // [width]
};

template <class V>
struct ForwardWork {
  ForwardWork(const ForwardTask& task, void* memory)
      : query_stride(round_up(task.params->head_dim, V::kLanes)),
        value_stride(round_up(task.params->value_dim, V::kLanes)) {
    constexpr std::int64_t kWidth = std::int64_t{kMaxPanelVectors} * V::kLanes;
    Carver carver(memory);
    for (std::int64_t p = 0; p < task.num_panels; ++p) {
      ForwardPanel& state = panels[p];
      state.queries = carver.take<float>(query_stride * kWidth);
      state.out = carver.take<float>(value_stride * kWidth);
      state.top = carver.take<float>(kWidth);
      state.sum = carver.take<float>(kWidth);
      state.tokens = carver.take<std::int32_t>(kWidth);
    }
    std::int64_t most_keys = 0;
    for (std::size_t t = 0; t < task.tiles.size(); ++t) {
      most_keys = larger(most_keys, task.tiles[t].k_MHD.tokens);
    }
    const std::int64_t rows =
        round_up(smaller(most_keys, V::kForwardKeys), V::kProductRows) + V::kProductRows;
    keys = carver.take<float>(rows * query_stride);
    values = carver.take<float>(rows * value_stride);
    scores = carver.take<float>(rows * kWidth);
    bytes = carver.used_bytes();
  }

  ForwardPanel panels[V::kForwardPanels];
  std::int64_t query_stride;
  std::int64_t value_stride;
  float* keys;
  float* values;
  float* scores;
  std::size_t bytes;
};

template <class V, int kVectors>
inline void forward_step(const ScoreBlock& block, const float* values, std::int64_t value_stride,
                         std::int64_t value_dim, const ForwardPanel& state, float* scores) {
  using Float = typename V::Float;
  constexpr std::int64_t kWidth = kVectors * V::kLanes;
  Float largest[kVectors];
  for (int n = 0; n < kVectors; ++n) largest[n] = V::set(kNoScore);
  score_keys<V, kVectors>(block, scores, largest);

  const Float to_log2 = V::set(block.scale->to_log2);
  Float top[kVectors];
  Float keep[kVectors];
  Float total[kVectors];
  for (int n = 0; n < kVectors; ++n) {
    const Float old = V::load(state.top + n * V::kLanes);
    top[n] = V::max(old, V::mul(largest[n], to_log2));
    keep[n] = V::exp2(V::sub(old, top[n]));
    total[n] = V::zero();
    V::store(state.top + n * V::kLanes, top[n]);
  }
  for (std::int64_t k = 0; k < block.num_keys; ++k) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      float* at = scores + k * kWidth + n * V::kLanes;
      const Float weight = V::exp2(V::fms(V::load(at), to_log2, top[n]));
      V::store(at, weight);
      total[n] = V::add(total[n], weight);
    }
  }
  for (int n = 0; n < kVectors; ++n) {
    float* sum = state.sum + n * V::kLanes;
    V::store(sum, V::fma(V::load(sum), keep[n], total[n]));
  }
  for (std::int64_t d = 0; d < value_dim; d += V::kProductRows) {
    product<V, V::kProductRows, kVectors, AForm::kColumnMajor, Before::kLanes, false>(
        block.num_keys, values + d, value_stride, scores, kWidth, state.out + d * kWidth, kWidth,
        keep, nullptr);
  }
}

template <class V>
inline void start_panels(const ForwardTask& task, const ScoreScale& scale, ForwardWork<V>& work) {
  const std::int32_t heads = task.params->q_heads / task.params->kv_heads;
  for (std::int64_t p = 0; p < task.num_panels; ++p) {
    ForwardPanel& state = work.panels[p];
    state.panel = task.grid->panel(task.first_panel + p);
    const std::int64_t width = std::int64_t{state.panel.vectors} * V::kLanes;
    const PanelRows rows{state.panel.first_row, state.panel.num_rows,
                         state.panel.vectors,   heads,
                         task.kv_head * heads,  nullptr};
    pack_panel<V>(task.tiles[0].q_NHD, rows, scale.query_factor, state.queries, nullptr,
                  work.query_stride);
    for (std::int64_t i = 0; i < work.value_stride * width; i += V::kLanes) {
      V::store(state.out + i, V::zero());
    }
    for (std::int64_t i = 0; i < width; ++i) {
      state.top[i] = kLeastTop;
      state.sum[i] = 0;
      state.tokens[i] =
          i < rows.num_rows ? static_cast<std::int32_t>((rows.first_row + i) / heads) : -1;
    }
  }
}

// One packed block of keys of one tile against all panels.
template <class V>
inline void forward_block(const ForwardTask& task, std::size_t tile, const KeySpan& keys,
                          const ScoreScale& scale, ForwardWork<V>& work) {
  const ForwardTile& t = task.tiles[tile];
  const PanelBands& bands = *task.bands[tile];
  const std::int64_t count = keys.end - keys.begin;
  pack_rows<V>(t.k_MHD, keys.begin, count, task.kv_head, work.keys, work.query_stride,
               V::kProductRows);
  pack_rows<V>(t.v_MHD, keys.begin, count, task.kv_head, work.values, work.value_stride, 0);
  for (std::int64_t p = 0; p < task.num_panels; ++p) {
    const ForwardPanel& state = work.panels[p];
    const auto steps = bands.steps(task.first_panel + p);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const PanelStep& step = steps[s];
      const std::int64_t begin = larger(step.begin, keys.begin);
      const std::int64_t end = smaller(step.end, keys.end);
      if (begin >= end) continue;
      ScoreBlock block;
      block.queries = state.queries;
      block.keys = work.keys + (begin - keys.begin) * work.query_stride;
      block.key_stride = work.query_stride;
      block.dim = task.params->head_dim;
      block.first_key = begin;
      block.num_keys = end - begin;
      block.full_begin = larger(step.full_begin, begin) - begin;
      block.full_end = smaller(step.full_end, end) - begin;
      block.bands = &bands;
      block.step = &step;
      block.tokens = state.tokens;
      block.scale = &scale;
      const float* values = work.values + (begin - keys.begin) * work.value_stride;
      const std::int64_t value_dim = task.params->value_dim;
      if (state.panel.vectors == 3) {
        forward_step<V, 3>(block, values, work.value_stride, value_dim, state, work.scores);
      } else if (state.panel.vectors == 2) {
        forward_step<V, 2>(block, values, work.value_stride, value_dim, state, work.scores);
      } else {
        forward_step<V, 1>(block, values, work.value_stride, value_dim, state, work.scores);
      }
    }
  }
}

// How a row's new result joins what its slot holds: slot = held·slot + fresh·new.
struct RowWeights {
  float fresh = 0;
  float held = 0;
  bool is_kept = false;  // the slot stays as it is
};

// Merges the log-sum-exp of a row into its slot; the slot's O counts only if its LSE is finite.
template <class V>
inline RowWeights merge_lse(float top, float sum, float& slot, bool init) {
  constexpr float kEmpty = kNoScore;
  const bool is_empty = sum == 0;
  const double lse = is_empty ? kEmpty : double{top} * double{kLn2} + std::log(double{sum});
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

// Stores kLanes elements, or as many as a row still has.
template <class V>
CONTEXTILE_INLINE void store_row_part(float* to, typename V::Float value, std::int64_t count) {
  if (count >= V::kLanes) {
    V::store(to, value);
    return;
  }
  float some[V::kLanes];
  V::store(some, value);
  for (std::int64_t i = 0; i < count; ++i) to[i] = some[i];
}
template <class V>
CONTEXTILE_INLINE typename V::Float load_row_part(const float* from, std::int64_t count) {
  if (count >= V::kLanes) return V::load(from);
  float some[V::kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) some[i] = from[i];
  return V::load(some);
}

template <class V>
[[gnu::noinline]] void finish_panel(const ForwardTask& task, const ForwardPanel& state) {
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

template <class V>
inline void run_forward(const ForwardTask& task, void* memory) {
  const ScoreScale scale(*task.params);
  ForwardWork<V> work(task, memory);
  start_panels<V>(task, scale, work);
  for (std::size_t tile = 0; tile < task.tiles.size(); ++tile) {
    const KeySpan all = meeting_keys(*task.bands[tile], task.first_panel, task.num_panels, 0,
                                     task.tiles[tile].k_MHD.tokens);
    for (std::int64_t begin = all.begin / V::kForwardKeys * V::kForwardKeys; begin < all.end;
         begin += V::kForwardKeys) {
      const KeySpan keys = meeting_keys(*task.bands[tile], task.first_panel, task.num_panels, begin,
                                        smaller(begin + V::kForwardKeys, all.end));
      if (keys.begin < keys.end) forward_block<V>(task, tile, keys, scale, work);
    }
  }
  for (std::int64_t p = 0; p < task.num_panels; ++p) finish_panel<V>(task, work.panels[p]);
}

template <class V>
inline std::size_t forward_workspace_bytes(const ForwardTask& task) {
  return ForwardWork<V>(task, nullptr).bytes;
}

}  // namespace contextile
