// The kernel that merges partial outputs.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernel/cpu/row_math.h"
#include "kernel/cuda/held_rows.h"
#include "kernel/cuda/layout.h"
#include "kernel/cuda/paired_sums.h"
#include "kernel/cuda/row_views.h"

namespace contextile::cuda {

inline constexpr float kEmptyLse = -INFINITY;

// Sets dst to the merge of the sources in order. dst may be among them.
struct MergeCall {
  RowShape shape;
  PartialView dst;
  Sources<PartialView> sources;

  // The weights of up to 32 sources, one in each lane.
  template <typename Cta>
  struct Weights {
    typename Cta::template PerLane<double> whole;
    typename Cta::template PerLane<float> high, low;  // a FloatPair
  };

  template <typename Cta>
  CONTEXTILE_HD void run(Cta& cta, std::int64_t row, const PartialView* near) const {
    const std::int64_t n = shape.token(row);
    const std::int32_t h = shape.head(row);
    float largest = sources.at(0, near).lse.at(n, h);
    for (std::int32_t s = 1; s < sources.count; ++s) {
      const float lse = sources.at(s, near).lse.at(n, h);
      largest = lse > largest ? lse : largest;
    }
    const double top = largest == -INFINITY ? 0.0 : static_cast<double>(largest);
    typename Cta::template PerLane<double> powers;
    double sum = 0;
    for (std::int32_t first = 0; first < sources.count; first += kLanes) {
      find_powers(cta, near, n, h, top, first, powers);
      for (int s = 0; s < kLanes && first + s < sources.count; ++s) {
        sum += cta.broadcast(powers, s);
      }
    }
    const double scale = sum == 0 ? 0.0 : 1 / sum;
    const auto weights_from = [&](std::int32_t first, Weights<Cta>& weights) {
      if (sources.count > kLanes) find_powers(cta, near, n, h, top, first, powers);
      cta.each_lane([&](int lane) {
        const double weight = powers[lane] * scale;
        const FloatPair pair = pair_of(weight);
        weights.whole[lane] = weight;
        weights.high[lane] = pair.high;
        weights.low[lane] = pair.low;
      });
    };
    typename Cta::template PerLane<HeldFloats> merged;
    if (!merge_pairs(cta, near, n, h, weights_from, merged)) {
      merge_in_fp64(cta, near, n, h, sum == 0 ? 0.0 : -0.0, weights_from, merged);
    }
    const double lse = sum == 0 ? static_cast<double>(kEmptyLse) : top + log_of(sum);
    cta.sync_warp();  // every lane has read the LSE of the row
    cta.each_lane([&](int lane) {
      each_held_chunk(lane, shape.dim, [&](int chunk, std::int32_t d, int count) {
        dst.o.store_chunk(dst.o.at(n, h) + d, count, merged[lane].x[chunk]);
      });
      if (lane == 0) dst.lse.at(n, h) = static_cast<float>(lse);
    });
  }

 private:
  // Sets each lane's power to that of source `first` + lane, before it is scaled.
  template <typename Cta>
  CONTEXTILE_HD void find_powers(Cta& cta, const PartialView* near, std::int64_t n, std::int32_t h,
                                 double top, std::int32_t first,
                                 typename Cta::template PerLane<double>& powers) const {
    cta.each_lane([&](int lane) {
      const std::int32_t s = first + lane;
      if (s >= sources.count) {
        powers[lane] = 0;
        return;
      }
      powers[lane] = exp_of_negative(static_cast<double>(sources.at(s, near).lse.at(n, h)) - top);
    });
  }

  // Returns true if all elements are decided. The memory of an empty row is never read.
  template <typename Cta, typename WeightsFrom>
  CONTEXTILE_HD bool merge_pairs(Cta& cta, const PartialView* near, std::int64_t n, std::int32_t h,
                                 const WeightsFrom& weights_from,
                                 typename Cta::template PerLane<HeldFloats>& merged) const {
    typename Cta::template PerLane<HeldSums<PairedSum>> sums;
    typename Cta::template PerLane<bool> undecided;
    cta.each_lane([&](int lane) {
      sums[lane] = {};
      undecided[lane] = false;
    });
    Weights<Cta> weights;
    for (std::int32_t first = 0; first < sources.count; first += kLanes) {
      weights_from(first, weights);
      cta.each_lane([&](int lane) {
        const double weight = weights.whole[lane];
        if (weight != 0 && !(weight >= kLeastPair)) undecided[lane] = true;
      });
      for (int s = 0; s < kLanes && first + s < sources.count; ++s) {
        const FloatPair weight = {cta.broadcast(weights.high, s), cta.broadcast(weights.low, s)};
        if (weight.high == 0) continue;
        const RowsView& o = sources.at(first + s, near).o;
        cta.each_lane([&](int lane) {
          each_held_chunk(lane, shape.dim, [&](int chunk, std::int32_t d, int count) {
            float x[kChunk];
            o.load_chunk(o.at(n, h) + d, count, x);
            CONTEXTILE_UNROLL
            for (int i = 0; i < kChunk; ++i) {
              if (i < count) sums[lane].x[chunk][i].add_product(weight, x[i]);
            }
          });
        });
      }
    }
    cta.each_lane([&](int lane) {
      if (!decide(lane, shape.dim, sources.count, sums[lane], merged[lane])) undecided[lane] = true;
    });
    return !cta.any_lane(undecided);
  }

  template <typename Cta, typename WeightsFrom>
  CONTEXTILE_HD void merge_in_fp64(Cta& cta, const PartialView* near, std::int64_t n,
                                   std::int32_t h, double zero, const WeightsFrom& weights_from,
                                   typename Cta::template PerLane<HeldFloats>& merged) const {
    typename Cta::template PerLane<HeldDoubles> sums;
    cta.each_lane([&](int lane) {
      for (auto& chunk : sums[lane].x) {
        for (double& x : chunk) x = zero;
      }
    });
    Weights<Cta> weights;
    for (std::int32_t first = 0; first < sources.count; first += kLanes) {
      weights_from(first, weights);
      for (int s = 0; s < kLanes && first + s < sources.count; ++s) {
        const double weight = cta.broadcast(weights.whole, s);
        if (weight == 0) continue;
        const RowsView& o = sources.at(first + s, near).o;
        cta.each_lane([&](int lane) {
          each_held_chunk(lane, shape.dim, [&](int chunk, std::int32_t d, int count) {
            for (int i = 0; i < count; ++i) {
              sums[lane].x[chunk][i] += weight * static_cast<double>(o.load(o.at(n, h) + d + i));
            }
          });
        });
      }
    }
    cta.each_lane([&](int lane) {
      for (int chunk = 0; chunk < kHeldChunks; ++chunk) {
        for (int i = 0; i < kChunk; ++i) {
          merged[lane].x[chunk][i] = static_cast<float>(sums[lane].x[chunk][i]);
        }
      }
    });
  }
};

}  // namespace contextile::cuda
