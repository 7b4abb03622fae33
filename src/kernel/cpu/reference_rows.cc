// Compiled without fusing multiply and add, like every implementation of RowOps.
#include "kernel/cpu/reference_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernel/cpu/row_math.h"
#include "kernel/tensor.h"

namespace contextile {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();
constexpr double kNothingYet = -0.0;  // so that a sum of negative zeros is a negative zero

// Calls visit(token, head) for every row.
template <typename Visit>
void for_each_row(const TensorView& view, const Visit& visit) {
  for (std::int64_t n = 0; n < view.tokens; ++n) {
    for (std::int32_t h = 0; h < view.heads; ++h) visit(n, h);
  }
}

// Turns the log-sum-exps of one row's sources into their weights, 0 for empty ones. Returns the
// log-sum-exp of all, -inf if all are empty.
double weigh(std::span<double> sources) {
  double top = sources[0];
  for (const double lse : sources) top = lse > top ? lse : top;
  if (top < -1e300) top = 0;
  double sum = 0;
  for (double& source : sources) {
    source = exp_of_negative(source - top);
    sum += source;
  }
  if (sum == 0) return kEmpty;
  const double scale = 1 / sum;
  for (double& source : sources) source *= scale;
  return top + log_of(sum);
}

// Adds the upper half of the sums to the lower half until one sum is left.
double halved(std::array<double, 32>& sums) {
  for (std::size_t half = sums.size() / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

class ReferenceRows : public RowOps {
 public:
  [[nodiscard]] std::string_view name() const override { return "reference"; }

  void merge(const PartialOutput& dst, std::span<const PartialOutput> srcs) const override {
    std::vector<double> weights(srcs.size());
    for_each_row(dst.o_NHD, [&](std::int64_t n, std::int32_t h) {
      for (std::size_t s = 0; s < srcs.size(); ++s) weights[s] = stat_at(srcs[s].lse_NH, n, h);
      const double lse = weigh(weights);
      float* const to = row_at<float>(dst.o_NHD, n, h);
      for (std::int32_t d = 0; d < dst.o_NHD.dim; ++d) {
        double sum = lse == kEmpty ? 0.0 : kNothingYet;
        for (std::size_t s = 0; s < srcs.size(); ++s) {
          // The memory of an empty row is never read.
          if (weights[s] != 0) sum += weights[s] * row_at<float>(srcs[s].o_NHD, n, h)[d];
        }
        to[d] = static_cast<float>(sum);
      }
      stat_at(dst.lse_NH, n, h) = static_cast<float>(lse);
    });
  }

  void sum(const TensorView& dst, std::span<const TensorView> srcs) const override {
    for_each_row(dst, [&](std::int64_t n, std::int32_t h) {
      for (std::int32_t d = 0; d < dst.dim; ++d) {
        double sum = kNothingYet;
        for (const TensorView& src : srcs) sum += row_at<float>(src, n, h)[d];
        row_at<float>(dst, n, h)[d] = static_cast<float>(sum);
      }
    });
  }

  // Adds element d to sum d modulo 32, then halves the number of sums until one is left. Vectors of
  // any length up to 32 can keep this order.
  void delta(const TensorView& dout_NHD, const TensorView& out_NHD,
             const RowStats& delta_NH) const override {
    std::vector<double> dout(static_cast<std::size_t>(dout_NHD.dim));
    std::vector<double> out(dout.size());
    for_each_row(dout_NHD, [&](std::int64_t n, std::int32_t h) {
      read_row(dout_NHD, n, h, dout);
      read_row(out_NHD, n, h, out);
      std::array<double, 32> sums{};
      for (std::size_t d = 0; d < dout.size(); ++d) sums[d % sums.size()] += dout[d] * out[d];
      stat_at(delta_NH, n, h) = static_cast<float>(halved(sums));
    });
  }

  void convert(const TensorView& dst, const TensorView& src) const override {
    std::vector<float> row(static_cast<std::size_t>(dst.dim));
    for_each_row(dst, [&](std::int64_t n, std::int32_t h) {
      if (dst.dtype == src.dtype) {
        std::memmove(slice(dst, n, 1, h, 1).data, slice(src, n, 1, h, 1).data,
                     static_cast<std::size_t>(dst.dim * bytes_per_element(dst.dtype)));
        return;
      }
      read_row(src, n, h, std::span<float>(row));
      write_row(dst, n, h, row);
    });
  }

  void finish(const PartialOutput& accumulated, std::span<const float> sink_H,
              const TensorView& out_NHD, const RowStats& lse_NH) const override {
    std::vector<float> row(static_cast<std::size_t>(out_NHD.dim));
    for_each_row(out_NHD, [&](std::int64_t n, std::int32_t h) {
      const float lse = stat_at(accumulated.lse_NH, n, h);
      double weight = 1;
      float final_lse = lse;
      if (!sink_H.empty()) {
        std::array<double, 2> sources = {lse, sink_H[static_cast<std::size_t>(h)]};
        final_lse = static_cast<float>(weigh(sources));
        weight = sources[0];
      }
      if (lse == kEmpty) {
        std::ranges::fill(row, 0.0F);
      } else {
        read_row(accumulated.o_NHD, n, h, std::span<float>(row));
        for (float& value : row) value = static_cast<float>(weight * value);
      }
      write_row(out_NHD, n, h, row);
      stat_at(lse_NH, n, h) = final_lse;
    });
  }
};

}  // namespace

void RowOps::fill(const TensorView& dst, float value) const { fill_tensor(dst, value); }

void RowOps::sink_gradient(std::span<const float> sink_H, const RowStats& lse_NH,
                           const RowStats& delta_NH, std::int64_t tokens,
                           std::span<double> sums_H) const {
  for (std::size_t h = 0; h < sink_H.size(); ++h) {
    const auto head = static_cast<std::int32_t>(h);
    std::array<double, 32> sums{};
    for (std::int64_t n = 0; n < tokens; ++n) {
      const double weight = exp_of_negative(static_cast<double>(sink_H[h]) -
                                            static_cast<double>(stat_at(lse_NH, n, head)));
      sums[static_cast<std::size_t>(n) % sums.size()] +=
          weight * static_cast<double>(stat_at(delta_NH, n, head));
    }
    sums_H[h] -= halved(sums);
  }
}

void RowOps::round_sums(std::span<const double> sums_H, std::span<float> dst_H) const {
  for (std::size_t h = 0; h < sums_H.size(); ++h) dst_H[h] = static_cast<float>(sums_H[h]);
}

void RowOps::merge_all(std::span<const Merge> list) const {
  for (const Merge& call : list) merge(call.dst, call.srcs);
}

void RowOps::sum_all(std::span<const Sum> list) const {
  for (const Sum& call : list) sum(call.dst, call.srcs);
}

void RowOps::delta_all(std::span<const Delta> list) const {
  for (const Delta& call : list) delta(call.dout_NHD, call.out_NHD, call.delta_NH);
}

void RowOps::convert_all(std::span<const Convert> list) const {
  for (const Convert& call : list) convert(call.dst, call.src);
}

void RowOps::finish_all(std::span<const Finish> list, std::span<const float> sink_H) const {
  for (const Finish& call : list) finish(call.accumulated, sink_H, call.out_NHD, call.lse_NH);
}

void RowOps::fill_all(std::span<const Fill> list) const {
  for (const Fill& call : list) fill(call.dst, call.value);
}

void RowOps::sink_gradient_all(std::span<const float> sink_H, std::span<const SinkRows> list,
                               std::span<double> sums_H) const {
  for (const SinkRows& rows : list) {
    sink_gradient(sink_H, rows.lse_NH, rows.delta_NH, rows.tokens, sums_H);
  }
}

const RowOps& reference_rows() {
  static const ReferenceRows kRows;
  return kRows;
}

}  // namespace contextile
