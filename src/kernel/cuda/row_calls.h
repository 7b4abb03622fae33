// The row operations of a device: a warp for each row, several calls per launch. They are compiled
// without fusing multiply and add, so they give the same bits as on the CPU. Sums of elements are
// of fp32 (paired_sums.h), and of fp64 where that leaves their rounding undecided.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernel/cpu/row_math.h"
#include "kernel/cuda/held_rows.h"
#include "kernel/cuda/layout.h"
#include "kernel/cuda/merge_call.h"
#include "kernel/cuda/paired_sums.h"
#include "kernel/cuda/row_views.h"

namespace contextile::cuda {

inline constexpr int kParameterBytes = 4096;  // of a launch

// ------------------------------------------------------------------------------------- calls

// Sets dst to the sum of the sources in order. dst may be among them.
struct SumCall {
  RowShape shape;
  RowsView dst;
  Sources<RowsView> sources;

  template <typename Cta>
  CONTEXTILE_HD void run(Cta& cta, std::int64_t row, const RowsView* near) const {
    const std::int64_t n = shape.token(row);
    const std::int32_t h = shape.head(row);
    cta.each_lane([&](int lane) {
      HeldSums<PlainSum> sums;
      for (std::int32_t s = 0; s < sources.count; ++s) {
        const RowsView& source = sources.at(s, near);
        each_held_chunk(lane, shape.dim, [&](int chunk, std::int32_t d, int count) {
          float x[kChunk];
          source.load_chunk(source.at(n, h) + d, count, x);
          CONTEXTILE_UNROLL
          for (int i = 0; i < kChunk; ++i) {
            if (i < count) sums.x[chunk][i].add(x[i]);
          }
        });
      }
      HeldFloats rounded;
      if (!decide(lane, shape.dim, sources.count, sums, rounded)) {
        sum_in_fp64(lane, near, n, h, rounded);
      }
      each_held_chunk(lane, shape.dim, [&](int chunk, std::int32_t d, int count) {
        dst.store_chunk(dst.at(n, h) + d, count, rounded.x[chunk]);
      });
    });
  }

 private:
  CONTEXTILE_HD void sum_in_fp64(int lane, const RowsView* near, std::int64_t n, std::int32_t h,
                                 HeldFloats& rounded) const {
    each_held_chunk(lane, shape.dim, [&](int chunk, std::int32_t d, int count) {
      CONTEXTILE_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        if (i >= count) continue;
        double sum = -0.0;  // so that a sum of negative zeros is a negative zero
        for (std::int32_t s = 0; s < sources.count; ++s) {
          const RowsView& source = sources.at(s, near);
          sum += static_cast<double>(source.load(source.at(n, h) + d + i));
        }
        rounded.x[chunk][i] = static_cast<float>(sum);
      }
    });
  }
};

// Sets delta to rowsum(dO ∘ O). In fp64, element d is added to sum d modulo 32, then the number of
// sums is halved until one is left.
struct DeltaCall {
  RowShape shape;
  RowsView dout, out;
  StatsView delta;

  template <typename Cta>
  CONTEXTILE_HD void run(Cta& cta, std::int64_t row) const {
    const std::int64_t n = shape.token(row);
    const std::int32_t h = shape.head(row);
    const std::int64_t dout_at = dout.at(n, h);
    const std::int64_t out_at = out.at(n, h);
    typename Cta::template PerLane<PairedSum> sums;
    cta.each_lane([&](int lane) {
      sums[lane] = {};
      each_chunk(lane, shape.dim, [&](std::int32_t d, int count) {
        float a[kChunk];
        float b[kChunk];
        dout.load_chunk(dout_at + d, count, a);
        out.load_chunk(out_at + d, count, b);
        CONTEXTILE_UNROLL
        for (int i = 0; i < kChunk; ++i) {
          if (i < count) sums[lane].add_product(a[i], b[i]);
        }
      });
    });
    cta.halve_sums(sums);
    const int terms = (shape.dim + kChunksOfWarp - 1) / kChunksOfWarp * kChunk + 2 * kLevels;
    typename Cta::template PerLane<float> rounded;
    typename Cta::template PerLane<bool> undecided;
    cta.each_lane([&](int lane) {
      undecided[lane] = lane == 0 && !sums[lane].decides(terms, rounded[lane]);
    });
    if (cta.any_lane(undecided)) sum_in_fp64(cta, dout_at, out_at, rounded);
    cta.each_lane([&](int lane) {
      if (lane == 0) delta.at(n, h) = rounded[lane];
    });
  }

 private:
  static constexpr int kLevels = 5;  // of 32 sums that are halved

  template <typename Cta>
  CONTEXTILE_HD void sum_in_fp64(Cta& cta, std::int64_t dout_at, std::int64_t out_at,
                                 typename Cta::template PerLane<float>& rounded) const {
    typename Cta::template PerLane<double> sums;
    cta.each_lane([&](int lane) {
      sums[lane] = 0;
      for (int d = lane; d < shape.dim; d += kLanes) {
        sums[lane] +=
            static_cast<double>(dout.load(dout_at + d)) * static_cast<double>(out.load(out_at + d));
      }
    });
    cta.halve_sums(sums);
    cta.each_lane([&](int lane) { rounded[lane] = static_cast<float>(sums[lane]); });
  }
};

// Copies rows, rounded to nearest even if dst is narrower. Equal types keep their bits.
struct ConvertCall {
  RowShape shape;
  RowsView dst, src;

  template <typename Cta>
  CONTEXTILE_HD void run(Cta& cta, std::int64_t row) const {
    const std::int64_t to = dst.at(shape.token(row), shape.head(row));
    const std::int64_t from = src.at(shape.token(row), shape.head(row));
    cta.each_lane([&](int lane) {
      each_chunk(lane, shape.dim, [&](std::int32_t d, int count) {
        if (dst.type == src.type) return copy_chunk(to + d, from + d, count);
        float x[kChunk];
        src.load_chunk(from + d, count, x);
        dst.store_chunk(to + d, count, x);
      });
    });
  }

 private:
  template <typename Word>
  CONTEXTILE_HD void copy_words(std::int64_t to, std::int64_t from, int count) const {
    for (int i = 0; i < count; ++i) {
      static_cast<Word*>(dst.data)[to + i] = static_cast<const Word*>(src.data)[from + i];
    }
  }
  template <typename Word, typename Chunk>
  CONTEXTILE_HD void copy_chunk_of(std::int64_t to, std::int64_t from, int count) const {
    if (count < kChunk || !dst.is_wide || !src.is_wide) return copy_words<Word>(to, from, count);
    *reinterpret_cast<Chunk*>(static_cast<Word*>(dst.data) + to) =
        *reinterpret_cast<const Chunk*>(static_cast<const Word*>(src.data) + from);
  }
  CONTEXTILE_HD void copy_chunk(std::int64_t to, std::int64_t from, int count) const {
    if (dst.type == RowType::kF32) {
      copy_chunk_of<std::uint32_t, FourWords>(to, from, count);
    } else {
      copy_chunk_of<std::uint16_t, FourHalves>(to, from, count);
    }
  }
};

// Rounds accumulated outputs and applies the sinks of the heads.
struct FinishCall {
  RowShape shape;
  PartialView accumulated;
  const float* sink_H = nullptr;  // null: none
  RowsView out;
  StatsView lse;

  template <typename Cta>
  CONTEXTILE_HD void run(Cta& cta, std::int64_t row) const {
    const std::int64_t n = shape.token(row);
    const std::int32_t h = shape.head(row);
    const float held = accumulated.lse.at(n, h);
    double weight = 1;
    float final_lse = held;
    if (sink_H != nullptr) {
      const auto a = static_cast<double>(held);
      const auto b = static_cast<double>(sink_H[h]);
      double top = b > a ? b : a;
      if (top < -1e300) top = 0;
      weight = exp_of_negative(a - top);
      const double sum = weight + exp_of_negative(b - top);
      final_lse = sum == 0 ? kEmptyLse : static_cast<float>(top + log_of(sum));
      if (sum != 0) weight *= 1 / sum;
    }
    const FloatPair pair = pair_of(weight);
    cta.sync_warp();  // `lse` may be the memory of `accumulated.lse`
    cta.each_lane([&](int lane) {
      each_chunk(lane, shape.dim, [&](std::int32_t d, int count) {
        float x[kChunk] = {};
        if (held != kEmptyLse) {
          accumulated.o.load_chunk(accumulated.o.at(n, h) + d, count, x);
          CONTEXTILE_UNROLL
          for (int i = 0; i < kChunk; ++i) {
            if (i < count && sink_H != nullptr) x[i] = weighted(weight, pair, x[i]);
          }
        }
        out.store_chunk(out.at(n, h) + d, count, x);
      });
      if (lane == 0) lse.at(n, h) = final_lse;
    });
  }

 private:
  CONTEXTILE_HD static float weighted(double weight, const FloatPair& pair, float x) {
    PairedSum product;
    product.add_product(pair, x);
    float rounded = 0;
    if (weight >= kLeastPair && product.decides(1, rounded)) return rounded;
    return static_cast<float>(weight * static_cast<double>(x));
  }
};

struct FillCall {
  RowShape shape;
  RowsView dst;
  float value = 0;

  template <typename Cta>
  CONTEXTILE_HD void run(Cta& cta, std::int64_t row) const {
    const std::int64_t to = dst.at(shape.token(row), shape.head(row));
    cta.each_lane([&](int lane) {
      const float x[kChunk] = {value, value, value, value};
      each_chunk(lane, shape.dim,
                 [&](std::int32_t d, int count) { dst.store_chunk(to + d, count, x); });
    });
  }
};

// Rows whose share of the gradient of sinks a call computes.
struct SinkPart {
  StatsView lse, delta;
  std::int64_t num_tokens = 0;
};
inline constexpr int kSinkParts = 64;

// Subtracts the sinks' share of the gradient over the tokens of each part from sums_H, part by
// part; there is a row for each head. Token n is added to sum n modulo 32, then the number of sums
// is halved until one is left. shape.tokens is 1.
struct SinkCall {
  RowShape shape;
  const float* sink_H = nullptr;
  double* sums_H = nullptr;
  std::int32_t num_parts = 0;
  SinkPart parts[kSinkParts];

  template <typename Cta>
  CONTEXTILE_HD void run(Cta& cta, std::int64_t row) const {
    const std::int32_t h = shape.head(row);
    const auto sink = static_cast<double>(sink_H[h]);
    for (std::int32_t p = 0; p < num_parts; ++p) {
      const SinkPart& part = parts[p];
      typename Cta::template PerLane<double> sums;
      cta.each_lane([&](int lane) {
        sums[lane] = 0;
        for (std::int64_t n = lane; n < part.num_tokens; n += kLanes) {
          sums[lane] += exp_of_negative(sink - static_cast<double>(part.lse.at(n, h))) *
                        static_cast<double>(part.delta.at(n, h));
        }
      });
      cta.halve_sums(sums);
      cta.each_lane([&](int lane) {
        if (lane == 0) sums_H[h] -= sums[lane];
      });
    }
  }
};
static_assert(sizeof(SinkCall) <= kParameterBytes);

// Sets dst_H to sums_H as fp32. The shape is one row of as many elements.
struct RoundCall {
  RowShape shape;
  const double* sums_H = nullptr;
  float* dst_H = nullptr;

  template <typename Cta>
  CONTEXTILE_HD void run(Cta& cta, std::int64_t) const {
    cta.each_lane([&](int lane) {
      for (int d = lane; d < shape.dim; d += kLanes) dst_H[d] = static_cast<float>(sums_H[d]);
    });
  }
};

// ------------------------------------------------------------------------------------- lists

// Number of calls of a kind that one launch takes.
template <typename Call>
inline constexpr int kCallsOfList = (kParameterBytes - 64) /
                                    static_cast<int>(sizeof(Call) + sizeof(std::int64_t));

// Calls of one kind as one launch, in which no call touches memory that another writes. The rows of
// the first call come first, then those of the second, and so on.
template <typename Call, int kMostCalls>
struct CallRows {
  RowShape shape = {0, 1, 1};  // as many tokens as there are rows
  std::int32_t num_calls = 0;
  std::int64_t end_row[kMostCalls];
  Call calls[kMostCalls];

  [[nodiscard]] CONTEXTILE_HD std::int32_t call_of(std::int64_t row) const {
    std::int32_t first = 0;
    std::int32_t last = num_calls - 1;
    while (first < last) {
      const std::int32_t middle = (first + last) / 2;
      if (row < end_row[middle]) {
        last = middle;
      } else {
        first = middle + 1;
      }
    }
    return first;
  }
  [[nodiscard]] CONTEXTILE_HD std::int64_t row_in(std::int32_t call, std::int64_t row) const {
    return call == 0 ? row : row - end_row[call - 1];
  }
};

template <typename Call>
struct RowList : CallRows<Call, kCallsOfList<Call>> {
  template <typename Cta>
  CONTEXTILE_HD void run(Cta& cta, std::int64_t row) const {
    const std::int32_t call = this->call_of(row);
    this->calls[call].run(cta, this->row_in(call, row));
  }
};

// The same for calls with sources.
template <typename Call, typename Source, int kMostCalls>
struct SourcedList : CallRows<Call, kMostCalls> {
  static constexpr int kMostSources =
      (kParameterBytes - 32 - static_cast<int>(sizeof(CallRows<Call, kMostCalls>))) /
      static_cast<int>(sizeof(Source));
  Source near[kMostSources];

  template <typename Cta>
  CONTEXTILE_HD void run(Cta& cta, std::int64_t row) const {
    const std::int32_t call = this->call_of(row);
    this->calls[call].run(cta, this->row_in(call, row), near);
  }
};

using MergeList = SourcedList<MergeCall, PartialView, 16>;
using SumList = SourcedList<SumCall, RowsView, 20>;
using DeltaList = RowList<DeltaCall>;
using ConvertList = RowList<ConvertCall>;
using FinishList = RowList<FinishCall>;
using FillList = RowList<FillCall>;
static_assert(sizeof(MergeList) <= kParameterBytes && sizeof(SumList) <= kParameterBytes);
static_assert(sizeof(DeltaList) <= kParameterBytes && sizeof(ConvertList) <= kParameterBytes);
static_assert(sizeof(FinishList) <= kParameterBytes && sizeof(FillList) <= kParameterBytes);

}  // namespace contextile::cuda
