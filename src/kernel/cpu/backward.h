// Backward on panels. Keys are outermost: every block of packed keys meets all panels of a task.
//
// Scores S[key][query] = K·Qᵀ and dP[key][query] = V·dOᵀ are computed as in forward, then
//   P = exp(S - lse), dS = P ∘ (dP - delta), dV += P·dO, dK += dS·Q, dQ += dSᵀ·K.
// dQ and dK are without the scale, which is applied when they are added to their slots.
#pragma once

#include <cstdint>

#include "kernel/cpu/backward_slots.h"
#include "kernel/cpu/dominant.h"
#include "kernel/cpu/pack.h"
#include "kernel/cpu/scores.h"
#include "kernel/cpu/task.h"

namespace contextile {

template <class V>
struct BackwardPanel {
  Panel panel;
  typename V::Element* query_columns = nullptr;  // [depth stride][width]
  typename V::Element* query_rows = nullptr;     // [width / kPair][panel row stride]
  typename V::Element* dout_columns = nullptr;   // [depth stride of values][width]
  typename V::Element* dout_rows = nullptr;      // [width / kPair][panel row stride of values]
  float* lse = nullptr;            // [width] in units of log2; inf: the row has no gradient
  float* delta = nullptr;          // [width]
  std::int32_t* tokens = nullptr;  // [width]
  LaneTerms lanes;                 // with terms
  float* dq = nullptr;             // [width][row stride], of the share
};

// The packed panels of a task, which all its shares read.
template <class V>
struct PackedPanels {
  CONTEXTILE_INLINE PackedPanels(const BackwardTask& task, void* memory) {
    using Element = typename V::Element;
    constexpr std::int64_t kWidth = kPanelWidth<V>;
    const std::int64_t query_elements = depth_stride<V>(task.params->head_dim) * kWidth;
    const std::int64_t value_elements = depth_stride<V>(task.params->value_dim) * kWidth;
    Carver carver(memory);
    for (std::int64_t p = 0; p < task.num_panels; ++p) {
      BackwardPanel<V>& state = panels[p];
      state.panel = panel_of_grid<V>(*task.grid, task.first_panel + p);
      state.query_columns = carver.take<Element>(query_elements);
      state.query_rows = carver.take<Element>(query_elements);
      state.dout_columns = carver.take<Element>(value_elements);
      state.dout_rows = carver.take<Element>(value_elements);
      state.lse = carver.take<float>(kWidth);
      state.delta = carver.take<float>(kWidth);
      state.tokens = carver.take<std::int32_t>(kWidth);
      if (task.terms != nullptr) state.lanes = take_lanes(carver, kWidth);
    }
    bytes = carver.used_bytes();
  }

  BackwardPanel<V> panels[V::kBackwardPanels];
  std::size_t bytes;
};

// The working memory of one share.
template <class V>
struct BackwardWork {
  using Element = typename V::Element;

  CONTEXTILE_INLINE BackwardWork(const BackwardTask& task, void* memory)
      : packed(task, task.packed),
        key_depth(depth_stride<V>(task.params->head_dim)),
        key_stride(row_stride<V>(task.params->head_dim)),
        value_depth(depth_stride<V>(task.params->value_dim)),
        value_stride(row_stride<V>(task.params->value_dim)) {
    constexpr std::int64_t kWidth = kPanelWidth<V>;
    Carver carver(memory);
    float* const own_dq =
        carver.take<float>(task.dq_share == nullptr ? task.num_panels * key_stride * kWidth : 0);
    dq = task.dq_share == nullptr ? own_dq : task.dq_share;
    for (std::int64_t p = 0; p < task.num_panels; ++p) {
      packed.panels[p].dq = dq + p * key_stride * kWidth;
    }
    std::int64_t most_keys = 0;
    for (std::size_t t = 0; t < task.tiles.size(); ++t) {
      most_keys = larger(most_keys, task.tiles[t].k_MHD.tokens);
    }
    const std::int64_t rows =
        round_up(smaller(most_keys, V::kBackwardKeys), V::kProductRows) + V::kProductRows;
    keys = carver.take<Element>(rows * key_depth);
    values = carver.take<Element>(rows * value_depth);
    if constexpr (V::kHasTiles) {
      key_pairs = round_up(rows / V::kPair, V::kTilePairs) + V::kTilePairs;
      key_rows = carver.take<Element>(key_stride * key_pairs);
      tail = carver.take<Element>(key_stride * V::kTilePairs);
    } else {
      key_rows = V::kPair == 1 ? keys : carver.take<Element>(rows / V::kPair * key_stride);
    }
    dk = carver.take<float>(rows * key_stride);
    dv = carver.take<float>(rows * value_stride);
    weights = carver.take<float>(rows * kWidth);
    slopes = carver.take<float>(rows * kWidth);
    slope_rows = V::kPair == 1 ? reinterpret_cast<Element*>(slopes)
                               : carver.take<Element>(rows / V::kPair * kWidth);
    if (task.terms != nullptr && task.terms->has_dropout) {
      factors = carver.take<float>(rows * kWidth);
    }
    bytes = carver.used_bytes();
  }

  PackedPanels<V> packed;
  std::int64_t key_depth;
  std::int64_t key_stride;
  std::int64_t value_depth;
  std::int64_t value_stride;
  float* dq;
  Element* keys;      // [key][key depth]
  Element* values;    // [key][value depth]
  Element* key_rows;  // [key / kPair][key stride]; with tiles [key stride][key pairs]
  std::int64_t key_pairs = 0;
  Element* tail = nullptr;   // [key stride][kTilePairs], with tiles
  float* dk;                 // [key][key stride]
  float* dv;                 // [key][value stride]
  float* weights;            // S[key][width], then P as elements [key][width / kPair]
  float* slopes;             // dP, then dS in the same form
  Element* slope_rows;       // dS as elements [key / kPair][width]
  float* factors = nullptr;  // of dropout, [key][width]; null: none
  std::size_t bytes;
  Ahead ahead;
};

// Returns the factor of dS that a softcap brings: 1 - (capped score / cap)².
template <class V>
CONTEXTILE_INLINE typename V::Float cap_slope(typename V::Float score, float out_of_cap) {
  // the score is -inf if masked
  const auto t = V::max(V::mul(score, V::set(out_of_cap)), V::set(-1.0F));
  return V::sub(V::set(1.0F), V::mul(t, t));
}

// Returns a weight 2^x, at most 1. The LSE of large scores is rounded by so much that x may be far
// above 0.
template <class V>
CONTEXTILE_INLINE typename V::Float kept_weight(typename V::Float x) {
  return weight_of<V>(V::min(V::zero(), x));
}

// Turns S and dP of the vectors of one key into P and dS.
template <class V, int kVectors>
CONTEXTILE_INLINE void weigh_key(const ScoreBlock<V>& block, const SlopeRows& rows,
                                 const BackwardPanel<V>& state, std::int64_t key, float out_of_cap,
                                 typename V::Float (&weight)[kVectors],
                                 typename V::Float (&slope)[kVectors]) {
  using Float = typename V::Float;
  const Float to_log2 = V::set(block.scale->to_log2);
  Float score[kVectors];
  Float largest = V::zero();
#pragma GCC unroll 8
  for (int n = 0; n < kVectors; ++n) {
    score[n] = weight[n];
    weight[n] = kept_weight<V>(V::fms(score[n], to_log2, V::load(state.lse + n * V::kLanes)));
    slope[n] = V::sub(slope[n], V::load(state.delta + n * V::kLanes));
    largest = V::max(largest, weight[n]);
  }
  // Keys that dominate a row are rare; their dP - delta is computed again in fp64.
  if (V::any(V::less(V::set(kDominant), largest))) [[unlikely]] {
    for (int n = 0; n < kVectors; ++n) {
      redo_dominant<V>(rows, block.first_key + key, n * V::kLanes, weight[n],
                       state.delta + n * V::kLanes, nullptr, slope[n]);
    }
  }
#pragma GCC unroll 8
  for (int n = 0; n < kVectors; ++n) {
    slope[n] = V::mul(weight[n], slope[n]);
    if (out_of_cap != 0) slope[n] = V::mul(slope[n], cap_slope<V>(score[n], out_of_cap));
  }
}

// Does the same for a call with terms, and adds the gradients of the key's scores to `gradients`.
template <class V, int kVectors>
[[gnu::noinline]] void weigh_key_with_terms(const ScoreBlock<V>& block, const SlopeRows& rows,
                                            const BackwardPanel<V>& state, std::int64_t key,
                                            float out_of_cap, const float* factors,
                                            OffsetGradients<V, kVectors>* gradients,
                                            typename V::Float (&weight)[kVectors],
                                            typename V::Float (&slope)[kVectors]) {
  constexpr std::int64_t kWidth = kVectors * V::kLanes;
  const bool is_key = key < block.num_keys;  // otherwise it completes a pair
  const std::int32_t position = is_key ? block.places[block.first_key + key].position : 0;
  const auto to_log2 = V::set(block.scale->to_log2);
  float bias[kWidth] = {};
  if (out_of_cap != 0 && block.scale->has_bias) {
    bias_of_key<V, kVectors>(*block.terms, *block.lanes, position, bias);
  }
  float slopes[kWidth];
  for (int n = 0; n < kVectors; ++n) {
    const float* some = factors == nullptr ? nullptr : factors + key * kWidth + n * V::kLanes;
    const float* delta = state.delta + n * V::kLanes;
    const auto capped = V::sub(weight[n], V::load(bias + n * V::kLanes));
    weight[n] = kept_weight<V>(V::fms(weight[n], to_log2, V::load(state.lse + n * V::kLanes)));
    if (some != nullptr) slope[n] = V::mul(slope[n], V::load(some));
    slope[n] = V::sub(slope[n], V::load(delta));
    if (V::any(V::less(V::set(kDominant), weight[n]))) [[unlikely]] {
      redo_dominant<V>(rows, block.first_key + key, n * V::kLanes, weight[n], delta, some,
                       slope[n]);
    }
    slope[n] = V::mul(weight[n], slope[n]);
    V::store(slopes + n * V::kLanes, slope[n]);
    if (out_of_cap != 0) slope[n] = V::mul(slope[n], cap_slope<V>(capped, out_of_cap));
    if (some != nullptr) weight[n] = V::mul(weight[n], V::load(some));
  }
  if (gradients != nullptr && is_key) gradients->add(position, slopes);
}

// Turns all S and dP of a step into P and dS, in place. Rows of bf16 are half as long.
template <class V, int kVectors, bool kTerms>
inline void weigh_scores(const ScoreBlock<V>& block, const SlopeRows& rows,
                         const BackwardPanel<V>& state, float out_of_cap, BackwardWork<V>& work,
                         OffsetGradients<V, kVectors>* gradients) {
  using Float = typename V::Float;
  constexpr std::int64_t kWidth = kVectors * V::kLanes;
  for (std::int64_t k = 0; k < block.num_keys; k += V::kPair) {
    Float weight[V::kPair][kVectors];
    Float slope[V::kPair][kVectors];
#pragma GCC unroll 2
    for (int i = 0; i < V::kPair; ++i) {
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) {
        const std::int64_t at = (k + i) * kWidth + n * V::kLanes;
        weight[i][n] = V::load(work.weights + at);
        slope[i][n] = V::load(work.slopes + at);
      }
      if constexpr (kTerms) {
        weigh_key_with_terms<V, kVectors>(block, rows, state, k + i, out_of_cap, work.factors,
                                          gradients, weight[i], slope[i]);
      } else {
        weigh_key<V, kVectors>(block, rows, state, k + i, out_of_cap, weight[i], slope[i]);
      }
    }
#pragma GCC unroll 2
    for (int i = 0; i < V::kPair; ++i) {
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) {
        const std::int64_t at = ((k + i) * kWidth + n * V::kLanes) / V::kPair;
        V::store_elements(work.weights + at, weight[i][n]);
        V::store_elements(work.slopes + at, slope[i][n]);
      }
    }
    if constexpr (V::kPair == 2) {
#pragma GCC unroll 8
      for (int n = 0; n < kVectors; ++n) {
        float* to = reinterpret_cast<float*>(work.slope_rows) + k / 2 * kWidth + n * V::kLanes;
        V::store_pairs(to, slope[0][n], slope[1][n]);
      }
    }
  }
  if constexpr (V::kHasTiles) {  // clears the rest of the last tile
    const std::int64_t first = round_up(block.num_keys, V::kPair) * kWidth / V::kPair;
    const std::int64_t end = round_up(block.num_keys, V::kProductRows) * kWidth / V::kPair;
    for (float* rows : {work.weights, work.slopes, reinterpret_cast<float*>(work.slope_rows)}) {
      clear<V>(rows + first, end - first);
    }
  }
}

// The same for a call with terms.
template <class V, int kVectors>
[[gnu::noinline]] void weigh_scores_with_terms(const BackwardTask& task, const ScoreBlock<V>& block,
                                               const SlopeRows& rows, const BackwardPanel<V>& state,
                                               float out_of_cap, BackwardWork<V>& work) {
  if (work.factors != nullptr) {
    draw_factors<V, kVectors>(block.terms->dropout, *block.lanes, block.places + block.first_key,
                              block.num_keys, round_up(block.num_keys, V::kPair), work.factors);
  }
  if (task.offset_gradients == nullptr) {
    weigh_scores<V, kVectors, true>(block, rows, state, out_of_cap, work, nullptr);
    return;
  }
  OffsetGradients<V, kVectors> gradients(*task.terms, *block.lanes, task.offset_gradients);
  weigh_scores<V, kVectors, true>(block, rows, state, out_of_cap, work, &gradients);
  gradients.finish();
}

// Adds the products of a step: dV += P·dO, dK += dS·Q and dQ += dSᵀ·K.
template <class V, int kVectors>
inline void add_gradients(std::int64_t num_keys, const BackwardPanel<V>& state,
                          std::int64_t first_row, BackwardWork<V>& work) {
  using Element = typename V::Element;
  constexpr std::int64_t kWidth = kVectors * V::kLanes;
  constexpr std::int64_t kDepth = kWidth / V::kPair;
  const auto* weights = reinterpret_cast<const Element*>(work.weights);
  const auto* slopes = reinterpret_cast<const Element*>(work.slopes);
  add_product<V, AForm::kRowMajor>(num_keys, work.value_stride, kDepth, weights, kDepth,
                                   state.dout_rows, work.value_depth * V::kPair,
                                   work.dv + first_row * work.value_stride, work.value_stride);
  add_product<V, AForm::kRowMajor>(num_keys, work.key_stride, kDepth, slopes, kDepth,
                                   state.query_rows, work.key_depth * V::kPair,
                                   work.dk + first_row * work.key_stride, work.key_stride);
  add_product<V, AForm::kColumnMajor>(kWidth, work.key_stride, (num_keys + V::kPair - 1) / V::kPair,
                                      work.slope_rows, kWidth,
                                      work.key_rows + first_row / V::kPair * work.key_stride,
                                      work.key_stride, state.dq, work.key_stride);
}

// Adds dV, dK and dQ of a step by tiles. dQ is transposed, [row stride][width].
template <class V, int kVectors>
inline void add_tiled_gradients(std::int64_t num_keys, const BackwardPanel<V>& state,
                                std::int64_t first_row, BackwardWork<V>& work) {
  using Element = typename V::Element;
  constexpr std::int64_t kWidth = kVectors * V::kLanes;
  constexpr std::int64_t kDepth = kWidth / V::kPair;
  constexpr std::int64_t kDepthTiles = kDepth / V::kTilePairs;
  const auto* weights = reinterpret_cast<const Element*>(work.weights);
  const auto* slopes = reinterpret_cast<const Element*>(work.slopes);
  const std::int64_t rows = round_up(num_keys, V::kProductRows);
  V::template multiply<true>(rows / V::kLanes, work.value_stride / V::kLanes, kDepthTiles,
                             {weights, kDepth}, state.dout_rows, work.value_depth * V::kPair,
                             work.dv + first_row * work.value_stride, work.value_stride);
  V::template multiply<true>(rows / V::kLanes, work.key_stride / V::kLanes, kDepthTiles,
                             {slopes, kDepth}, state.query_rows, work.key_depth * V::kPair,
                             work.dk + first_row * work.key_stride, work.key_stride);
  const Element* const columns = work.key_rows + first_row / V::kPair;
  const typename V::TileFactor keys{
      columns, work.key_pairs,
      pack_tail<V>(columns, work.key_pairs, num_keys, work.key_stride, work.tail)};
  V::template multiply<true>(work.key_stride / V::kLanes, kVectors, rows / V::kPair / V::kTilePairs,
                             keys, work.slope_rows, kWidth, state.dq, kWidth);
}

// One step: the scores S and dP of a panel and a range of keys, their weights, and the gradients.
template <class V, int kVectors>
[[gnu::noinline]] void backward_step(const BackwardTask& task, const BackwardTile& tile,
                                     const ScoreBlock<V>& block, const BackwardPanel<V>& state,
                                     std::int64_t first_row, BackwardWork<V>& work) {
  using Float = typename V::Float;
  using Element = typename V::Element;
  constexpr std::int64_t kWidth = kVectors * V::kLanes;
  Float unused[kVectors];
  for (int n = 0; n < kVectors; ++n) unused[n] = V::zero();
  // S = K·Qᵀ. The largest scores are not needed, because the LSE is known.
  score_keys<V, kVectors, false>(block, work.weights, unused);
  // dP = V·dOᵀ, for kProductRows keys at a time.
  const Element* values = work.values + first_row * work.value_depth;
  [[maybe_unused]] const std::int64_t depth = (task.params->value_dim + V::kPair - 1) / V::kPair;
  for (std::int64_t row = 0; row < block.num_keys; row += V::kProductRows) {
    float* const to = work.slopes + row * kWidth;
    if constexpr (V::kHasTiles) {
      multiply_keys<V, kVectors>(values + row * work.value_depth, work.value_depth,
                                 state.dout_columns, to);
    } else {
      product<V, V::kProductRows, kVectors, AForm::kRowMajor, Before::kZero, false>(
          depth, values + row * work.value_depth, work.value_depth, state.dout_columns, kWidth, to,
          kWidth, nullptr, nullptr);
    }
  }
  const bool is_capped = block.scale->into_cap != 0;
  const SlopeRows rows{&tile, state.panel, task.params->q_heads / task.params->kv_heads,
                       task.kv_head};
  const float out_of_cap = is_capped ? 1 / block.scale->cap_log2 : 0.0F;
  if (task.terms != nullptr) {
    weigh_scores_with_terms<V, kVectors>(task, block, rows, state, out_of_cap, work);
  } else {
    weigh_scores<V, kVectors, false>(block, rows, state, out_of_cap, work, nullptr);
  }
  if constexpr (V::kHasTiles) {
    add_tiled_gradients<V, kVectors>(block.num_keys, state, first_row, work);
  } else {
    add_gradients<V, kVectors>(block.num_keys, state, first_row, work);
  }
}

// Packs panels [first, first + count) of the task: their queries, dO and row statistics.
template <class V>
inline void pack_backward(const BackwardTask& task, std::int64_t first, std::int64_t count) {
  const ScoreScale scale(*task.params);
  const PackedPanels<V> packed(task, task.packed);
  const BackwardTile& tile = task.tiles[0];
  const std::int32_t heads = task.params->q_heads / task.params->kv_heads;
  for (std::int64_t p = first; p < first + count; ++p) {
    const BackwardPanel<V>& state = packed.panels[p];
    char keep[kPanelWidth<V>];
    load_row_stats<V>(tile, state.panel, heads, task.kv_head * heads,
                      {state.lse, state.delta, state.tokens, keep});
    const PanelRows rows{state.panel.first_row, state.panel.num_rows,
                         state.panel.vectors,   heads,
                         task.kv_head * heads,  keep};
    pack_panel<V>(tile.q_NHD, rows, scale.query_factor, state.query_columns, state.query_rows);
    pack_panel<V>(tile.do_NHD, rows, 1.0F, state.dout_columns, state.dout_rows);
    if (task.terms != nullptr) {
      start_lanes<V>(*task.terms, tile.places, state.panel, heads, task.kv_head, state.lanes);
    }
  }
}

// Packs a block of keys and values, runs the steps of all panels on it, and adds dK and dV to their
// slots.
template <class V>
inline void backward_block(const BackwardTask& task, std::size_t tile, const KeySpan& keys,
                           const ScoreScale& scale, BackwardWork<V>& work) {
  const BackwardTile& t = task.tiles[tile];
  const PanelBands& bands = *task.bands[tile];
  const std::int64_t count = keys.end - keys.begin;
  pack_rows<V>(t.k_MHD, keys.begin, count, task.kv_head, work.keys, V::kProductRows);
  pack_rows<V>(t.v_MHD, keys.begin, count, task.kv_head, work.values, V::kProductRows);
  if constexpr (V::kHasTiles) {
    pack_columns<V>(t.k_MHD, keys.begin, count, task.kv_head, work.key_rows, work.key_pairs);
  } else if constexpr (V::kPair == 2) {
    pack_row_pairs<V>(t.k_MHD, keys.begin, count, task.kv_head, work.key_rows);
  }
  clear<V>(work.dk, count * work.key_stride);
  clear<V>(work.dv, count * work.value_stride);
  // The slots of dK and dV are needed last; they are fetched into the cache during the steps.
  work.ahead.rows[0] = AheadRows(t.dk_MHD, keys.begin, count, 1, task.kv_head);
  work.ahead.rows[1] = AheadRows(t.dv_MHD, keys.begin, count, 1, task.kv_head);
  for (std::int64_t p = 0; p < task.num_panels; ++p) {
    const BackwardPanel<V>& state = work.packed.panels[p];
    ScoreBlock<V> block;
    block.queries = state.query_columns;
    block.key_stride = work.key_depth;
    block.depth = (task.params->head_dim + V::kPair - 1) / V::kPair;
    block.bands = &bands;
    block.tokens = state.tokens;
    block.scale = &scale;
    block.ahead = &work.ahead;
    block.terms = task.terms;
    block.lanes = &state.lanes;
    block.places = t.places.k_M.data();
    const auto steps = bands.steps(task.first_panel + p);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      if (!cut_step<V>(steps[s], keys.begin, keys.end, block)) continue;
      const std::int64_t first = block.first_key - keys.begin;
      block.keys = work.keys + first * work.key_depth;
      with_vectors<V>(state.panel.vectors, [&](auto vectors) {
        backward_step<V, vectors()>(task, t, block, state, first, work);
      });
    }
  }
  add_to_slot<V>(t.dk_MHD, keys.begin, count, task.kv_head, work.dk, work.key_stride,
                 scale.magnitude);
  add_to_slot<V>(t.dv_MHD, keys.begin, count, task.kv_head, work.dv, work.value_stride, 1.0F);
}

template <class V>
inline void add_shares(const BackwardTask& task, std::span<const float* const> shares) {
  if constexpr (V::kHasTiles) {
    write_dq_columns<V>(task, shares.data(), shares.size());
  } else {
    write_dq<V>(task, shares.data(), shares.size());
  }
}

// Runs one share: every block of keys that belongs to it, in order.
template <class V>
inline void run_backward(const BackwardTask& task, void* memory) {
  constexpr std::int64_t kWidth = kPanelWidth<V>;
  const ScoreScale scale(*task.params);
  [[maybe_unused]] const typename V::TileUse tiles;
  BackwardWork<V> work(task, memory);
  clear<V>(work.dq, task.num_panels * kWidth * work.key_stride);
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
  // If there are several shares, the caller adds them.
  if (task.dq_share != nullptr) return;
  add_shares<V>(task, {&work.dq, 1});
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
  return task.num_panels * kPanelWidth<V> * row_stride<V>(task.params->head_dim);
}

}  // namespace contextile
