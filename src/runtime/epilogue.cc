#include "runtime/epilogue.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "runtime/tensor.h"

namespace contextile {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

}  // namespace

void compute_delta(const TensorView& dout_NHD, const TensorView& out_NHD,
                   const RowStats& delta_NH) {
  std::vector<float> dout(static_cast<std::size_t>(dout_NHD.dim));
  std::vector<float> out(dout.size());
  for (std::int64_t n = 0; n < dout_NHD.tokens; ++n) {
    for (std::int32_t h = 0; h < dout_NHD.heads; ++h) {
      read_row(dout_NHD, n, h, std::span<float>(dout));
      read_row(out_NHD, n, h, std::span<float>(out));
      double sum = 0;
      for (std::size_t d = 0; d < out.size(); ++d) sum += static_cast<double>(dout[d]) * out[d];
      stat_at(delta_NH, n, h) = static_cast<float>(sum);
    }
  }
}

void finish_output(const PartialOutput& accumulated, std::span<const float> sink_H,
                   const TensorView& out_NHD, const RowStats& lse_NH) {
  std::vector<float> row(static_cast<std::size_t>(out_NHD.dim));
  for (std::int64_t n = 0; n < out_NHD.tokens; ++n) {
    for (std::int32_t h = 0; h < out_NHD.heads; ++h) {
      const float lse = stat_at(accumulated.lse_NH, n, h);
      if (lse == kEmpty) {
        const std::span<const float> sink =
            sink_H.empty() ? sink_H : sink_H.subspan(static_cast<std::size_t>(h), 1);
        write_empty_output(sink, slice(out_NHD, n, 1, h, 1),
                           {&stat_at(lse_NH, n, h), lse_NH.token_stride, lse_NH.head_stride});
        continue;
      }
      const float* from = row_at<float>(accumulated.o_NHD, n, h);
      if (sink_H.empty()) {
        std::copy(from, from + row.size(), row.begin());
        stat_at(lse_NH, n, h) = lse;
      } else {
        const double final_lse = logaddexp(lse, sink_H[static_cast<std::size_t>(h)]);
        const double keep = std::exp(lse - final_lse);
        for (std::size_t d = 0; d < row.size(); ++d) row[d] = static_cast<float>(keep * from[d]);
        stat_at(lse_NH, n, h) = static_cast<float>(final_lse);
      }
      write_row(out_NHD, n, h, row);
    }
  }
}

void write_empty_output(std::span<const float> sink_H, const TensorView& out_NHD,
                        const RowStats& lse_NH) {
  fill_tensor(out_NHD, 0.0F);
  for (std::int64_t n = 0; n < out_NHD.tokens; ++n) {
    for (std::int32_t h = 0; h < out_NHD.heads; ++h) {
      stat_at(lse_NH, n, h) = sink_H.empty() ? kEmpty : sink_H[static_cast<std::size_t>(h)];
    }
  }
}

void add_sink_gradient(std::span<const float> sink_H, const RowStats& lse_NH,
                       const RowStats& delta_NH, std::int64_t tokens, std::span<double> dsink_H) {
  for (std::size_t h = 0; h < sink_H.size(); ++h) {
    const auto head = static_cast<std::int32_t>(h);
    for (std::int64_t n = 0; n < tokens; ++n) {
      const double weight =
          std::exp(static_cast<double>(sink_H[h]) - static_cast<double>(stat_at(lse_NH, n, head)));
      dsink_H[h] -= weight * stat_at(delta_NH, n, head);
    }
  }
}

}  // namespace contextile
