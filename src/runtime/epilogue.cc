#include "runtime/epilogue.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernel/tensor.h"

namespace contextile {
namespace {

constexpr float kEmpty = -std::numeric_limits<float>::infinity();

}  // namespace

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
