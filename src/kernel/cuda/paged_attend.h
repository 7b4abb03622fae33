// Attention of 16 flat rows of a request to a run of keys in pages. Every warp scores 16 keys of a
// step of 64, all warps agree on the rows' largest scores, and each adds a quarter of the values'
// columns. This takes few registers, so many CTAs can have loads on their way.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernel/cuda/paged_cache.h"
#include "kernel/cuda/paged_launch.h"
#include "kernel/cuda/score_steps.h"
#include "kernel/cuda/tile_steps.h"

namespace contextile::cuda {

// The shapes of a CTA's data in shared memory.
template <bool kBytes, int kDim, int kValueDim>
struct PagedShape {
  // Values are the first columns of keys, so shared memory holds both once.
  static constexpr bool kLatent = kDim > 256;
  static constexpr int kQuarter = kValueDim / kWarps;
  static constexpr int kQueries = kPagedRows * kDim;
  static constexpr int kKeys = kPagedStepKeys * kDim;
  static constexpr int kValues = kLatent ? 0 : kPagedStepKeys * kValueDim;
  static constexpr int kWeights = kPagedRows * kPagedStepKeys;
  static constexpr int kNarrow =
      kBytes ? kPagedStepKeys * (kDim > kValueDim ? kDim : kValueDim) / 2 : 0;
  // Number of CTAs of an SM that registers must allow. If fewer are requested, nvcc 13 aims at more
  // and spills.
  static constexpr int kBlocksOfSm = kLatent ? 2 : 4;
  static constexpr std::size_t kShared =
      std::size_t{kQueries + kKeys + kValues + kWeights + kNarrow} * sizeof(std::uint16_t) +
      2 * kWarps * kPagedRows * sizeof(float) + 2 * kPagedStepKeys * sizeof(KeyPlace);
};

struct PagedShared {
  std::uint16_t* q = nullptr;
  std::uint16_t* k = nullptr;
  std::uint16_t* v = nullptr;
  std::uint16_t* weights = nullptr;
  std::uint16_t* narrow = nullptr;  // bytes as they arrive
  float* tops = nullptr;            // [warp][row]: its largest score of a step
  float* sums = nullptr;            // [warp][row]
  KeyPlace* places = nullptr;       // of the keys of two steps
};

template <bool kBytes, int kDim, int kValueDim>
CONTEXTILE_HD PagedShared paged_shared(std::uint16_t* shared) {
  using Shape = PagedShape<kBytes, kDim, kValueDim>;
  PagedShared places;
  places.q = shared;
  places.k = places.q + Shape::kQueries;
  places.v = Shape::kLatent ? places.k : places.k + Shape::kKeys;
  places.weights = places.k + Shape::kKeys + Shape::kValues;
  places.narrow = places.weights + Shape::kWeights;
  places.tops = reinterpret_cast<float*>(places.narrow + Shape::kNarrow);
  places.sums = places.tops + kWarps * kPagedRows;
  places.places = reinterpret_cast<KeyPlace*>(places.sums + kWarps * kPagedRows);
  return places;
}

// The data that a warp keeps from step to step. A lane has parts of two rows, 8 apart.
template <typename Cta, int kQuarter>
struct PagedWarp {
  struct TopAndSum {
    float top[2] = {-INFINITY, -INFINITY};  // of all warps, in units of log2(e)
    float sum[2] = {0, 0};                  // of this lane's keys
  };
  typename Cta::template PerLane<Sums<2>> scores;
  typename Cta::template PerLane<Sums<kQuarter / 8>> out;  // its columns, not yet divided
  typename Cta::template PerLane<TopAndSum> rows;
};

// Iterates over the steps of a work.
class PagedSteps {
 public:
  CONTEXTILE_HD PagedSteps(const PagedLaunch& launch, const PagedWork& work)
      : piece_(launch.pieces + work.first_piece), end_(piece_ + work.num_pieces) {
    if (piece_ != end_) begin_ = piece_->begin;
  }
  [[nodiscard]] CONTEXTILE_HD bool is_over() const { return piece_ == end_; }
  [[nodiscard]] CONTEXTILE_HD PagedPiece step() const {
    const std::int32_t most = begin_ + kPagedStepKeys;
    return {begin_, most < piece_->end ? most : piece_->end, piece_->is_masked};
  }
  CONTEXTILE_HD void advance() {
    begin_ += kPagedStepKeys;
    if (begin_ < piece_->end) return;
    ++piece_;
    if (piece_ != end_) begin_ = piece_->begin;
  }

 private:
  const PagedPiece* piece_;
  const PagedPiece* end_;
  std::int32_t begin_ = 0;
};

// Returns true if a row of the work sees a key.
CONTEXTILE_HD bool sees(const PagedLaunch& launch, const PagedWork& work, std::int32_t row,
                        std::int32_t key) {
  if (row >= work.end) return false;
  const std::int32_t* const split = launch.splits + work.first_split + row / launch.heads;
  for (std::int32_t r = split[0]; r < split[1]; ++r) {
    if (key >= launch.ranges[r].begin && key < launch.ranges[r].end) return true;
  }
  return false;
}

// Turns products into scores in units of log2(e), -inf if a key is not seen. Writes the largest
// score of each row to `tops` for all warps.
template <typename Cta>
CONTEXTILE_HD void finish_paged_scores(Cta& cta, const PagedLaunch& launch, const PagedWork& work,
                                       const PagedPiece& step, float scale, int warp,
                                       typename Cta::template PerLane<Sums<2>>& scores,
                                       float* tops) {
  cta.each_lane([&](int lane) {
    CONTEXTILE_UNROLL
    for (int tile = 0; tile < 2; ++tile) {
      CONTEXTILE_UNROLL
      for (int i = 0; i < 4; ++i) {
        float& s = scores[lane].x[tile][i];
        if (launch.softcap == 0) {
          s *= scale * kLog2OfE;
        } else {
          s = capped_score<Cta>(s, scale, launch.softcap);
        }
        const Place place = place_in_sum(lane, i);
        const std::int32_t key = step.begin + warp * 16 + tile * 8 + place.col;
        const bool is_seen =
            key < step.end && (!step.is_masked || sees(launch, work, work.begin + place.row, key));
        if (!is_seen) s = -INFINITY;
      }
    }
  });
  CONTEXTILE_UNROLL
  for (int half = 0; half < 2; ++half) {
    typename Cta::template PerLane<float> top;
    cta.each_lane([&](int lane) {
      const auto& x = scores[lane].x;
      const int i = half * 2;
      top[lane] = std::fmax(std::fmax(x[0][i], x[0][i + 1]), std::fmax(x[1][i], x[1][i + 1]));
    });
    cta.quad_max(top);
    cta.each_lane([&](int lane) {
      if (lane % 4 == 0) tops[warp * kPagedRows + lane / 4 + half * 8] = top[lane];
    });
  }
}

// Turns scores into weights, which the warp writes to shared memory for all warps, and rescales its
// own sums.
template <Number kNumber, int kQuarter, typename Cta>
CONTEXTILE_HD void weigh_paged(Cta& cta, const PagedShared& shared, int warp,
                               PagedWarp<Cta, kQuarter>& kept) {
  cta.each_lane([&](int lane) {
    auto& rows = kept.rows[lane];
    CONTEXTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + half * 8;
      float top = rows.top[half];
      CONTEXTILE_UNROLL
      for (int w = 0; w < kWarps; ++w) top = std::fmax(top, shared.tops[w * kPagedRows + row]);
      const float base = top == -INFINITY ? 0 : top;  // a row that sees nothing weighs nothing
      const float keep = Cta::exp2(rows.top[half] - base);
      rows.top[half] = top;
      rows.sum[half] *= keep;
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < 2; ++tile) {
        const float* const pair = &kept.scores[lane].x[tile][half * 2];
        const float first = Cta::exp2(pair[0] - base);
        const float second = Cta::exp2(pair[1] - base);
        rows.sum[half] += first + second;
        const int col = warp * 16 + tile * 8 + place_in_sum(lane, 0).col;
        Cta::write_pair(shared.weights + shared_at<kPagedStepKeys>(row, col),
                        Cta::template pack<kNumber>(first, second));
      }
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < kQuarter / 8; ++tile) {
        kept.out[lane].x[tile][half * 2] *= keep;
        kept.out[lane].x[tile][half * 2 + 1] *= keep;
      }
    }
  });
}

// Computes sums += weights · columns [first_col, first_col + kQuarter) of values in rows of
// kStride.
template <Number kNumber, int kStride, int kQuarter, typename Cta>
CONTEXTILE_HD void add_columns(Cta& cta, const std::uint16_t* weights, const std::uint16_t* values,
                               int first_col,
                               typename Cta::template PerLane<Sums<kQuarter / 8>>& sums) {
  CONTEXTILE_UNROLL
  for (int depth = 0; depth < kPagedStepKeys; depth += 16) {
    typename Cta::template PerLane<Registers> a;
    read_left<kPagedStepKeys>(cta, weights, 0, depth, a);
    CONTEXTILE_UNROLL
    for (int tile = 0; tile < kQuarter / 8; tile += 2) {
      typename Cta::template PerLane<const std::uint16_t*> from;
      typename Cta::template PerLane<Registers> b;
      cta.each_lane([&](int lane) {
        const Place place = row_of_left(lane);
        from[lane] =
            values + shared_at<kStride>(depth + place.row, first_col + tile * 8 + place.col);
      });
      cta.template load_matrices<true>(from, b);
      cta.template multiply<kNumber>(sums, tile, a, b, 0);
      cta.template multiply<kNumber>(sums, tile + 1, a, b, 1);
    }
  }
}

template <typename T>
CONTEXTILE_HD DeviceRows<T> rows_from(const DeviceRows<T>& rows, std::int32_t first) {
  return {rows.data + first * rows.token_stride, rows.token_stride, rows.head_stride};
}

// Writes O and LSE of the run: to the rows if it is their only run, otherwise to the parts.
template <int kQuarter, typename Cta>
CONTEXTILE_HD void write_paged(Cta& cta, const PagedLaunch& launch, const PagedWork& work,
                               int kv_head, const float* sums, int warp,
                               PagedWarp<Cta, kQuarter>& kept) {
  const DeviceRows<float> o_of_request = rows_from(launch.o, work.first_row);
  const DeviceRows<float> lse_of_request = rows_from(launch.lse, work.first_row);
  cta.each_lane([&](int lane) {
    CONTEXTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = lane / 4 + half * 8;
      const std::int32_t flat = work.begin + row;
      if (flat >= work.end) continue;
      float sum = 0;
      CONTEXTILE_UNROLL
      for (int w = 0; w < kWarps; ++w) sum += sums[w * kPagedRows + row];
      const float lse = sum > 0 ? (kept.rows[lane].top[half] + std::log2(sum)) * kLn2 : -INFINITY;
      const float share = sum > 0 ? launch.v.scale(kv_head) / sum : 0;
      const std::int64_t part = std::int64_t{work.part + row} * launch.kv_heads + kv_head;
      const bool is_whole = work.part < 0;
      float* const o = is_whole ? o_of_request.at(flat, launch.heads, kv_head)
                                : launch.part_o + part * launch.value_dim;
      if (warp == 0 && lane % 4 == 0) {
        *(is_whole ? lse_of_request.at(flat, launch.heads, kv_head) : launch.part_lse + part) = lse;
      }
      CONTEXTILE_UNROLL
      for (int tile = 0; tile < kQuarter / 8; ++tile) {
        CONTEXTILE_UNROLL
        for (int i = 0; i < 2; ++i) {
          const int col = warp * kQuarter + tile * 8 + place_in_sum(lane, i).col;
          if (col < launch.value_dim) o[col] = share * kept.out[lane].x[tile][half * 2 + i];
        }
      }
    }
  });
}

// Writes the weights of a step's keys to shared memory. All warps may read them after the next wait
// for copies.
template <Number kNumber, int kDim, int kQuarter, typename Cta>
CONTEXTILE_HD void score_step(Cta& cta, const PagedLaunch& launch, const PagedWork& work,
                              const PagedPiece& step, int kv_head, const PagedShared& shared,
                              typename Cta::template PerWarp<PagedWarp<Cta, kQuarter>>& warps) {
  const float scale = launch.scale * launch.k.scale(kv_head);
  cta.each_warp([&](int w) {
    multiply_rows<kNumber, kDim, 2>(cta, shared.q, 0, shared.k + w * 16 * kDim, warps[w].scores);
    finish_paged_scores(cta, launch, work, step, scale, w, warps[w].scores, shared.tops);
  });
  cta.sync();  // the largest scores of every warp are there
  cta.each_warp([&](int w) { weigh_paged<kNumber, kQuarter>(cta, shared, w, warps[w]); });
}

// Adds the sums of all lanes and warps and writes the results of the work.
template <int kQuarter, typename Cta>
CONTEXTILE_HD void finish_paged(Cta& cta, const PagedLaunch& launch, const PagedWork& work,
                                int kv_head, const PagedShared& shared,
                                typename Cta::template PerWarp<PagedWarp<Cta, kQuarter>>& warps) {
  cta.wait_for_copies();
  cta.each_warp([&](int w) {
    CONTEXTILE_UNROLL
    for (int half = 0; half < 2; ++half) {
      typename Cta::template PerLane<float> sum;
      cta.each_lane([&](int lane) { sum[lane] = warps[w].rows[lane].sum[half]; });
      cta.quad_sum(sum);
      cta.each_lane([&](int lane) {
        if (lane % 4 == 0) shared.sums[w * kPagedRows + lane / 4 + half * 8] = sum[lane];
      });
    }
  });
  cta.sync();
  cta.each_warp(
      [&](int w) { write_paged<kQuarter>(cta, launch, work, kv_head, shared.sums, w, warps[w]); });
}

// Does everything one CTA does. Values are on their way while keys are scored, and the next step's
// keys while values are added. The keys of a latent cache are also its values, so the next ones
// wait until both uses are done.
template <Number kNumber, bool kBytes, int kDim, int kValueDim, typename Cta>
CONTEXTILE_HD void paged_cta(Cta& cta, const PagedLaunch& launch, const PagedWork& work,
                             int kv_head, std::uint16_t* memory) {
  using Shape = PagedShape<kBytes, kDim, kValueDim>;
  constexpr int kQuarter = Shape::kQuarter;
  constexpr int kStride = Shape::kLatent ? kDim : kValueDim;
  const PagedShared shared = paged_shared<kBytes, kDim, kValueDim>(memory);
  std::uint16_t* const k_arrives = kBytes ? shared.narrow : shared.k;
  std::uint16_t* const v_arrives = kBytes ? shared.narrow : shared.v;
  typename Cta::template PerWarp<PagedWarp<Cta, kQuarter>> warps;
  PagedSteps steps(launch, work);
  load_rows<kPagedRows, kDim>(cta, shared.q, rows_from(launch.q, work.first_row), launch.heads,
                              kv_head, work.begin, work.end, launch.head_dim);
  if (!steps.is_over()) find_places(cta, launch, work, steps.step(), shared.places);
  cta.sync();
  const KeyPlace* places = shared.places;
  if (!steps.is_over()) {
    load_paged_rows<kBytes, kDim>(cta, k_arrives, launch.k, places, kv_head, launch.head_dim);
  }
  for (int turn = 0; !steps.is_over(); ++turn) {
    const PagedPiece step = steps.step();
    steps.advance();
    KeyPlace* const next = shared.places + (turn + 1) % 2 * kPagedStepKeys;
    if (!steps.is_over()) find_places(cta, launch, work, steps.step(), next);
    cta.wait_for_copies();  // keys have arrived, no warp reads values
    if constexpr (kBytes) {
      widen_rows<kNumber, kDim>(cta, shared.narrow, launch.is_int8, shared.k);
      cta.sync();
    }
    if constexpr (!Shape::kLatent) {
      load_paged_rows<kBytes, kValueDim>(cta, v_arrives, launch.v, places, kv_head,
                                         launch.value_dim);
    }
    score_step<kNumber, kDim, kQuarter>(cta, launch, work, step, kv_head, shared, warps);
    cta.wait_for_copies();  // values and weights are there, no warp reads keys for scores
    if constexpr (kBytes && !Shape::kLatent) {
      widen_rows<kNumber, kValueDim>(cta, shared.narrow, launch.is_int8, shared.v);
      cta.sync();
    }
    places = next;
    const auto load_next = [&] {
      if (steps.is_over()) return;
      load_paged_rows<kBytes, kDim>(cta, k_arrives, launch.k, places, kv_head, launch.head_dim);
    };
    if constexpr (!Shape::kLatent || kBytes) load_next();
    cta.each_warp([&](int w) {
      add_columns<kNumber, kStride, kQuarter>(cta, shared.weights, shared.v, w * kQuarter,
                                              warps[w].out);
    });
    if constexpr (Shape::kLatent && !kBytes) {
      cta.sync();
      load_next();
    }
  }
  finish_paged<kQuarter>(cta, launch, work, kv_head, shared, warps);
}

}  // namespace contextile::cuda
