// Shares of a document over several head groups.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bounds/parts.h"

namespace contextile {

// A piecewise linear function between the points (x[i], y[i]), x and y ascending, constant beyond.
struct Polyline {
  std::span<const double> x;
  std::span<const double> y;
};

// Values at 0, step, …, num_steps·step whose linear interpolation lies nowhere above the line.
[[nodiscard]] std::vector<double> sample_below(const Polyline& line, double step,
                                               std::int64_t num_steps);

// The least Σ values[k_h] over `copies` indices k_h that add up to k, for k = 0 … num_steps: the
// least sum of `copies` functions that are linear between the values, at multiples of the step (a
// sum of functions that are linear on cells is least at their corners) and, interpolated, nowhere
// above it between them (a minimum of linear functions is concave). O(num_steps² · log(copies)).
[[nodiscard]] std::vector<double> least_sums(std::span<const double> values, std::int32_t copies,
                                             std::int64_t num_steps);

// Appends shares up to `most_work` pairs of a part: (free + k · step, owned, sums[k]), as far as
// bytes stay within `most_bytes`; the last one is interpolated.
void append_shares(std::span<const double> sums, double free_work, double step, double owned,
                   double most_work, double most_bytes, std::vector<Share>& shares);

}  // namespace contextile
