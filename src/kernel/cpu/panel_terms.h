// The terms of a call on panels: a bias that is added to scores, and factors of dropped weights.
#pragma once

#include <cstdint>

#include "kernel/cpu/dropout.h"
#include "kernel/cpu/pack.h"
#include "kernel/cpu/task.h"

namespace contextile {

// Fills the lanes of a panel. Lanes beyond its rows get the place of its first row.
template <class V>
inline void start_lanes(const TaskTerms& terms, const TilePlaces& places, const Panel& panel,
                        std::int64_t heads, std::int64_t kv_head, const LaneTerms& to) {
  const std::int64_t width = std::int64_t{panel.vectors} * V::kLanes;
  for (std::int64_t i = 0; i < width; ++i) {
    const std::int64_t row = panel.first_row + (i < panel.num_rows ? i : 0);
    const std::int64_t token = row / heads;
    const std::int64_t head = kv_head * heads + row % heads;
    const TokenPlace& place = places.q_N[static_cast<std::size_t>(token)];
    to.heads[i] = places.first_head + static_cast<std::int32_t>(head);
    to.tokens[i] = place.token;
    to.positions[i] = place.position;
    to.slopes[i] = terms.slopes_log2 == nullptr ? 0 : terms.slopes_log2[to.heads[i]];
    to.cells[i] = to.heads[i] * terms.num_offsets;
    to.own_cells[i] = static_cast<std::int32_t>(row % heads) * terms.num_offsets;
  }
}

// Returns the lane's cell in a row of the table by offset.
CONTEXTILE_INLINE std::int32_t offset_of(const TaskTerms& terms, std::int32_t key_position,
                                         std::int32_t query_position) {
  const std::int32_t at = key_position - query_position - terms.first_offset;
  const std::int32_t least = at < 0 ? 0 : at;
  return least < terms.num_offsets ? least : terms.num_offsets - 1;
}

// Computes the bias of one key for all lanes, in units of log2.
template <class V, int kVectors>
CONTEXTILE_INLINE void bias_of_key(const TaskTerms& terms, const LaneTerms& lanes,
                                   std::int32_t key_position, float* __restrict bias) {
  constexpr int kWidth = kVectors * V::kLanes;
  const std::int32_t* __restrict positions = lanes.positions;
  const float* __restrict slopes = lanes.slopes;
  for (int i = 0; i < kWidth; ++i) {
    bias[i] = slopes[i] * static_cast<float>(key_position - positions[i]);
  }
  if (terms.by_offset_log2 == nullptr) return;
  const float* __restrict table = terms.by_offset_log2;
  const std::int32_t* __restrict cells = lanes.cells;
  for (int i = 0; i < kWidth; ++i) {
    bias[i] += table[cells[i] + offset_of(terms, key_position, positions[i])];
  }
}

// Adds the bias to the scores of one key.
template <class V, int kVectors>
[[gnu::noinline]] void add_bias(const TaskTerms& terms, const LaneTerms& lanes,
                                std::int32_t key_position, float* scores) {
  constexpr int kWidth = kVectors * V::kLanes;
  float bias[kWidth];
  bias_of_key<V, kVectors>(terms, lanes, key_position, bias);
  for (int n = 0; n < kVectors; ++n) {
    float* const at = scores + n * V::kLanes;
    V::store(at, V::add(V::load(at), V::load(bias + n * V::kLanes)));
  }
}

// Computes the dropout factors of `num_keys` keys, [key][width]; those of `num_rows - num_keys`
// rows more are 0. One draw serves the four keys of a counter.
template <class V, int kVectors>
[[gnu::noinline]] void draw_factors(const Dropout& dropout, const LaneTerms& lanes,
                                    const TokenPlace* keys, std::int64_t num_keys,
                                    std::int64_t num_rows, float* __restrict factors) {
  constexpr int kWidth = kVectors * V::kLanes;
  std::uint32_t words[4][kWidth];
  std::int32_t drawn = -1;
  for (std::int64_t k = 0; k < num_keys; ++k) {
    const std::int32_t group = keys[k].token / 4;
    if (group != drawn) {
      drawn = group;
      const std::int32_t* __restrict heads = lanes.heads;
      const std::int32_t* __restrict tokens = lanes.tokens;
      for (int i = 0; i < kWidth; ++i) {
        const PhiloxWords some = dropout_words(dropout, heads[i], tokens[i], group);
        words[0][i] = some.word[0];
        words[1][i] = some.word[1];
        words[2][i] = some.word[2];
        words[3][i] = some.word[3];
      }
    }
    const std::uint32_t* __restrict row = words[keys[k].token % 4];
    for (int i = 0; i < kWidth; ++i) {
      factors[k * kWidth + i] = row[i] < dropout.threshold ? 0.0F : dropout.kept;
    }
  }
  for (std::int64_t i = num_keys * kWidth; i < num_rows * kWidth; ++i) factors[i] = 0;
}

// Sums the gradients of scores by offset and head of the KV head. Most keys of long documents lie
// beyond the table's offsets for all lanes, so they are summed by lane first.
template <class V, int kVectors>
class OffsetGradients {
 public:
  OffsetGradients(const TaskTerms& terms, const LaneTerms& lanes, double* sums)
      : terms_(terms), lanes_(lanes), sums_(sums) {
    first_ = last_ = lanes.positions[0];
    for (int i = 0; i < kWidth; ++i) {
      first_ = first_ < lanes.positions[i] ? first_ : lanes.positions[i];
      last_ = last_ < lanes.positions[i] ? lanes.positions[i] : last_;
      before_[i] = after_[i] = 0;
    }
  }

  void add(std::int32_t key_position, const float* gradients) {
    const std::int32_t last_offset = terms_.first_offset + terms_.num_offsets - 1;
    if (key_position - first_ <= terms_.first_offset) {
      for (int i = 0; i < kWidth; ++i) before_[i] += gradients[i];
    } else if (key_position - last_ >= last_offset) {
      for (int i = 0; i < kWidth; ++i) after_[i] += gradients[i];
    } else {
      for (int i = 0; i < kWidth; ++i) {
        sums_[lanes_.own_cells[i] + offset_of(terms_, key_position, lanes_.positions[i])] +=
            double{gradients[i]};
      }
    }
  }

  void finish() {
    for (int i = 0; i < kWidth; ++i) {
      sums_[lanes_.own_cells[i]] += double{before_[i]};
      sums_[lanes_.own_cells[i] + terms_.num_offsets - 1] += double{after_[i]};
    }
  }

 private:
  static constexpr int kWidth = kVectors * V::kLanes;
  const TaskTerms& terms_;
  const LaneTerms& lanes_;
  double* const sums_;
  std::int32_t first_;
  std::int32_t last_;
  float before_[kWidth];
  float after_[kWidth];
};

}  // namespace contextile
