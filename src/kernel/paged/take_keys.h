// Attention to one chunk of keys. Include this only from the file of an instruction set.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernel/cpu/inline.h"
#include "kernel/paged/cached_rows.h"
#include "kernel/paged/paged_target.h"
#include "kernel/paged/row_panels.h"

namespace contextile {

template <class V, KvDtype dtype>
struct ChunkOfKeys {
  const PagedParams& params;
  const PagedKv& kv;
  const PagedShape& shape;
  const PagedChunk& chunk;
  const PagedWorkspace& work;

  static constexpr std::int32_t kBytes = static_cast<std::int32_t>(bytes_per_element(dtype));
  [[nodiscard]] CONTEXTILE_INLINE static std::ptrdiff_t offset_of(const PagedTensor& tensor,
                                                                  std::int32_t head) {
    return static_cast<std::ptrdiff_t>(head) * tensor.head_stride * kBytes;
  }

  [[nodiscard]] CONTEXTILE_INLINE int last(int j) const {
    return j < chunk.keys->count ? j : chunk.keys->count - 1;
  }

  // Finds what is read after `num` keys from `first` on, or after their values: those of as many
  // keys behind them.
  void find_ahead(bool of_values, std::int32_t head, int first, int num,
                  const std::byte** ahead) const {
    const std::ptrdiff_t offset = offset_of(of_values ? kv.v : kv.k, head);
    const PagedKeys& keys = *chunk.keys;
    const PagedKeys& next = *chunk.next;
    for (int j = 0; j < num; ++j) {
      const int at = first + num + j;
      const int behind = at - keys.count < next.count ? at - keys.count : next.count - 1;
      const std::byte* of_key = at < keys.count ? (of_values ? keys.v : keys.k)[at]
                                                : (of_values ? next.v : next.k)[behind];
      ahead[j] = of_key + offset;
    }
  }

  [[nodiscard]] float* scores_of(const PagedPanel& panel, std::int32_t head) const {
    return work.scores +
           (static_cast<std::ptrdiff_t>(head) * shape.padded_rows + panel.first) * kPagedChunk;
  }

  // Cached floats are read in place by few rows. With more rows it pays to have them side by side.
  [[nodiscard]] bool keys_are_floats() const {
    return dtype == KvDtype::kF32 && kv.k.dim == shape.padded_head_dim &&
           shape.padded_rows <= kPagedRows;
  }
  [[nodiscard]] bool values_are_floats() const {
    return dtype == KvDtype::kF32 && kv.v.dim == shape.padded_value_dim &&
           shape.padded_rows <= kPagedRows;
  }

  // Panels of four rows need no floats in memory.
  [[nodiscard]] bool has_four_rows(const PagedTensor& tensor) const {
    return is_plain<V>(shape.panels[0]) && tensor.dim % kPagedGroup == 0;
  }

  // Scores kLanes keys from `first` on by FourRows.
  void score_four_rows(std::int32_t head, int first) const {
    if constexpr (V::kLanes == 16) {
      const std::ptrdiff_t offset = offset_of(kv.k, head);
      const std::byte* keys[V::kLanes];
      const std::byte* ahead[V::kLanes];
      for (int j = 0; j < V::kLanes; ++j) keys[j] = chunk.keys->k[last(first + j)] + offset;
      find_ahead(false, head, first, V::kLanes, ahead);
      Fetch fetch = {ahead, kBytes};
      for (int j = 0; j < V::kLanes; j += 4) {
        fetch.element_bytes = kBytes;
        for (std::int32_t p = 0; p < shape.num_panels; ++p) {
          const PagedPanel& panel = shape.panels[p];
          const float* q =
              work.q + (static_cast<std::ptrdiff_t>(head) * shape.padded_rows + panel.first) *
                           static_cast<std::ptrdiff_t>(shape.padded_head_dim);
          float* scores = scores_of(panel, head) + (first + j) * kPagedRows;
          FourRows<V, dtype>::score(q, keys + j, shape.padded_head_dim, fetch, j, scores);
          fetch.element_bytes = 0;
        }
      }
    }
  }

  // Adds the weighted values of `count` keys from `first` on by FourRows.
  void add_four_rows(std::int32_t head, int first, int count) const {
    if constexpr (V::kLanes == 16) {
      const std::ptrdiff_t offset = offset_of(kv.v, head);
      const std::byte* values[kPagedChunk];
      const std::byte* ahead[kPagedChunk];
      find_ahead(true, head, first, count, ahead);
      for (int j = 0; j < count; ++j) values[j] = chunk.keys->v[first + j] + offset;
      for (std::int32_t d = 0; d < shape.padded_value_dim; d += kPagedGroup) {
        Fetch fetch = {ahead, shape.is_shared ? 0 : kBytes};
        for (std::int32_t p = 0; p < shape.num_panels; ++p) {
          FourRows<V, dtype>::add(sums_of(shape.panels[p], head, first, d), values, count, fetch);
          fetch.element_bytes = 0;
        }
        for (int j = 0; j < count; ++j) {
          values[j] += kPagedGroup * kBytes;
          ahead[j] += kPagedGroup * kBytes;
        }
      }
    }
  }

  // Scores four keys for the last four rows of many, or for four rows of odd dims.
  static void score_floats(const float* q, const float* const* keys, std::int32_t dim,
                           float* scores) {
    typename V::Float sums[V::kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < V::kLanes; ++i) sums[i] = V::zero();
    for (std::int32_t d = 0; d < dim; d += V::kLanes) {
#pragma GCC unroll 4
      for (int r = 0; r < 4; ++r) {
        const typename V::Float row = V::load(q + static_cast<std::ptrdiff_t>(r) * dim + d);
#pragma GCC unroll 4
        for (int j = 0; j < V::kLanes / 4; ++j) {
          sums[r * 4 + j] = V::fma(row, V::load(keys[j] + d), sums[r * 4 + j]);
        }
      }
    }
    V::store(scores, V::sum_each(sums));
  }

  // Scores kLanes keys from `first` on.
  void score_tile(std::int32_t head, int first) const {
    if (has_four_rows(kv.k)) return score_four_rows(head, first);
    const std::int32_t dim = shape.padded_head_dim;
    const std::ptrdiff_t offset = offset_of(kv.k, head);
    const float* keys[V::kLanes];
    if (keys_are_floats()) {
      for (int j = 0; j < V::kLanes; ++j) {
        keys[j] = reinterpret_cast<const float*>(chunk.keys->k[last(first + j)] + offset);
      }
    } else {
      float* tile = work.tile + (shape.is_shared ? static_cast<std::ptrdiff_t>(first) * dim : 0);
      for (int j = 0; j < V::kLanes; ++j, tile += dim) {
        widen_row<V, dtype>(chunk.keys->k[last(first + j)] + offset, kv.k.dim, 0, dim, tile);
        keys[j] = tile;
      }
    }
    const std::byte* ahead[V::kLanes];
    find_ahead(false, head, first, V::kLanes, ahead);
    Fetch fetch = {ahead, kBytes};
    for (std::int32_t p = 0; p < shape.num_panels; ++p) {
      const PagedPanel& panel = shape.panels[p];
      const float* q =
          work.q + (static_cast<std::ptrdiff_t>(head) * shape.padded_rows + panel.first) *
                       static_cast<std::ptrdiff_t>(dim);
      float* scores = scores_of(panel, head) + first * panel.rows;
      if constexpr (V::kLanes == 16) {
        if (is_plain<V>(panel)) {
          for (int j = 0; j < V::kLanes; j += 4) {
            score_floats(q, keys + j, dim, scores + j * kPagedRows);
          }
          continue;
        }
      }
      with_panel<V>(panel, [&](auto kind) CONTEXTILE_INLINE_LAMBDA {
        for (int j = 0; j < V::kLanes; j += kind.kTile) {
          kind.score(q, keys + j, dim, fetch, j, scores + j * kind.kRows);
        }
      });
      fetch.element_bytes = 0;
    }
  }

  // Applies the softcap and sets the scores of keys that are not seen or absent to -inf.
  void finish_scores(const PagedPanel& panel, std::int32_t head, int padded_count) const {
    float* scores = scores_of(panel, head);
    const auto at = [&](std::int32_t r, int j) -> float& {
      return scores[j / panel.keys * panel.lanes() + r * panel.keys + j % panel.keys];
    };
    const int count = chunk.keys->count;
    if (params.softcap != 0) {
      const float cap = params.softcap * 1.4426950408889634F;
      for (int i = 0; i < padded_count * panel.rows; ++i) {
        scores[i] = cap * ::tanhf(scores[i] / cap);
      }
    }
    for (std::int32_t r = 0; r < panel.rows; ++r) {
      for (int j = count; j < padded_count; ++j) at(r, j) = kNothing;
      if (chunk.seen == nullptr || panel.first + r >= shape.rows_of_head) continue;
      const std::int32_t query = (panel.first + r) / (shape.rows_of_head / chunk.num_queries);
      for (int j = 0; j < count; ++j) {
        if (chunk.seen[j * chunk.num_queries + query] == 0) at(r, j) = kNothing;
      }
    }
  }

  void weigh(std::int32_t head) const {
    for (std::int32_t p = 0; p < shape.num_panels; ++p) {
      const PagedPanel& panel = shape.panels[p];
      const int count = (chunk.keys->count + panel.keys - 1) / panel.keys * panel.keys;
      if (params.softcap != 0 || chunk.seen != nullptr || count != chunk.keys->count) {
        finish_scores(panel, head, count);
      }
      float* scores = scores_of(panel, head);
      const std::ptrdiff_t lane =
          static_cast<std::ptrdiff_t>(head) * shape.lanes_of_head + panel.first_lane;
      float* top = work.top + lane;
      float* sum = work.sum + lane;
      float* shrink = work.shrink + lane;
      with_panel<V>(panel, [&](auto kind) CONTEXTILE_INLINE_LAMBDA {
        kind.weigh(scores, count, top, sum, shrink);
      });
    }
  }

  // Rows of a panel and where their outputs, weights of the keys from `first` on, and factors are.
  // After the first keys, sums do not shrink again.
  [[nodiscard]] RowSums sums_of(const PagedPanel& panel, std::int32_t head, int first,
                                std::int32_t d) const {
    const std::ptrdiff_t row = static_cast<std::ptrdiff_t>(head) * shape.padded_rows + panel.first;
    const std::ptrdiff_t lane =
        static_cast<std::ptrdiff_t>(head) * shape.lanes_of_head + panel.first_lane;
    return {work.out + row * shape.padded_value_dim + d, shape.padded_value_dim,
            scores_of(panel, head) + first * panel.rows, work.shrink + lane};
  }

  // Finds the floats of values, elements [d, d + size) of `count` keys from `first` on.
  CONTEXTILE_INLINE void find_values(std::int32_t head, int first, int count, std::int32_t d,
                                     std::int32_t size, const float** values) const {
    const std::ptrdiff_t offset = offset_of(kv.v, head);
    if (values_are_floats()) {
      for (int j = 0; j < count; ++j) {
        values[j] = reinterpret_cast<const float*>(chunk.keys->v[first + j] + offset) + d;
      }
    } else if (shape.is_shared && !keys_are_floats()) {
      for (int j = 0; j < count; ++j) {
        values[j] = work.tile + static_cast<std::ptrdiff_t>(first + j) * shape.padded_head_dim + d;
      }
    } else {
      for (int j = 0; j < count; ++j) {
        float* to = work.tile + static_cast<std::ptrdiff_t>(j) * kPagedGroup;
        widen_row<V, dtype>(chunk.keys->v[first + j] + offset, kv.v.dim, d, d + size, to);
        values[j] = to;
      }
    }
  }

  // Adds the weighted values of `count` keys from `first` on to the outputs, kPagedGroup dims at a
  // time.
  void add(std::int32_t head, int first, int count) const {
    if (has_four_rows(kv.v)) return add_four_rows(head, first, count);
    const float* values[kPagedChunk];
    const std::byte* ahead[kPagedChunk];
    if (!shape.is_shared) find_ahead(true, head, first, count, ahead);
    for (std::int32_t d = 0; d < shape.padded_value_dim; d += kPagedGroup) {
      Fetch fetch = {ahead, shape.is_shared ? 0 : kBytes};
      const std::int32_t rest = shape.padded_value_dim - d;
      const std::int32_t size = rest < kPagedGroup ? rest : kPagedGroup;
      find_values(head, first, count, d, size, values);
      for (std::int32_t p = 0; p < shape.num_panels; ++p) {
        const RowSums sums = sums_of(shape.panels[p], head, first, d);
        with_panel<V>(shape.panels[p], [&](auto kind) CONTEXTILE_INLINE_LAMBDA {
          kind.add_values(sums, values, size, count, fetch);
        });
        fetch.element_bytes = 0;
      }
      for (int j = 0; j < count && !shape.is_shared; ++j) ahead[j] += kPagedGroup * kBytes;
    }
  }

  // Does the same as `add` if some rows do not see all keys. To each row only the keys that it sees
  // are added, because the others may be NaN.
  void add_seen(std::int32_t head) const {
    const std::ptrdiff_t offset = offset_of(kv.v, head);
    const std::int32_t dim = shape.padded_value_dim;
    for (std::int32_t p = 0; p < shape.num_panels; ++p) {
      const PagedPanel& panel = shape.panels[p];
      for (std::int32_t r = 0; r < panel.rows && panel.first + r < shape.rows_of_head; ++r) {
        RowSums sums = sums_of(panel, head, 0, 0);
        sums.out += r * sums.stride;
        sums.weights += r * panel.keys;
        sums.shrink += r * panel.keys;
        const std::int32_t query = (panel.first + r) / (shape.rows_of_head / chunk.num_queries);
        const typename V::Float shrink = V::set(*sums.shrink);
        for (std::int32_t d = 0; d < dim; d += V::kLanes) {
          V::store(sums.out + d, V::mul(V::load(sums.out + d), shrink));
        }
        for (int j = 0; j < chunk.keys->count; ++j) {
          if (chunk.seen[j * chunk.num_queries + query] == 0) continue;
          widen_row<V, dtype>(chunk.keys->v[j] + offset, kv.v.dim, 0, dim, work.tile);
          const typename V::Float weight =
              V::set(sums.weights[j / panel.keys * panel.lanes() + j % panel.keys]);
          for (std::int32_t d = 0; d < dim; d += V::kLanes) {
            V::store(sums.out + d, V::fma(weight, V::load(work.tile + d), V::load(sums.out + d)));
          }
        }
      }
    }
  }

  // Keys and values are read in the order of memory if the heads of a token lie side by side: few
  // tokens of all heads at a time.
  void take() const {
    const int count = chunk.keys->count;
    for (int first = 0; first < count; first += V::kLanes) {
      for (std::int32_t head = 0; head < shape.kv_heads; ++head) score_tile(head, first);
    }
    for (std::int32_t head = 0; head < shape.kv_heads; ++head) weigh(head);
    if (chunk.seen != nullptr) {
      for (std::int32_t head = 0; head < shape.kv_heads; ++head) add_seen(head);
      return;
    }
    const int most = shape.kv_heads == 1 ? kPagedChunk : kPagedValues;
    for (int first = 0; first < count; first += most) {
      const int some = count - first < most ? count - first : most;
      for (std::int32_t head = 0; head < shape.kv_heads; ++head) add(head, first, some);
      if (first + some == count) break;
      const std::int32_t lanes = shape.kv_heads * shape.lanes_of_head;
      for (std::int32_t i = 0; i < lanes; ++i) work.shrink[i] = 1;
    }
  }
};

template <class V>
void take_keys(const PagedParams& params, const PagedKv& kv, const PagedShape& shape,
               const PagedChunk& chunk, const PagedWorkspace& work) {
  switch (kv.dtype) {
    case KvDtype::kF32:
      return ChunkOfKeys<V, KvDtype::kF32>{params, kv, shape, chunk, work}.take();
    case KvDtype::kBf16:
      return ChunkOfKeys<V, KvDtype::kBf16>{params, kv, shape, chunk, work}.take();
    case KvDtype::kF16:
      return ChunkOfKeys<V, KvDtype::kF16>{params, kv, shape, chunk, work}.take();
    case KvDtype::kFp8:
      return ChunkOfKeys<V, KvDtype::kFp8>{params, kv, shape, chunk, work}.take();
    case KvDtype::kInt8:
      return ChunkOfKeys<V, KvDtype::kInt8>{params, kv, shape, chunk, work}.take();
  }
}

template <class V>
float factor_of(KvDtype dtype) {
  return V::factor(dtype);
}

template <class V>
constexpr PagedTarget make_paged_target(const char* name) {
  return {name, V::kLanes, &element_at<V>, &factor_of<V>, &take_keys<V>};
}

}  // namespace contextile
