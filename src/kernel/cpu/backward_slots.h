// The slots of fp32 rows that backward reads and adds to.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernel/cpu/pack.h"
#include "kernel/cpu/scores.h"
#include "kernel/cpu/task.h"

namespace contextile {

template <class V>
CONTEXTILE_INLINE void clear(float* at, std::int64_t elements) {
  for (std::int64_t i = 0; i < elements; i += V::kLanes) V::store(at + i, V::zero());
}

// Statistics of the rows of a panel, by row.
struct RowStatArrays {
  float* lse = nullptr;  // in units of log2; inf for rows without a gradient
  float* delta = nullptr;
  std::int32_t* tokens = nullptr;  // -1 beyond the panel's rows
  char* keep = nullptr;            // 0 for rows without a gradient
};

// Reads the statistics of a panel's rows. Rows without a gradient get weights of 0.
template <class V>
inline void load_row_stats(const BackwardTile& tile, const Panel& panel, std::int64_t heads,
                           std::int64_t first_head, const RowStatArrays& to) {
  const RowStats& lses = tile.lse_NH;
  const RowStats& deltas = tile.delta_NH;
  std::int64_t token = panel.first_row / heads;
  std::int64_t head = panel.first_row % heads;
  for (std::int64_t i = 0; i < std::int64_t{panel.vectors} * V::kLanes; ++i) {
    const std::int64_t q_head = first_head + head;
    const bool is_row = i < panel.num_rows;
    const float lse =
        is_row ? lses.data[token * lses.token_stride + q_head * lses.head_stride] : kNoScore;
    const bool has_gradient = lse != kNoScore;
    to.keep[i] = has_gradient ? 1 : 0;
    to.lse[i] = has_gradient ? lse * kLog2E : -kNoScore;
    to.delta[i] =
        has_gradient ? deltas.data[token * deltas.token_stride + q_head * deltas.head_stride] : 0;
    to.tokens[i] = is_row ? static_cast<std::int32_t>(token) : -1;
    if (++head == heads) {
      head = 0;
      ++token;
    }
  }
}

// Adds factor · rows to a slot, for rows [first, first + count) of a head.
template <class V>
[[gnu::noinline]] void add_to_slot(const TensorView& slot, std::int64_t first, std::int64_t count,
                                   std::int64_t head, const float* rows, std::int64_t stride,
                                   float factor) {
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

// Writes dQ of the task's panels to its slot: the sum over shares, in order, times the scale. A
// share holds panel after panel, each [kMaxPanelVectors · kLanes][row stride].
template <class V>
[[gnu::noinline]] void write_dq(const BackwardTask& task, const float* const* shares,
                                std::size_t num_shares) {
  const TensorView& slot = task.tiles[0].dq_NHD;
  const std::int64_t stride = row_stride<V>(task.params->head_dim);
  const std::int64_t heads = task.params->q_heads / task.params->kv_heads;
  const auto scale = V::set(task.params->scale);
  for (std::int64_t p = 0; p < task.num_panels; ++p) {
    const Panel panel = task.grid->panel(task.first_panel + p);
    std::int64_t token = panel.first_row / heads;
    std::int64_t head = panel.first_row % heads;
    for (std::int64_t i = 0; i < panel.num_rows; ++i) {
      float* to = static_cast<float*>(slot.data) + token * slot.token_stride +
                  (task.kv_head * heads + head) * slot.head_stride;
      const std::int64_t row = (p * kMaxPanelVectors * V::kLanes + i) * stride;
      for (std::int64_t d = 0; d < slot.dim; d += V::kLanes) {
        auto sum = V::load(shares[0] + row + d);
        for (std::size_t s = 1; s < num_shares; ++s) {
          sum = V::add(sum, V::load(shares[s] + row + d));
        }
        const auto held = task.init_dq ? V::zero() : load_row_part<V>(to + d, slot.dim - d);
        store_row_part<V>(to + d, V::fma(scale, sum, held), slot.dim - d);
      }
      if (++head == heads) {
        head = 0;
        ++token;
      }
    }
  }
}

// Does the same for panels that hold dQ transposed, [row stride][width of the panel].
template <class V>
[[gnu::noinline]] void write_dq_columns(const BackwardTask& task, const float* const* shares,
                                        std::size_t num_shares) {
  const TensorView& slot = task.tiles[0].dq_NHD;
  const std::int64_t stride = row_stride<V>(task.params->head_dim);
  const std::int64_t heads = task.params->q_heads / task.params->kv_heads;
  const auto scale = V::set(task.params->scale);
  for (std::int64_t p = 0; p < task.num_panels; ++p) {
    const Panel panel = panel_of_grid<V>(*task.grid, task.first_panel + p);
    const std::int64_t width = std::int64_t{panel.vectors} * V::kLanes;
    std::int64_t token = panel.first_row / heads;
    std::int64_t head = panel.first_row % heads;
    for (std::int64_t first = 0; first < panel.num_rows; first += V::kLanes) {
      const std::int64_t count = smaller(V::kLanes, panel.num_rows - first);
      float* rows[V::kLanes];
      for (std::int64_t i = 0; i < count; ++i) {
        rows[i] = static_cast<float*>(slot.data) + token * slot.token_stride +
                  (task.kv_head * heads + head) * slot.head_stride;
        if (++head == heads) {
          head = 0;
          ++token;
        }
      }
      for (std::int64_t d = 0; d < slot.dim; d += V::kLanes) {
        typename V::Float block[V::kLanes];
        for (int i = 0; i < V::kLanes; ++i) {
          const std::int64_t at = p * kPanelWidth<V> * stride + (d + i) * width + first;
          block[i] = V::load(shares[0] + at);
          for (std::size_t s = 1; s < num_shares; ++s) {
            block[i] = V::add(block[i], V::load(shares[s] + at));
          }
        }
        V::transpose(block);
        for (std::int64_t i = 0; i < count; ++i) {
          const auto held = task.init_dq ? V::zero() : load_row_part<V>(rows[i] + d, slot.dim - d);
          store_row_part<V>(rows[i] + d, V::fma(scale, block[i], held), slot.dim - d);
        }
      }
    }
  }
}

}  // namespace contextile
