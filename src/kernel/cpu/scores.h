// Masked scores of one panel against consecutive keys, for forward and backward.
#pragma once

#include <cstdint>

#include "contextile/extend/kernel.h"
#include "kernel/cpu/inline.h"
#include "kernel/cpu/pack.h"
#include "kernel/cpu/panel_terms.h"
#include "kernel/cpu/panels.h"
#include "kernel/cpu/product.h"

namespace contextile {

inline constexpr float kLog2E = 1.44269504088896341F;
inline constexpr double kLn2 = 0.693147180559945309;
inline constexpr float kNoScore = -__builtin_inff();

// The scale of scores. Scores are kept as q·k with the sign of the scale (a factor of the packed
// queries), and are multiplied by `to_log2` when they enter exp2. With a softcap or a bias they are
// kept with it in units of log2, and to_log2 is 1.
struct ScoreScale {
  CONTEXTILE_INLINE explicit ScoreScale(const KernelParams& params)
      : query_factor(params.scale > 0   ? 1.0F
                     : params.scale < 0 ? -1.0F
                                        : 0.0F),
        magnitude(params.scale < 0 ? -params.scale : params.scale),
        has_bias(params.terms != nullptr && params.terms->has_bias()),
        is_plain(params.softcap == 0 && !has_bias),
        to_log2(is_plain && params.scale != 0 ? magnitude * kLog2E : 1.0F),
        into_cap(params.softcap != 0 ? magnitude / params.softcap : 0.0F),
        cap_log2(params.softcap * kLog2E) {}

  float query_factor;
  float magnitude;
  bool has_bias;
  bool is_plain;  // neither softcap nor bias
  float to_log2;
  float into_cap;  // 0: no softcap
  float cap_log2;
};

// Returns a weight 2^x, as exact as it will be kept.
template <class V>
CONTEXTILE_INLINE typename V::Float weight_of(typename V::Float x) {
  if constexpr (V::kHasTiles) {
    return V::short_exp2(x);
  } else {
    return V::exp2(x);
  }
}

// Returns tanh with a relative error of about 2e-7: below 5/8 by a series in x², above by exp.
template <class V>
CONTEXTILE_INLINE typename V::Float tanh_of(typename V::Float x) {
  using Float = typename V::Float;
  const Float size = V::abs(x);
  const Float e = V::exp2(V::mul(size, V::set(-2 * kLog2E)));
  const Float one = V::set(1.0F);
  const Float magnitude = V::div(V::sub(one, e), V::add(one, e));
  const Float large = V::select(V::less(x, V::zero()), V::sub(V::zero(), magnitude), magnitude);
  const Float z = V::mul(x, x);
  Float p = V::set(-5.70498872745e-3F);
  p = V::fma(p, z, V::set(2.06390887954e-2F));
  p = V::fma(p, z, V::set(-5.37397155531e-2F));
  p = V::fma(p, z, V::set(1.33314422036e-1F));
  p = V::fma(p, z, V::set(-3.33332819422e-1F));
  const Float small = V::fma(V::mul(p, z), x, x);
  return V::select(V::less(size, V::set(0.625F)), small, large);
}

// Rows that will be needed soon. They are fetched into the cache a row at a time while products
// run.
class AheadRows {
 public:
  AheadRows() = default;
  // Takes `count` flat rows of a tensor from `first` on, token by token, `heads` rows per token.
  CONTEXTILE_INLINE AheadRows(const TensorView& view, std::int64_t first, std::int64_t count,
                              std::int64_t heads, std::int64_t first_head)
      : rows_(byte_rows(view)),
        row_bytes_(view.dim * (view.dtype == Dtype::kF32 ? 4 : 2)),
        left_(count),
        heads_(heads),
        first_head_(first_head),
        token_(first / heads),
        head_(first % heads) {}

  CONTEXTILE_INLINE void fetch_one() {
    if (left_ == 0) return;
    --left_;
    const char* row = rows_.row(token_, first_head_ + head_);
    for (std::int64_t i = 0; i < row_bytes_; i += 64) __builtin_prefetch(row + i, 0, 2);
    if (++head_ == heads_) {
      head_ = 0;
      ++token_;
    }
  }

 private:
  ByteRows rows_;
  std::int64_t row_bytes_ = 0;
  std::int64_t left_ = 0;
  std::int64_t heads_ = 1;
  std::int64_t first_head_ = 0;
  std::int64_t token_ = 0;
  std::int64_t head_ = 0;
};

// All rows that are fetched ahead at one time.
struct Ahead {
  AheadRows rows[4];
  CONTEXTILE_INLINE void fetch() {
    for (AheadRows& some : rows) some.fetch_one();
  }
};

// A step of a panel, cut to a packed block of keys.
template <class V>
struct ScoreBlock {
  const typename V::Element* queries = nullptr;  // [depth stride][width]
  const typename V::Element* keys = nullptr;     // the first key's row
  std::int64_t key_stride = 0;
  std::int64_t depth = 0;       // elements of a key
  std::int64_t first_key = 0;   // of the tile
  std::int64_t num_keys = 0;    // keys; rows up to a multiple of kProductRows can be read
  std::int64_t full_begin = 0;  // keys that need no mask, counted from the first key
  std::int64_t full_end = 0;
  const PanelBands* bands = nullptr;
  const PanelStep* step = nullptr;
  const std::int32_t* tokens = nullptr;  // of every lane; -1: no token
  const TaskTerms* terms = nullptr;      // null: none; otherwise also lanes and places
  const LaneTerms* lanes = nullptr;
  const TokenPlace* places = nullptr;  // of the tile's keys
  const ScoreScale* scale = nullptr;
  Ahead* ahead = nullptr;
};

template <class V, int kVectors>
CONTEXTILE_INLINE void cap_scores(const ScoreScale& scale, float* scores) {
  const auto into = V::set(scale.into_cap);
  const auto cap = V::set(scale.cap_log2);
  for (int i = 0; i < V::kProductRows * kVectors; ++i) {
    float* at = scores + i * V::kLanes;
    V::store(at, V::mul(cap, tanh_of<V>(V::mul(into, V::load(at)))));
  }
}

// Adds the bias to the scores of kProductRows keys from `row` on, all in units of log2.
template <class V, int kVectors>
CONTEXTILE_INLINE void bias_scores(const ScoreBlock<V>& block, std::int64_t row, float* scores) {
  if (block.scale->into_cap == 0) {
    const auto factor = V::set(block.scale->magnitude * kLog2E);
    for (int i = 0; i < V::kProductRows * kVectors; ++i) {
      float* at = scores + i * V::kLanes;
      V::store(at, V::mul(V::load(at), factor));
    }
  }
  const std::int64_t count = smaller(V::kProductRows, block.num_keys - row);
  for (std::int64_t i = 0; i < count; ++i) {
    add_bias<V, kVectors>(*block.terms, *block.lanes,
                          block.places[block.first_key + row + i].position,
                          scores + i * kVectors * V::kLanes);
  }
}

// Sets the lanes that attend the key, from the bands over this panel's tokens.
template <class V, int kVectors>
CONTEXTILE_INLINE void mask_of_key(const ScoreBlock<V>& block, std::int64_t key,
                                   const typename V::Int* tokens, typename V::Mask* masks) {
  for (int n = 0; n < kVectors; ++n) masks[n] = V::none();
  for (std::uint32_t b = 0; b < block.step->num_bands; ++b) {
    const LaneBand& band = block.bands->band(block.step->first_band + b);
    if (key < band.k_begin || key >= band.k_end) continue;
    const auto first = static_cast<std::int32_t>(larger(band.q_begin, key - band.hi));
    const auto last = static_cast<std::int32_t>(smaller(band.q_end - 1, key - band.lo));
    for (int n = 0; n < kVectors; ++n) {
      masks[n] = V::either(masks[n], V::between(tokens[n], first, last));
    }
  }
}

// Masks the scores of kProductRows keys from `row` on; -inf if a lane does not attend a key.
template <class V, int kVectors>
inline void masked_scores(const ScoreBlock<V>& block, std::int64_t row, float* scores,
                          typename V::Float* largest) {
  typename V::Int tokens[kVectors];
  for (int n = 0; n < kVectors; ++n) tokens[n] = V::load_int(block.tokens + n * V::kLanes);
  if (block.scale->into_cap != 0) cap_scores<V, kVectors>(*block.scale, scores);
  if (block.scale->has_bias) bias_scores<V, kVectors>(block, row, scores);
  for (int i = 0; i < V::kProductRows; ++i) {
    const bool is_full = row + i >= block.full_begin && row + i < block.full_end;
    typename V::Mask masks[kVectors];
    if (row + i < block.num_keys) {
      mask_of_key<V, kVectors>(block, block.first_key + row + i, tokens, masks);
    } else {
      for (int n = 0; n < kVectors; ++n) masks[n] = V::none();
    }
    for (int n = 0; n < kVectors; ++n) {
      float* at = scores + (i * kVectors + n) * V::kLanes;
      auto value = V::load(at);
      if (!is_full) value = V::select(masks[n], value, V::set(kNoScore));
      V::store(at, value);
      largest[n] = V::max(largest[n], value);
    }
  }
}

// Multiplies kProductRows rows, of depth `stride`, with a panel's columns by tiles.
template <class V, int kVectors>
CONTEXTILE_INLINE void multiply_keys(const typename V::Element* rows, std::int64_t stride,
                                     const typename V::Element* columns, float* to) {
  constexpr std::int64_t kWidth = kVectors * V::kLanes;
  V::template multiply<false>(V::kProductRows / V::kLanes, kVectors, stride / V::kTilePairs,
                              {rows, stride}, columns, kWidth, to, kWidth);
}

template <class V, int kVectors>
CONTEXTILE_INLINE void fold_largest(const float* scores, typename V::Float* largest) {
#pragma GCC unroll 8
  for (int n = 0; n < kVectors; ++n) {
    auto most = largest[n];
#pragma GCC unroll 8
    for (int i = 0; i < V::kProductRows; ++i) {
      most = V::max(most, V::load(scores + (i * kVectors + n) * V::kLanes));
    }
    largest[n] = most;
  }
}

// Computes scores[key][lane] of num_keys keys, rounded up to kProductRows. The largest score of
// every lane is folded into `largest` (with tiles, only if kMax).
template <class V, int kVectors, bool kMax>
inline void score_keys(const ScoreBlock<V>& block, float* scores, typename V::Float* largest) {
  constexpr std::int64_t kWidth = kVectors * V::kLanes;
  for (std::int64_t row = 0; row < block.num_keys; row += V::kProductRows) {
    const typename V::Element* keys = block.keys + row * block.key_stride;
    block.ahead->fetch();
    float* to = scores + row * kWidth;
    const bool is_plain =
        row >= block.full_begin && row + V::kProductRows <= block.full_end && block.scale->is_plain;
    if constexpr (V::kHasTiles) {
      multiply_keys<V, kVectors>(keys, block.key_stride, block.queries, to);
      if (kMax && is_plain) fold_largest<V, kVectors>(to, largest);
    } else if (is_plain) {
      product<V, V::kProductRows, kVectors, AForm::kRowMajor, Before::kZero, true>(
          block.depth, keys, block.key_stride, block.queries, kWidth, to, kWidth, nullptr, largest);
    } else {
      product<V, V::kProductRows, kVectors, AForm::kRowMajor, Before::kZero, false>(
          block.depth, keys, block.key_stride, block.queries, kWidth, to, kWidth, nullptr, nullptr);
    }
    if (!is_plain) masked_scores<V, kVectors>(block, row, to, largest);
  }
}

// Cuts a step to packed keys [first_packed, end_packed). Returns false if nothing is left. It keeps
// whole pairs, so the first key may be one that no row of the step attends.
template <class V>
CONTEXTILE_INLINE bool cut_step(const PanelStep& step, std::int64_t first_packed,
                                std::int64_t end_packed, ScoreBlock<V>& block) {
  std::int64_t begin = larger(step.begin, first_packed);
  const std::int64_t end = smaller(step.end, end_packed);
  if (begin >= end) return false;
  begin -= (begin - first_packed) % V::kPair;
  block.step = &step;
  block.first_key = begin;
  block.num_keys = end - begin;
  block.full_begin = larger(step.full_begin, begin) - begin;
  block.full_end = smaller(step.full_end, end) - begin;
  return true;
}

// The smallest range that holds the keys of [begin, end) that any step of the panels meets.
struct KeySpan {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  CONTEXTILE_INLINE void add(std::int64_t first, std::int64_t last) {
    if (first >= last) return;
    begin = begin == end ? first : smaller(begin, first);
    end = larger(end, last);
  }
};

CONTEXTILE_INLINE KeySpan meeting_keys(const PanelBands& bands, std::int64_t first_panel,
                                       std::int64_t num_panels, std::int64_t begin,
                                       std::int64_t end) {
  KeySpan span;
  for (std::int64_t p = first_panel; p < first_panel + num_panels; ++p) {
    const auto steps = bands.steps(p);
    for (std::size_t s = 0; s < steps.size(); ++s) {
      span.add(larger(steps[s].begin, begin), smaller(steps[s].end, end));
    }
  }
  return span;
}

// Places arrays one after another in a workspace, 64-byte aligned. With null memory it only counts.
class Carver {
 public:
  CONTEXTILE_INLINE explicit Carver(void* memory) : memory_(static_cast<char*>(memory)) {}
  template <typename T>
  CONTEXTILE_INLINE T* take(std::int64_t elements) {
    auto* at = reinterpret_cast<T*>(memory_ + used_);
    used_ +=
        static_cast<std::size_t>(round_up(elements * static_cast<std::int64_t>(sizeof(T)), 64));
    return at;
  }
  [[nodiscard]] CONTEXTILE_INLINE std::size_t used_bytes() const { return used_; }

 private:
  char* memory_;
  std::size_t used_ = 0;
};

// Places the lanes of a panel of up to `width` rows.
CONTEXTILE_INLINE LaneTerms take_lanes(Carver& carver, std::int64_t width) {
  LaneTerms lanes;
  lanes.heads = carver.take<std::int32_t>(width);
  lanes.tokens = carver.take<std::int32_t>(width);
  lanes.positions = carver.take<std::int32_t>(width);
  lanes.cells = carver.take<std::int32_t>(width);
  lanes.own_cells = carver.take<std::int32_t>(width);
  lanes.slopes = carver.take<float>(width);
  return lanes;
}

}  // namespace contextile
