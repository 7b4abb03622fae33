// Work on rows of activations, fp32.
//
// Legend of suffixes: N rows, D elements of a row.
#pragma once

#include <cstdint>
#include <span>

namespace contextile {

// y = x / sqrt(mean(x²) + epsilon) · weight, row by row; a row is as long as weight (Zhang and
// Sennrich, "Root mean square layer normalization"). y may be x.
void rms_norm(std::span<const float> x_ND, std::span<const float> weight_D, double epsilon,
              std::span<float> y_ND);
// gate = silu(gate) · up.
void gate_by_silu(std::span<float> gate, std::span<const float> up);
// gate = g·sigmoid(alpha·g)·(u + 1), where g is the gate of at most `limit`, and u is up of -limit
// to limit (gpt-oss).
void gate_by_clamped_silu(std::span<float> gate, std::span<const float> up, float alpha,
                          float limit);
// x += y, where y is as long as x or a row that is added to all.
void add(std::span<float> x, std::span<const float> y);

}  // namespace contextile
