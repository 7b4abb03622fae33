// Backward on panels, keys outermost: every block of packed keys meets all panels of a task.
//
// Scores S[key][query] = K·Qᵀ and dP[key][query] = V·dOᵀ as in forward, then
//   P = exp(S - lse), dS = P ∘ (dP - delta), dV += P·dO, dK += dS·Q, dQ += dSᵀ·K,
// dQ and dK without the scale, which enters when they go to their slots.
#pragma once

#include <cstdint>

#include "runtime/simd_forward.h"
#include "runtime/simd_pack.h"
#include "runtime/simd_scores.h"
#include "runtime/simd_task.h"

namespace contextile {

struct BackwardPanel {
  Panel panel;
  float* query_columns = nullptr;  // [dim][width]
  float* query_rows = nullptr;     // [width][query stride]
  float* dout_columns = nullptr;   // [value dim][width]
  float* dout_rows = nullptr;      // [width][value stride]
  float* lse = nullptr;            // [width] in units of log2; inf: the row has no gradient
  float* delta = nullptr;          // [width]
  std::int32_t* tokens = nullptr;  // [width]
  float* dq = nullptr;             // [width][query stride], of the share
};

// What all shares of a task read.
template <class V>
struct PackedPanels {
  CONTEXTILE_INLINE PackedPanels(const BackwardTask& task, void* memory)
      : query_stride(round_up(task.params->head_dim, V::kLanes)),
        value_stride(round_up(task.params->value_dim, V::kLanes)) {
    constexpr std::int64_t kWidth = std::int64_t{kMaxPanelVectors} * V::kLanes;
    Carver carver(memory);
    for (std::int64_t p = 0; p < task.num_panels; ++p) {
      BackwardPanel& state = panels[p];
      state.panel = task.grid->panel(task.first_panel + p);
      state.query_columns = carver.take<float>(query_stride * kWidth);
      state.query_rows = carver.take<float>(query_stride * kWidth);
      state.dout_columns = carver.take<float>(value_stride * kWidth);
      state.dout_rows = carver.take<float>(value_stride * kWidth);
      state.lse = carver.take<float>(kWidth);
      state.delta = carver.take<float>(kWidth);
      state.tokens = carver.take<std::int32_t>(kWidth);
    }
    bytes = carver.used_bytes();
  }

  BackwardPanel panels[V::kBackwardPanels];
  std::int64_t query_stride;
  std::int64_t value_stride;
  std::size_t bytes;
};

// What a share has for itself.
template <class V>
struct BackwardWork {
  CONTEXTILE_INLINE BackwardWork(const BackwardTask& task, void* memory)
      : packed(task, task.packed),
        query_stride(packed.query_stride),
        value_stride(packed.value_stride) {
    constexpr std::int64_t kWidth = std::int64_t{kMaxPanelVectors} * V::kLanes;
    Carver carver(memory);
    float* const own_dq =
        carver.take<float>(task.dq_share == nullptr ? task.num_panels * query_stride * kWidth : 0);
    dq = task.dq_share == nullptr ? own_dq : task.dq_share;
    for (std::int64_t p = 0; p < task.num_panels; ++p) {
      packed.panels[p].dq = dq + p * query_stride * kWidth;
    }
    std::int64_t most_keys = 0;
    for (std::size_t t = 0; t < task.tiles.size(); ++t) {
      most_keys = larger(most_keys, task.tiles[t].k_MHD.tokens);
    }
    const std::int64_t rows =
        round_up(smaller(most_keys, V::kBackwardKeys), V::kProductRows) + V::kProductRows;
    keys = carver.take<float>(rows * query_stride);
    values = carver.take<float>(rows * value_stride);
    dk = carver.take<float>(rows * query_stride);
    dv = carver.take<float>(rows * value_stride);
    weights = carver.take<float>(rows * kWidth);
    slopes = carver.take<float>(rows * kWidth);
    bytes = carver.used_bytes();
  }

  PackedPanels<V> packed;
  std::int64_t query_stride;
  std::int64_t value_stride;
  float* dq;
  float* keys;
  float* values;
  float* dk;
  float* dv;
  float* weights;  // S, then P
  float* slopes;   // dP, then dS
  std::size_t bytes;
};

// S and dP of a step into P and dS.
template <class V, int kVectors>
inline void weigh_scores(const ScoreBlock& block, const BackwardPanel& state, float* weights,
                         float* slopes) {
  using Float = typename V::Float;
  constexpr std::int64_t kWidth = kVectors * V::kLanes;
  const Float to_log2 = V::set(block.scale->to_log2);
  Float lse[kVectors];
  Float delta[kVectors];
  for (int n = 0; n < kVectors; ++n) {
    lse[n] = V::load(state.lse + n * V::kLanes);
    delta[n] = V::load(state.delta + n * V::kLanes);
  }
  if (block.scale->into_cap != 0) {  // dS times 1 - (capped score / cap)²
    const Float out_of_cap = V::set(1 / block.scale->cap_log2);
    for (std::int64_t k = 0; k < block.num_keys; ++k) {
      for (int n = 0; n < kVectors; ++n) {
        const std::int64_t at = k * kWidth + n * V::kLanes;
        const Float score = V::load(weights + at);
        const Float t = V::max(V::mul(score, out_of_cap), V::set(-1.0F));  // -inf where masked
        const Float weight = V::exp2(V::sub(score, lse[n]));
        const Float slope = V::mul(weight, V::sub(V::load(slopes + at), delta[n]));
        V::store(weights + at, weight);
        V::store(slopes + at, V::mul(slope, V::sub(V::set(1.0F), V::mul(t, t))));
      }
    }
    return;
  }
  for (std::int64_t k = 0; k < block.num_keys; ++k) {
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
      const std::int64_t at = k * kWidth + n * V::kLanes;
      const Float weight = V::exp2(V::fms(V::load(weights + at), to_log2, lse[n]));
      V::store(weights + at, weight);
      V::store(slopes + at, V::mul(weight, V::sub(V::load(slopes + at), delta[n])));
    }
  }
}

template <class V, int kVectors>
inline void backward_step(const BackwardTask& task, const ScoreBlock& block,
                          const BackwardPanel& state, std::int64_t first_row,
                          BackwardWork<V>& work) {
  using Float = typename V::Float;
  constexpr std::int64_t kWidth = kVectors * V::kLanes;
  Float unused[kVectors];
  for (int n = 0; n < kVectors; ++n) unused[n] = V::zero();
  score_keys<V, kVectors>(block, work.weights, unused);
  const float* values = work.values + first_row * work.value_stride;
  for (std::int64_t row = 0; row < block.num_keys; row += V::kProductRows) {
    product<V, V::kProductRows, kVectors, AForm::kRowMajor, Before::kZero, false>(
        task.params->value_dim, values + row * work.value_stride, work.value_stride,
        state.dout_columns, kWidth, work.slopes + row * kWidth, kWidth, nullptr, nullptr);
  }
  weigh_scores<V, kVectors>(block, state, work.weights, work.slopes);
  add_product<V, AForm::kRowMajor>(block.num_keys, work.value_stride, kWidth, work.weights, kWidth,
                                   state.dout_rows, work.value_stride,
                                   work.dv + first_row * work.value_stride, work.value_stride);
  add_product<V, AForm::kRowMajor>(block.num_keys, work.query_stride, kWidth, work.slopes, kWidth,
                                   state.query_rows, work.query_stride,
                                   work.dk + first_row * work.query_stride, work.query_stride);
  add_product<V, AForm::kColumnMajor>(kWidth, work.query_stride, block.num_keys, work.slopes,
                                      kWidth, block.keys, work.query_stride, state.dq,
                                      work.query_stride);
}

template <class V>
CONTEXTILE_INLINE void clear(float* at, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; i += V::kLanes) V::store(at + i, V::zero());
}

template <class V>
inline void pack_backward(const BackwardTask& task, std::int64_t first, std::int64_t count) {
  const ScoreScale scale(*task.params);
  const PackedPanels<V> packed(task, task.packed);
  const BackwardTile& tile = task.tiles[0];
  const std::int32_t heads = task.params->q_heads / task.params->kv_heads;
  for (std::int64_t p = first; p < first + count; ++p) {
    const BackwardPanel& state = packed.panels[p];
    const std::int64_t width = std::int64_t{state.panel.vectors} * V::kLanes;
    char keep[kMaxPanelVectors * V::kLanes];
    std::int64_t token = state.panel.first_row / heads;
    std::int64_t head = state.panel.first_row % heads;
    for (std::int64_t i = 0; i < width; ++i) {
      const std::int64_t q_head = task.kv_head * heads + head;
      const bool is_row = i < state.panel.num_rows;
      const RowStats& lses = tile.lse_NH;
      const RowStats& deltas = tile.delta_NH;
      const float lse =
          is_row ? lses.data[token * lses.token_stride + q_head * lses.head_stride] : kNoScore;
      keep[i] = lse == kNoScore ? 0 : 1;
      state.lse[i] = keep[i] == 0 ? -kNoScore : lse * kLog2E;
      state.delta[i] =
          keep[i] == 0 ? 0 : deltas.data[token * deltas.token_stride + q_head * deltas.head_stride];
      state.tokens[i] = is_row ? static_cast<std::int32_t>(token) : -1;
      if (++head == heads) {
        head = 0;
        ++token;
      }
    }
    const PanelRows rows{state.panel.first_row, state.panel.num_rows,
                         state.panel.vectors,   heads,
                         task.kv_head * heads,  keep};
    pack_panel<V>(tile.q_NHD, rows, scale.query_factor, state.query_columns, state.query_rows,
                  packed.query_stride);
    pack_panel<V>(tile.do_NHD, rows, 1.0F, state.dout_columns, state.dout_rows,
                  packed.value_stride);
  }
}

// slot += factor · rows, for rows [first, first + count) of a head.
template <class V>
inline void add_to_slot(const TensorView& slot, std::int64_t first, std::int64_t count,
                        std::int64_t head, const float* rows, std::int64_t stride, float factor) {
  const auto factors = V::set(factor);
  for (std::int64_t n = 0; n < count; ++n) {
    float* to =
        static_cast<float*>(slot.data) + (first + n) * slot.token_stride + head * slot.head_stride;
    for (std::int64_t d = 0; d < slot.dim; d += V::kLanes) {
      const auto value =
          V::fma(factors, V::load(rows + n * stride + d), load_row_part<V>(to + d, slot.dim - d));
      store_row_part<V>(to + d, value, slot.dim - d);
    }
  }
}

template <class V>
inline void backward_block(const BackwardTask& task, std::size_t tile, const KeySpan& keys,
                           const ScoreScale& scale, BackwardWork<V>& work) {
  const BackwardTile& t = task.tiles[tile];
  const PanelBands& bands = *task.bands[tile];
  const std::int64_t count = keys.end - keys.begin;
  pack_rows<V>(t.k_MHD, keys.begin, count, task.kv_head, work.keys, work.query_stride,
               V::kProductRows);
  pack_rows<V>(t.v_MHD, keys.begin, count, task.kv_head, work.values, work.value_stride,
               V::kProductRows);
  clear<V>(work.dk, count * work.query_stride);
  clear<V>(work.dv, count * work.value_stride);
  for (std::int64_t p = 0; p < task.num_panels; ++p) {
    const BackwardPanel& state = work.packed.panels[p];
    const auto steps = bands.steps(task.first_panel + p);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const PanelStep& step = steps[s];
      const std::int64_t begin = larger(step.begin, keys.begin);
      const std::int64_t end = smaller(step.end, keys.end);
      if (begin >= end) continue;
      ScoreBlock block;
      block.queries = state.query_columns;
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
      if (state.panel.vectors == 3) {
        backward_step<V, 3>(task, block, state, begin - keys.begin, work);
      } else if (state.panel.vectors == 2) {
        backward_step<V, 2>(task, block, state, begin - keys.begin, work);
      } else {
        backward_step<V, 1>(task, block, state, begin - keys.begin, work);
      }
    }
  }
  add_to_slot<V>(t.dk_MHD, keys.begin, count, task.kv_head, work.dk, work.query_stride,
                 scale.magnitude);
  add_to_slot<V>(t.dv_MHD, keys.begin, count, task.kv_head, work.dv, work.value_stride, 1.0F);
}

// dQ of the task's panels to its slot: the sum over shares, in order, times the scale. A share
// holds panel after panel [kMaxPanelVectors · kLanes][query stride].
template <class V>
inline void write_dq(const BackwardTask& task, const float* const* shares, std::size_t num_shares) {
  const TensorView& slot = task.tiles[0].dq_NHD;
  const std::int64_t stride = round_up(task.params->head_dim, V::kLanes);
  const std::int64_t heads = task.params->q_heads / task.params->kv_heads;
  const auto scale = V::set(task.params->scale);
  for (std::int64_t p = 0; p < task.num_panels; ++p) {
    const Panel panel = task.grid->panel(task.first_panel + p);
    for (std::int64_t i = 0; i < panel.num_rows; ++i) {
      const std::int64_t flat = panel.first_row + i;
      float* to = static_cast<float*>(slot.data) + flat / heads * slot.token_stride +
                  (task.kv_head * heads + flat % heads) * slot.head_stride;
      const std::int64_t row = (p * kMaxPanelVectors * V::kLanes + i) * stride;
      for (std::int64_t d = 0; d < slot.dim; d += V::kLanes) {
        auto sum = V::load(shares[0] + row + d);
        for (std::size_t s = 1; s < num_shares; ++s) {
          sum = V::add(sum, V::load(shares[s] + row + d));
        }
        const auto held = task.init_dq ? V::zero() : load_row_part<V>(to + d, slot.dim - d);
        store_row_part<V>(to + d, V::fma(scale, sum, held), slot.dim - d);
      }
    }
  }
}

template <class V>
inline void run_backward(const BackwardTask& task, void* memory) {
  const ScoreScale scale(*task.params);
  BackwardWork<V> work(task, memory);
  constexpr std::int64_t kWidth = std::int64_t{kMaxPanelVectors} * V::kLanes;
  clear<V>(work.dq, task.num_panels * kWidth * work.query_stride);
  std::int64_t block = 0;
  for (std::size_t tile = 0; tile < task.tiles.size(); ++tile) {
    const std::int64_t num_keys = task.tiles[tile].k_MHD.tokens;
    for (std::int64_t begin = 0; begin < num_keys; begin += V::kBackwardKeys, ++block) {
      if (block < task.first_block || block >= task.first_block + task.num_blocks) continue;
      const KeySpan keys = meeting_keys(*task.bands[tile], task.first_panel, task.num_panels, begin,
                                        smaller(begin + V::kBackwardKeys, num_keys));
      if (keys.begin < keys.end) backward_block<V>(task, tile, keys, scale, work);
    }
  }
  if (task.dq_share == nullptr) write_dq<V>(task, &work.dq, 1);
}

template <class V>
inline std::size_t packed_bytes(const BackwardTask& task) {
  return PackedPanels<V>(task, nullptr).bytes;
}

template <class V>
inline std::size_t backward_workspace_bytes(const BackwardTask& task) {
  return BackwardWork<V>(task, nullptr).bytes;
}

template <class V>
inline std::int64_t dq_elements(const BackwardTask& task) {
  return task.num_panels * kMaxPanelVectors * V::kLanes *
         round_up(task.params->head_dim, V::kLanes);
}

template <class V>
inline void add_shares(const BackwardTask& task, std::span<const float* const> shares) {
  write_dq<V>(task, shares.data(), shares.size());
}

// The table of a vector class.
template <class V>
constexpr SimdTarget make_target(const char* name) {
  return {name,
          V::kLanes,
          V::kForwardPanels,
          V::kBackwardPanels,
          V::kBackwardKeys,
          &forward_workspace_bytes<V>,
          &run_forward<V>,
          &packed_bytes<V>,
          &pack_backward<V>,
          &backward_workspace_bytes<V>,
          &run_backward<V>,
          &dq_elements<V>,
          &add_shares<V>};
}

}  // namespace contextile
