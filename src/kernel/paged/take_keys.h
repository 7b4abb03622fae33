// Attention to one chunk of keys. Include this only from the file of an instruction set.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernel/cpu/inline.h"
#include "kernel/paged/cached_rows.h"
#include "kernel/paged/few_rows.h"
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

  [[nodiscard]] float* scores_of(const PagedPanel& panel, std::int32_t head) const {
    return work.scores +
           (static_cast<std::ptrdiff_t>(head) * shape.padded_rows + panel.first) * kPagedChunk;
  }
  [[nodiscard]] const float* q_of(const PagedPanel& panel, std::int32_t head) const {
    return work.q + (static_cast<std::ptrdiff_t>(head) * shape.padded_rows + panel.first) *
                        static_cast<std::ptrdiff_t>(shape.padded_head_dim);
  }

  // Rows that are few all along need no floats in memory.
  [[nodiscard]] bool goes_by_few_rows(const PagedTensor& tensor) const {
    return shape.panels[0].keys > 1 && tensor.dim % kPagedGroup == 0;
  }

  // Number of keys of one head, at most `most`, that are read before those of the next one. The
  // heads of a token lie side by side, so few tokens of all heads are read in the order of memory.
  // They fit into the first-level cache with what is fetched and with queries or sums.
  [[nodiscard]] int keys_of_head(const PagedTensor& tensor, int most) const {
    constexpr std::int64_t kBytesOfHeads = 16384;
    const std::int64_t token = std::int64_t{shape.kv_heads} * tensor.dim * kBytes;
    int keys = most;
    while (keys > 4 && keys * token > kBytesOfHeads) keys /= 2;
    return keys;
  }

  // Number of keys that are scored at a time. All of them remain as floats if they are values, too.
  [[nodiscard]] int tile_keys() const {
    if (goes_by_few_rows(kv.k)) return keys_of_head(kv.k, kPagedTileKeys / 2);
    return shape.is_shared ? kPagedChunk : kPagedTileKeys;
  }

  // Number of values that are added at a time. Each time, the sums are read and written.
  [[nodiscard]] int tile_values() const {
    if (shape.is_shared || (goes_by_few_rows(kv.v) && shape.kv_heads == 1)) return kPagedChunk;
    if (!goes_by_few_rows(kv.v)) return kPagedValues;
    const int times = shape.padded_rows > kPagedRows ? 2 : 1;
    return times * keys_of_head(kv.v, kPagedTileKeys / times);
  }

  // Returns the rows that follow `num` keys, or their values.
  [[nodiscard]] FetchAhead ahead_of(const PagedTensor& tensor, const std::byte* const* tokens,
                                    int num) const {
    const std::byte* const* last = tokens + chunk.keys->count + kPagedChunk - 1;
    return {tokens + num, last, shape.kv_heads, offset_of(tensor, 1),
            std::ptrdiff_t{tensor.dim} * kBytes};
  }

  // Widens `num` elements from `begin` on, at most kPagedBlock, of `count` rows. Fetches a line of
  // `ahead` with each line.
  void widen(const PagedTensor& tensor, const std::byte* const* rows, std::int32_t head,
             std::int32_t begin, std::int32_t num, int count, FetchAhead& ahead, float* to) const {
    const std::ptrdiff_t offset = offset_of(tensor, head);
    for (int j = 0; j < count; ++j, to += kPagedBlock) {
      for (std::ptrdiff_t byte = 0; byte < std::ptrdiff_t{num} * kBytes;
           byte += FetchAhead::kLine) {
        ahead.fetch_lines<1>();
      }
      widen_row<V, dtype>(rows[j] + offset, tensor.dim, begin, begin + num, to);
    }
  }

  // Scores `count` keys of all heads from `first` on, rounded up to kTile of their panels.
  void score(int first, int count, FetchAhead& ahead) const {
    const std::byte* const* keys = chunk.keys->k + first;
    const std::int32_t dim = shape.padded_head_dim;
    if (!goes_by_few_rows(kv.k)) {
      for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
        score_floats(head, keys, first, count, ahead);
      }
      return;
    }
    for (std::int32_t p = 0; p < shape.num_panels; ++p) {
      const PagedPanel& panel = shape.panels[p];
      const HeadsOf<const float> q = {q_of(panel, 0), std::ptrdiff_t{shape.padded_rows} * dim,
                                      shape.kv_heads};
      const HeadsOf<float> scores = {scores_of(panel, 0) + first * panel.rows,
                                     std::ptrdiff_t{shape.padded_rows} * kPagedChunk,
                                     shape.kv_heads};
      with_few_rows<V>(panel, [&](auto rows) CONTEXTILE_INLINE_LAMBDA {
        FewRows<V, dtype, rows>::score_heads(q, dim, keys, offset_of(kv.k, 1), count, ahead,
                                             scores);
      });
    }
  }

  // Does the same by way of floats.
  void score_floats(std::int32_t head, const std::byte* const* keys, int first, int count,
                    FetchAhead& ahead) const {
    const std::ptrdiff_t stride = std::ptrdiff_t{tile_keys()} * kPagedBlock;
    const int padded = (count + V::kLanes - 1) / V::kLanes * V::kLanes;
    // Whole panels take longer than widening, so they fetch.
    FetchAhead nothing;
    FetchAhead& with_widening = shape.panels[0].keys == 1 ? nothing : ahead;
    for (std::int32_t d = 0; d < shape.padded_head_dim; d += kPagedBlock) {
      widen(kv.k, keys, head, d, block_at(d, shape.padded_head_dim), padded, with_widening,
            work.tile + d / kPagedBlock * stride);
    }
    for (std::int32_t p = 0; p < shape.num_panels; ++p) {
      const PagedPanel& panel = shape.panels[p];
      if (panel.keys > 1) {
        score_few_floats(panel, head, first, count, stride);
        continue;
      }
      float* scores = scores_of(panel, head) + first * panel.rows;
      with_whole_panel<V>(panel, [&](auto kind) CONTEXTILE_INLINE_LAMBDA {
        // All panels take as long as a line lasts for kTile keys.
        std::int32_t pause = 2;
        while (pause < 16 &&
               2 * pause * kind.kTile * kBytes <= FetchAhead::kLine * shape.num_panels) {
          pause *= 2;
        }
        kind.score(q_of(panel, head), work.tile, stride, shape.padded_head_dim, count, ahead, pause,
                   scores);
      });
    }
  }

  void score_few_floats(const PagedPanel& panel, std::int32_t head, int first, int count,
                        std::ptrdiff_t stride) const {
    const std::byte* keys[kPagedChunk];
    for (int j = 0; j < tile_keys(); ++j) {
      keys[j] = reinterpret_cast<const std::byte*>(work.tile + j * kPagedBlock);
    }
    with_few_rows<V>(panel, [&](auto rows) CONTEXTILE_INLINE_LAMBDA {
      for (std::int32_t d = 0; d < shape.padded_head_dim; d += kPagedBlock) {
        FewRows<V, KvDtype::kF32, rows>::score(
            q_of(panel, head) + d * rows, block_at(d, shape.padded_head_dim), keys,
            d / kPagedBlock * stride * 4, count, d == 0, scores_of(panel, head) + first * rows);
      }
    });
  }

  // Number of dims of a block that begins at `d`.
  [[nodiscard]] static std::int32_t block_at(std::int32_t d, std::int32_t dim) {
    return kPagedBlock < dim - d ? kPagedBlock : dim - d;
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

  // Adds the weighted values of `count` keys of all heads from `first` on to the outputs.
  void add(int first, int count, FetchAhead& ahead) const {
    const std::byte* const* values = chunk.keys->v + first;
    if (!goes_by_few_rows(kv.v)) {
      for (std::int32_t head = 0; head < shape.kv_heads; ++head) {
        add_floats(head, values, first, count, ahead);
      }
      return;
    }
    for (std::int32_t p = 0; p < shape.num_panels; ++p) {
      const PagedPanel& panel = shape.panels[p];
      const HeadsOfRows heads = {
          sums_of(panel, 0, first, 0), std::ptrdiff_t{shape.padded_rows} * shape.padded_value_dim,
          std::ptrdiff_t{shape.padded_rows} * kPagedChunk, shape.lanes_of_head, shape.kv_heads};
      with_few_rows<V>(panel, [&](auto rows) CONTEXTILE_INLINE_LAMBDA {
        FewRows<V, dtype, rows>::add_heads(heads, shape.padded_value_dim, values,
                                           offset_of(kv.v, 1), count, ahead);
      });
    }
  }

  // Does the same for one head by way of floats.
  void add_floats(std::int32_t head, const std::byte* const* values, int first, int count,
                  FetchAhead& ahead) const {
    for (std::int32_t d = 0; d < shape.padded_value_dim; d += kPagedBlock) {
      const std::int32_t size = block_at(d, shape.padded_value_dim);
      const float* floats = work.tile;
      if (shape.is_shared) {
        floats += (d / kPagedBlock * tile_keys() + first) * kPagedBlock;
      } else {
        widen(kv.v, values, head, d, size, count, ahead, work.tile);
      }
      for (std::int32_t p = 0; p < shape.num_panels; ++p) {
        const RowSums sums = sums_of(shape.panels[p], head, first, d);
        with_panel<V>(shape.panels[p], [&](auto kind) CONTEXTILE_INLINE_LAMBDA {
          kind.add_values(sums, floats, size, count);
        });
      }
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

  // Number of bytes that `count` tokens have of all heads.
  [[nodiscard]] std::ptrdiff_t bytes_of(const PagedTensor& tensor, int count) const {
    return std::ptrdiff_t{shape.kv_heads} * tensor.dim * kBytes * count;
  }

  void take() const {
    const int count = chunk.keys->count;
    const int at_a_time = tile_keys();
    FetchAhead keys =
        ahead_of(kv.k, chunk.keys->k, at_a_time < kPagedFetch ? kPagedFetch : at_a_time);
    for (int first = 0; first < count; first += at_a_time) {
      const int some = count - first < at_a_time ? count - first : at_a_time;
      keys.allow(bytes_of(kv.k, some));
      score(first, some, keys);
    }
    for (std::int32_t head = 0; head < shape.kv_heads; ++head) weigh(head);
    if (chunk.seen != nullptr) {
      for (std::int32_t head = 0; head < shape.kv_heads; ++head) add_seen(head);
    } else {
      add_all();
    }
  }

  void add_all() const {
    const int count = chunk.keys->count;
    const int at_a_time = tile_values();
    FetchAhead values =
        ahead_of(kv.v, chunk.keys->v, at_a_time < kPagedFetch ? kPagedFetch : at_a_time);
    for (int first = 0; first < count; first += at_a_time) {
      const int some = count - first < at_a_time ? count - first : at_a_time;
      if (!shape.is_shared) values.allow(bytes_of(kv.v, some));
      add(first, some, values);
      if (first > 0 || some == count) continue;
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
