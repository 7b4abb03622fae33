// The row operations of a device: a warp for each row, element d in lane d modulo 32, several calls
// per launch. They are compiled without fusing multiply and add, so they give the same bits as on
// the CPU.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "kernel/cpu/row_math.h"
#include "kernel/cuda/layout.h"

namespace contextile::cuda {

inline constexpr int kMaxRowDim = 256;
inline constexpr int kRowParts = kMaxRowDim / kLanes;  // elements of a row in one lane
inline constexpr int kParameterBytes = 4096;           // of a launch
inline constexpr float kEmptyLse = -INFINITY;

enum class RowType : std::uint8_t { kF32, kBf16, kF16 };

// Rows of heads, token by token. Strides count elements.
struct RowsView {
  void* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
  RowType type = RowType::kF32;

  [[nodiscard]] CONTEXTILE_HD std::int64_t at(std::int64_t token, std::int32_t head) const {
    return token * token_stride + head * head_stride;
  }
  [[nodiscard]] CONTEXTILE_HD float load(std::int64_t element) const {
    if (type == RowType::kF32) return static_cast<const float*>(data)[element];
    const std::uint16_t bits = static_cast<const std::uint16_t*>(data)[element];
    return type == RowType::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
  CONTEXTILE_HD void store(std::int64_t element, float value) const {
    if (type == RowType::kF32) {
      static_cast<float*>(data)[element] = value;
      return;
    }
    static_cast<std::uint16_t*>(data)[element] =
        type == RowType::kBf16 ? float_to_bf16(value) : float_to_f16(value);
  }
};

struct StatsView {
  float* data = nullptr;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;

  [[nodiscard]] CONTEXTILE_HD float& at(std::int64_t token, std::int32_t head) const {
    return data[token * token_stride + head * head_stride];
  }
};

struct PartialView {
  RowsView o;
  StatsView lse;
};

// The rows of a call, and the row of each warp.
struct RowShape {
  std::int64_t tokens = 0;
  std::int32_t heads = 0;
  std::int32_t dim = 0;

  [[nodiscard]] CONTEXTILE_HD std::int64_t num_rows() const { return tokens * heads; }
  [[nodiscard]] CONTEXTILE_HD std::int64_t token(std::int64_t row) const { return row / heads; }
  [[nodiscard]] CONTEXTILE_HD std::int32_t head(std::int64_t row) const {
    return static_cast<std::int32_t>(row % heads);
  }
};

// The sources of a call. They are among those that go with its list or, if they are many, in device
// memory.
template <typename Source>
struct Sources {
  const Source* far = nullptr;
  std::int32_t first = 0;
  std::int32_t count = 0;

  [[nodiscard]] CONTEXTILE_HD const Source& at(std::int32_t s, const Source* near) const {
    return far == nullptr ? near[first + s] : far[s];
  }
};

// A lane's elements of a row in fp64.
struct LaneSums {
  double x[kRowParts] = {};
};

template <typename Work>
CONTEXTILE_HD void each_element(int lane, std::int32_t dim, const Work& work) {
  CONTEXTILE_UNROLL
  for (int part = 0; part < kRowParts; ++part) {
    const int d = part * kLanes + lane;
    if (d < dim) work(part, d);
  }
}

// ------------------------------------------------------------------------------------- calls

// Sets dst to the merge of the sources in order. dst may be among them.
struct MergeCall {
  RowShape shape;
  PartialView dst;
  Sources<PartialView> sources;

  template <typename Cta>
  CONTEXTILE_HD void run(Cta& cta, std::int64_t row, const PartialView* near) const {
    const std::int64_t n = shape.token(row);
    const std::int32_t h = shape.head(row);
    double top = static_cast<double>(sources.at(0, near).lse.at(n, h));
    for (std::int32_t s = 1; s < sources.count; ++s) {
      const auto lse = static_cast<double>(sources.at(s, near).lse.at(n, h));
      top = lse > top ? lse : top;
    }
    if (top < -1e300) top = 0;
    double sum = 0;
    for (std::int32_t s = 0; s < sources.count; ++s) {
      sum += exp_of_negative(static_cast<double>(sources.at(s, near).lse.at(n, h)) - top);
    }
    const double scale = sum == 0 ? 0.0 : 1 / sum;
    typename Cta::template PerLane<LaneSums> merged;
    cta.each_lane([&](int lane) {
      LaneSums& sums = merged[lane];
      for (int part = 0; part < kRowParts; ++part) sums.x[part] = sum == 0 ? 0.0 : -0.0;
      for (std::int32_t s = 0; s < sources.count; ++s) {
        const double weight =
            exp_of_negative(static_cast<double>(sources.at(s, near).lse.at(n, h)) - top) * scale;
        if (weight == 0) continue;  // the memory of an empty row is never read
        const RowsView& o = sources.at(s, near).o;
        each_element(lane, shape.dim, [&](int part, int d) {
          sums.x[part] += weight * static_cast<double>(o.load(o.at(n, h) + d));
        });
      }
    });
    const double lse = sum == 0 ? static_cast<double>(kEmptyLse) : top + log_of(sum);
    cta.sync_warp();  // every lane has read the LSE of the row
    cta.each_lane([&](int lane) {
      each_element(lane, shape.dim, [&](int part, int d) {
        dst.o.store(dst.o.at(n, h) + d, static_cast<float>(merged[lane].x[part]));
      });
      if (lane == 0) dst.lse.at(n, h) = static_cast<float>(lse);
    });
  }
};

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
      each_element(lane, shape.dim, [&](int, int d) {
        double sum = -0.0;  // so that a sum of negative zeros is a negative zero
        for (std::int32_t s = 0; s < sources.count; ++s) {
          const RowsView& source = sources.at(s, near);
          sum += static_cast<double>(source.load(source.at(n, h) + d));
        }
        dst.store(dst.at(n, h) + d, static_cast<float>(sum));
      });
    });
  }
};

// Sets delta to rowsum(dO ∘ O): element d is added to sum d modulo 32, then the number of sums is
// halved until one is left.
struct DeltaCall {
  RowShape shape;
  RowsView dout, out;
  StatsView delta;

  template <typename Cta>
  CONTEXTILE_HD void run(Cta& cta, std::int64_t row) const {
    const std::int64_t n = shape.token(row);
    const std::int32_t h = shape.head(row);
    typename Cta::template PerLane<double> sums;
    cta.each_lane([&](int lane) {
      sums[lane] = 0;
      for (int d = lane; d < shape.dim; d += kLanes) {
        sums[lane] += static_cast<double>(dout.load(dout.at(n, h) + d)) *
                      static_cast<double>(out.load(out.at(n, h) + d));
      }
    });
    cta.halve_sums(sums);
    cta.each_lane([&](int lane) {
      if (lane == 0) delta.at(n, h) = static_cast<float>(sums[lane]);
    });
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
      for (int d = lane; d < shape.dim; d += kLanes) {
        if (dst.type != src.type) {
          dst.store(to + d, src.load(from + d));
        } else if (dst.type == RowType::kF32) {
          static_cast<std::uint32_t*>(dst.data)[to + d] =
              static_cast<const std::uint32_t*>(src.data)[from + d];
        } else {
          static_cast<std::uint16_t*>(dst.data)[to + d] =
              static_cast<const std::uint16_t*>(src.data)[from + d];
        }
      }
    });
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
    cta.sync_warp();  // `lse` may be the memory of `accumulated.lse`
    cta.each_lane([&](int lane) {
      for (int d = lane; d < shape.dim; d += kLanes) {
        float value = 0;
        if (held != kEmptyLse) {
          value = accumulated.o.load(accumulated.o.at(n, h) + d);
          if (sink_H != nullptr) value = static_cast<float>(weight * static_cast<double>(value));
        }
        out.store(out.at(n, h) + d, value);
      }
      if (lane == 0) lse.at(n, h) = final_lse;
    });
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
      for (int d = lane; d < shape.dim; d += kLanes) dst.store(to + d, value);
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
