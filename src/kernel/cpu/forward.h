// Forward on panels: online softmax over blocks of packed keys.
//
// Queries are in lanes: scores[key][query] = K·Qᵀ, out[d][query] = Vᵀ·P. So maximum, sum, rescaling
// and mask work on whole vectors, and K and V are read in their own order.
#pragma once

#include <cstdint>

#include "kernel/cpu/finish.h"
#include "kernel/cpu/pack.h"
#include "kernel/cpu/scores.h"
#include "kernel/cpu/task.h"

namespace contextile {

// The working memory of one task.
template <class V>
struct ForwardWork {
  using Element = typename V::Element;

  CONTEXTILE_INLINE ForwardWork(const ForwardTask& task, void* memory)
      : key_stride(depth_stride<V>(task.params->head_dim)),
        value_stride(row_stride<V>(task.params->value_dim)) {
    constexpr std::int64_t kWidth = kPanelWidth<V>;
    Carver carver(memory);
    for (std::int64_t p = 0; p < task.num_panels; ++p) {
      ForwardPanel<V>& state = panels[p];
      state.panel = panel_of_grid<V>(*task.grid, task.first_panel + p);
      state.queries = carver.take<Element>(key_stride * kWidth);
      state.out = carver.take<float>(value_stride * kWidth);
      state.top = carver.take<float>(kWidth);
      state.sum = carver.take<float>(kWidth);
      state.tokens = carver.take<std::int32_t>(kWidth);
      if (task.terms != nullptr) state.lanes = take_lanes(carver, kWidth);
    }
    std::int64_t most_keys = 0;
    for (std::size_t t = 0; t < task.tiles.size(); ++t) {
      most_keys = larger(most_keys, task.tiles[t].k_MHD.tokens);
    }
    const std::int64_t rows =
        round_up(smaller(most_keys, V::kForwardKeys), V::kProductRows) + V::kProductRows;
    keys = carver.take<Element>(rows * key_stride);
    if constexpr (V::kHasTiles) {
      // The stride is no power of two: otherwise the rows of a tile would share few sets of the
      // cache.
      key_pairs = round_up(rows / V::kPair, V::kTilePairs) + V::kTilePairs;
      values = carver.take<Element>(value_stride * key_pairs);
      tail = carver.take<Element>(value_stride * V::kTilePairs);
    } else {
      values = carver.take<Element>(rows / V::kPair * value_stride);
    }
    scores = carver.take<float>(rows * kWidth);
    if (task.terms != nullptr && task.terms->has_dropout) {
      factors = carver.take<float>(rows * kWidth);
    }
    bytes = carver.used_bytes();
  }

  ForwardPanel<V> panels[V::kForwardPanels];
  std::int64_t key_stride;
  std::int64_t value_stride;
  Element* keys;    // [key][key stride]
  Element* values;  // [key / kPair][value stride]; with tiles [value stride][key pairs]
  std::int64_t key_pairs = 0;
  Element* tail = nullptr;   // [value stride][kTilePairs], with tiles
  float* scores;             // [key][width], then the weights as elements [key / kPair][width]
  float* factors = nullptr;  // of dropout, [key][width]; null: none
  std::size_t bytes;
  Ahead ahead;
};

// A block of keys of one tile that some panel of the task meets.
struct KeyBlock {
  std::size_t tile = 0;
  std::int64_t grid_begin = 0;  // on the grid of kForwardKeys
  KeySpan keys;
};

// Returns the first such block at or after (tile, begin), or tile = number of tiles if there is
// none.
template <class V>
inline KeyBlock find_block(const ForwardTask& task, std::size_t tile, std::int64_t begin) {
  for (; tile < task.tiles.size(); ++tile, begin = 0) {
    const std::int64_t num_keys = task.tiles[tile].k_MHD.tokens;
    const KeySpan all =
        meeting_keys(*task.bands[tile], task.first_panel, task.num_panels, begin, num_keys);
    if (all.begin == all.end) continue;
    const std::int64_t first = all.begin / V::kForwardKeys * V::kForwardKeys;
    const std::int64_t end = smaller(first + V::kForwardKeys, all.end);
    return {tile, first,
            meeting_keys(*task.bands[tile], task.first_panel, task.num_panels, larger(first, begin),
                         end)};
  }
  return {tile, 0, {}};
}

// Turns scores into weights 2^(score - top), in place, and adds their sums to `total`. With
// kDropped, each weight is then multiplied by its factor.
template <class V, int kVectors, bool kDropped>
CONTEXTILE_INLINE void weigh(float* scores, const float* factors, std::int64_t num_keys,
                             typename V::Float to_log2, const typename V::Float* top,
                             typename V::Float* total) {
  using Float = typename V::Float;
  constexpr std::int64_t kWidth = kVectors * V::kLanes;
  for (std::int64_t k = 0; k < num_keys; k += V::kPair) {
#pragma GCC unroll 8
    for (int n = 0; n < kVectors; ++n) {
      const std::int64_t at = k * kWidth + n * V::kLanes;
      const float* from = scores + at;
      float* to = scores + k / V::kPair * kWidth + n * V::kLanes;
      Float weight = weight_of<V>(V::fms(V::load(from), to_log2, top[n]));
      total[n] = V::add(total[n], weight);
      if constexpr (kDropped) weight = V::mul(weight, V::load(factors + at));
      if constexpr (V::kPair == 1) {
        V::store(to, weight);
      } else {
        Float next = weight_of<V>(V::fms(V::load(from + kWidth), to_log2, top[n]));
        total[n] = V::add(total[n], next);
        if constexpr (kDropped) next = V::mul(next, V::load(factors + at + kWidth));
        V::store_pairs(to, weight, next);
      }
    }
  }
}

// Tops of this size are rounded by 2^-4 at least.
inline constexpr float kLargeTop = 1 << 20;

// Multiplies scores by to_log2, in place, and sets it to 1, if a top is large. The product inside
// `weigh` is not rounded, but a top is: beyond 2^31 the exponents of weights would overflow.
template <class V, int kVectors>
CONTEXTILE_INLINE void round_large_scores(float* scores, std::int64_t num_keys,
                                          typename V::Float& to_log2,
                                          const typename V::Float* top) {
  bool is_large = false;
  for (int n = 0; n < kVectors; ++n) {
    const auto has_seen = V::less(V::set(kLeastTop), top[n]);
    const auto size = V::select(has_seen, V::abs(top[n]), V::zero());
    is_large = is_large || V::any(V::less(V::set(kLargeTop), size));
  }
  if (!is_large) [[likely]]
    return;
  for (std::int64_t i = 0; i < round_up(num_keys, V::kPair) * kVectors; ++i) {
    float* const at = scores + i * V::kLanes;
    V::store(at, V::mul(V::load(at), to_log2));
  }
  to_log2 = V::set(1.0F);
}

// Weighs the scores of a step, with dropout if the call has it.
template <class V, int kVectors>
CONTEXTILE_INLINE void weigh_step(const ScoreBlock<V>& block, float* scores, float* factors,
                                  std::int64_t num_keys, typename V::Float to_log2,
                                  const typename V::Float* top, typename V::Float* total) {
  round_large_scores<V, kVectors>(scores, num_keys, to_log2, top);
  if (factors == nullptr) {
    weigh<V, kVectors, false>(scores, nullptr, num_keys, to_log2, top, total);
    return;
  }
  draw_factors<V, kVectors>(block.terms->dropout, *block.lanes, block.places + block.first_key,
                            block.num_keys, round_up(num_keys, V::kPair), factors);
  weigh<V, kVectors, true>(scores, factors, num_keys, to_log2, top, total);
}

// Largest amount, in units of log2, by which scores may pass the top of a row before its weights
// are scaled again: weights of tiles are floats of few bits, not fixed-point numbers.
inline constexpr float kTopSlack = 8;

// One step with products by tiles. O is rescaled only if scores have left their top far behind.
// `values` are columns of key pairs.
template <class V, int kVectors>
[[gnu::noinline]] void tiled_forward_step(const ScoreBlock<V>& block,
                                          const typename V::Element* values, std::int64_t value_dim,
                                          ForwardPanel<V>& state, ForwardWork<V>& work) {
  using Float = typename V::Float;
  constexpr std::int64_t kWidth = kVectors * V::kLanes;
  Float largest[kVectors];
  for (int n = 0; n < kVectors; ++n) largest[n] = V::set(kNoScore);
  score_keys<V, kVectors, true>(block, work.scores, largest);

  const Float to_log2 = V::set(block.scale->to_log2);
  const std::int64_t rows = round_up(value_dim, V::kLanes);
  Float top[kVectors];
  Float total[kVectors];
  // Rescales the rows whose new top is far above the old one; the others keep their top.
  for (int n = 0; n < kVectors; ++n) {
    const Float old = V::load(state.top + n * V::kLanes);
    const Float now = V::mul(largest[n], to_log2);
    const auto has_passed = V::less(V::add(old, V::set(kTopSlack)), now);
    top[n] = V::select(has_passed, now, old);
    total[n] = V::zero();
    if (!V::any(has_passed)) continue;
    const Float keep = V::exp2(V::sub(old, top[n]));
    float* const sum = state.sum + n * V::kLanes;
    V::store(sum, V::mul(V::load(sum), keep));
    V::store(state.top + n * V::kLanes, top[n]);
    if (!state.has_out) continue;
    for (std::int64_t d = 0; d < rows; ++d) {
      float* const at = state.out + d * kWidth + n * V::kLanes;
      V::store(at, V::mul(V::load(at), keep));
    }
  }
  const std::int64_t num_keys = round_up(block.num_keys, V::kProductRows);
  weigh_step<V, kVectors>(block, work.scores, work.factors, num_keys, to_log2, top, total);
  for (int n = 0; n < kVectors; ++n) {
    float* const sum = state.sum + n * V::kLanes;
    V::store(sum, V::add(V::load(sum), total[n]));
  }
  block.ahead->fetch();
  const auto* weights = reinterpret_cast<const typename V::Element*>(work.scores);
  const typename V::TileFactor factor{
      values, work.key_pairs,
      pack_tail<V>(values, work.key_pairs, block.num_keys, rows, work.tail)};
  const std::int64_t depth_tiles = num_keys / V::kPair / V::kTilePairs;
  if (state.has_out) {
    V::template multiply<true>(rows / V::kLanes, kVectors, depth_tiles, factor, weights, kWidth,
                               state.out, kWidth);
  } else {
    V::template multiply<false>(rows / V::kLanes, kVectors, depth_tiles, factor, weights, kWidth,
                                state.out, kWidth);
  }
  state.has_out = true;
}

// One step with products of vectors: scores, new tops, weights, and O = keep·O + Vᵀ·P.
template <class V, int kVectors>
[[gnu::noinline]] void forward_step(const ScoreBlock<V>& block, const typename V::Element* values,
                                    std::int64_t value_stride, std::int64_t value_dim,
                                    ForwardPanel<V>& state, float* scores, float* factors) {
  using Float = typename V::Float;
  constexpr std::int64_t kWidth = kVectors * V::kLanes;
  Float largest[kVectors];
  for (int n = 0; n < kVectors; ++n) largest[n] = V::set(kNoScore);
  score_keys<V, kVectors, true>(block, scores, largest);

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
  weigh_step<V, kVectors>(block, scores, factors, block.num_keys, to_log2, top, total);
  for (int n = 0; n < kVectors; ++n) {
    float* sum = state.sum + n * V::kLanes;
    V::store(sum, V::fma(V::load(sum), keep[n], total[n]));
  }
  const auto* weights = reinterpret_cast<const typename V::Element*>(scores);
  const std::int64_t depth = (block.num_keys + V::kPair - 1) / V::kPair;
  // O is rescaled in the same pass that adds the product.
  for (std::int64_t d = 0; d < value_dim; d += V::kProductRows) {
    block.ahead->fetch();
    float* const out = state.out + d * kWidth;
    if (state.has_out) {
      product<V, V::kProductRows, kVectors, AForm::kColumnMajor, Before::kLanes, false>(
          depth, values + d, value_stride, weights, kWidth, out, kWidth, keep, nullptr);
    } else {
      product<V, V::kProductRows, kVectors, AForm::kColumnMajor, Before::kZero, false>(
          depth, values + d, value_stride, weights, kWidth, out, kWidth, nullptr, nullptr);
    }
  }
  state.has_out = true;
}

// Packs a panel's queries. The first step writes its `out`.
template <class V>
inline void start_panel(const ForwardTask& task, const ScoreScale& scale, ForwardPanel<V>& state) {
  const std::int64_t heads = task.params->q_heads / task.params->kv_heads;
  const std::int64_t width = std::int64_t{state.panel.vectors} * V::kLanes;
  const PanelRows rows{state.panel.first_row, state.panel.num_rows,
                       state.panel.vectors,   heads,
                       task.kv_head * heads,  nullptr};
  pack_panel<V>(task.tiles[0].q_NHD, rows, scale.query_factor, state.queries, nullptr);
  std::int64_t token = rows.first_row / heads;
  std::int64_t head = rows.first_row % heads;
  for (std::int64_t i = 0; i < width; ++i) {
    state.top[i] = kLeastTop;
    state.sum[i] = 0;
    state.tokens[i] = i < rows.num_rows ? static_cast<std::int32_t>(token) : -1;
    if (++head == heads) {
      head = 0;
      ++token;
    }
  }
  if (task.terms != nullptr) {
    start_lanes<V>(*task.terms, task.tiles[0].places, state.panel, heads, task.kv_head,
                   state.lanes);
  }
  state.is_started = true;
}

// Runs all steps of a panel in a packed block.
template <class V>
inline void run_panel(const ForwardTask& task, const KeyBlock& keys, std::int64_t p,
                      const ScoreScale& scale, ForwardWork<V>& work) {
  ForwardPanel<V>& state = work.panels[p];
  const PanelBands& bands = *task.bands[keys.tile];
  ScoreBlock<V> block;
  block.queries = state.queries;
  block.key_stride = work.key_stride;
  block.depth = (task.params->head_dim + V::kPair - 1) / V::kPair;
  block.bands = &bands;
  block.tokens = state.tokens;
  block.scale = &scale;
  block.ahead = &work.ahead;
  block.terms = task.terms;
  block.lanes = &state.lanes;
  block.places = task.tiles[keys.tile].places.k_M.data();
  const auto steps = bands.steps(task.first_panel + p);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    if (!cut_step<V>(steps[s], keys.keys.begin, keys.keys.end, block)) continue;
    const std::int64_t first = block.first_key - keys.keys.begin;
    block.keys = work.keys + first * work.key_stride;
    const std::int64_t value_dim = task.params->value_dim;
    with_vectors<V>(state.panel.vectors, [&](auto vectors) {
      if constexpr (V::kHasTiles) {
        const auto* values = work.values + first / V::kPair;
        tiled_forward_step<V, vectors()>(block, values, value_dim, state, work);
      } else {
        const auto* values = work.values + first / V::kPair * work.value_stride;
        forward_step<V, vectors()>(block, values, work.value_stride, value_dim, state, work.scores,
                                   work.factors);
      }
    });
  }
}

// Finds the last block that meets each panel. The panel is finished after it.
template <class V>
inline void find_last_keys(const ForwardTask& task, ForwardWork<V>& work) {
  for (std::int64_t p = 0; p < task.num_panels; ++p) {
    ForwardPanel<V>& state = work.panels[p];
    for (std::size_t tile = task.tiles.size(); tile-- > 0 && state.last_key < 0;) {
      const KeySpan keys = meeting_keys(*task.bands[tile], task.first_panel + p, 1, 0,
                                        task.tiles[tile].k_MHD.tokens);
      if (keys.begin == keys.end) continue;
      state.last_tile = tile;
      state.last_key = keys.end;
    }
  }
}

// Runs a task: packs each block of keys once and lets all panels that meet it take it.
template <class V>
inline void run_forward(const ForwardTask& task, void* memory) {
  const ScoreScale scale(*task.params);
  const std::int64_t heads = task.params->q_heads / task.params->kv_heads;
  const std::int64_t first_head = task.kv_head * heads;
  [[maybe_unused]] const typename V::TileUse tiles;
  ForwardWork<V> work(task, memory);
  find_last_keys<V>(task, work);
  KeyBlock block = find_block<V>(task, 0, 0);
  while (block.tile < task.tiles.size()) {
    const ForwardTile& tile = task.tiles[block.tile];
    const std::int64_t count = block.keys.end - block.keys.begin;
    pack_rows<V>(tile.k_MHD, block.keys.begin, count, task.kv_head, work.keys, V::kProductRows);
    if constexpr (V::kHasTiles) {
      pack_columns<V>(tile.v_MHD, block.keys.begin, count, task.kv_head, work.values,
                      work.key_pairs);
    } else {
      pack_row_pairs<V>(tile.v_MHD, block.keys.begin, count, task.kv_head, work.values);
    }
    // The rows of the next block are fetched into the cache while this one is computed.
    const KeyBlock next = find_block<V>(task, block.tile, block.grid_begin + V::kForwardKeys);
    if (next.tile < task.tiles.size()) {
      const std::int64_t next_count = next.keys.end - next.keys.begin;
      const ForwardTile& t = task.tiles[next.tile];
      work.ahead.rows[0] = AheadRows(t.k_MHD, next.keys.begin, next_count, 1, task.kv_head);
      work.ahead.rows[1] = AheadRows(t.v_MHD, next.keys.begin, next_count, 1, task.kv_head);
    }
    for (std::int64_t p = 0; p < task.num_panels; ++p) {
      ForwardPanel<V>& state = work.panels[p];
      const KeySpan met = meeting_keys(*task.bands[block.tile], task.first_panel + p, 1,
                                       block.keys.begin, block.keys.end);
      if (met.begin == met.end) continue;
      if (!state.is_started) start_panel<V>(task, scale, state);
      // Also fetched are the queries of the next panel and, before a panel is finished, its slot.
      if (p + 1 < task.num_panels && !work.panels[p + 1].is_started) {
        const Panel& after = work.panels[p + 1].panel;
        work.ahead.rows[2] =
            AheadRows(tile.q_NHD, after.first_row, after.num_rows, heads, first_head);
      }
      const bool is_last = state.last_tile == block.tile && state.last_key <= block.keys.end;
      if (is_last) {
        work.ahead.rows[3] = AheadRows(task.tiles[0].o_NHD, state.panel.first_row,
                                       state.panel.num_rows, heads, first_head);
      }
      run_panel<V>(task, block, p, scale, work);
      if (is_last) finish_panel<V>(task, state);
    }
    block = next;
  }
  for (std::int64_t p = 0; p < task.num_panels; ++p) {  // panels that met no key
    ForwardPanel<V>& state = work.panels[p];
    if (state.is_started) continue;
    start_panel<V>(task, scale, state);
    const std::int64_t width = std::int64_t{state.panel.vectors} * V::kLanes;
    for (std::int64_t i = 0; i < work.value_stride * width; i += V::kLanes) {
      V::store(state.out + i, V::zero());
    }
    finish_panel<V>(task, state);
  }
}

template <class V>
inline std::size_t forward_workspace_bytes(const ForwardTask& task) {
  return ForwardWork<V>(task, nullptr).bytes;
}

}  // namespace contextile
