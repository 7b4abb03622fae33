// Work on a document split over several head groups: least sums of functions of their pairs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace contextile {

// A piecewise linear function between the points (x[i], y[i]), x and y ascending, constant beyond.
struct Polyline {
  std::span<const double> x;
  std::span<const double> y;
};

// Values at 0, step, …, num_steps·step whose linear interpolation is nowhere above the line.
[[nodiscard]] std::vector<double> sample_below(const Polyline& line, double step,
                                               std::int64_t num_steps);

// The min-plus convolution of `copies` times the values: the least Σ values[k_h] over `copies`
// indices k_h that add up to k, for k = 0 … num_steps. This is the least sum of `copies` functions
// that are linear between the values. It is exact at multiples of the step: a sum of functions that
// are linear on cells is least at their corners. Interpolated, it is nowhere above the least sum
// between them: a minimum of linear functions is concave. O(num_steps² · log(copies)).
[[nodiscard]] std::vector<double> min_plus_power(std::span<const double> values,
                                                 std::int32_t copies, std::int64_t num_steps);

// For more copies than min_plus_power has time for: the values are a step of the sum of copies·step
// apart, for sums of 0 … values.size() - 1 such steps. They are copies times the values' lower
// convex hull. No sum of copies, interpolated or not, is below its interpolation (Jensen).
// O(values).
[[nodiscard]] std::vector<double> convex_power(std::span<const double> values, double copies);

}  // namespace contextile
