#include "serving/model/activation_rows.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace contextile {

void rms_norm(std::span<const float> x_ND, std::span<const float> weight_D, double epsilon,
              std::span<float> y_ND) {
  const std::size_t dim = weight_D.size();
  for (std::size_t row = 0; row < x_ND.size(); row += dim) {
    double sum = 0;
    for (std::size_t d = 0; d < dim; ++d) sum += static_cast<double>(x_ND[row + d]) * x_ND[row + d];
    const auto scale = static_cast<float>(1 / std::sqrt(sum / static_cast<double>(dim) + epsilon));
    for (std::size_t d = 0; d < dim; ++d) y_ND[row + d] = x_ND[row + d] * scale * weight_D[d];
  }
}

void gate_by_silu(std::span<float> gate, std::span<const float> up) {
  for (std::size_t i = 0; i < gate.size(); ++i) {
    gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
  }
}

void gate_by_clamped_silu(std::span<float> gate, std::span<const float> up, float alpha,
                          float limit) {
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const float g = std::min(gate[i], limit);
    const float u = std::clamp(up[i], -limit, limit);
    gate[i] = g / (1 + std::exp(-alpha * g)) * (u + 1);
  }
}

void add(std::span<float> x, std::span<const float> y) {
  for (std::size_t first = 0; first < x.size(); first += y.size()) {
    for (std::size_t i = 0; i < y.size(); ++i) x[first + i] += y[i];
  }
}

}  // namespace contextile
