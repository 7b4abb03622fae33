#include "predict/bounds/min_plus_convolution.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace contextile {
namespace {

constexpr double kNoSum = std::numeric_limits<double>::infinity();

// The value at t; `i` is the first point beyond it.
double value_at(const Polyline& line, std::size_t i, double t) {
  if (i == 0) return line.y[0];
  if (i == line.x.size()) return line.y[i - 1];
  const double part = (t - line.x[i - 1]) / (line.x[i] - line.x[i - 1]);
  return line.y[i - 1] + part * (line.y[i] - line.y[i - 1]);
}

// The least a[i] + b[j] with i + j = k, for k = 0 … num_steps.
std::vector<double> min_plus_convolution(std::span<const double> a, std::span<const double> b,
                                         std::int64_t num_steps) {
  const auto size = static_cast<std::size_t>(num_steps) + 1;
  std::vector<double> sums(std::min(size, a.size() + b.size() - 1), kNoSum);
  for (std::size_t i = 0; i < a.size() && i < sums.size(); ++i) {
    for (std::size_t j = 0; j < b.size() && i + j < sums.size(); ++j) {
      sums[i + j] = std::min(sums[i + j], a[i] + b[j]);
    }
  }
  return sums;
}

}  // namespace

std::vector<double> sample_below(const Polyline& line, double step, std::int64_t num_steps) {
  std::vector<double> values = {line.y[0]};
  std::size_t i = 0;
  while (i < line.x.size() && line.x[i] <= 0) ++i;
  for (std::int64_t k = 1; k <= num_steps; ++k) {
    const double begin = static_cast<double>(k - 1) * step;
    const double end = static_cast<double>(k) * step;
    const double before = values.back();
    double value = kNoSum;
    for (; i < line.x.size() && line.x[i] < end; ++i) {
      const double part = (line.x[i] - begin) / step;
      if (part > 0) value = std::min(value, before + (line.y[i] - before) / part);
    }
    value = std::min(value, value_at(line, i, end));
    values.push_back(std::max(before, value));
  }
  return values;
}

std::vector<double> min_plus_power(std::span<const double> values, std::int32_t copies,
                                   std::int64_t num_steps) {
  std::vector<double> power(values.begin(), values.end());
  std::vector<double> sums = {0};
  for (std::int32_t left = copies; left > 0; left /= 2) {
    if (left % 2 == 1) sums = min_plus_convolution(sums, power, num_steps);
    if (left > 1) power = min_plus_convolution(power, power, num_steps);
  }
  return sums;
}

std::vector<double> convex_power(std::span<const double> values, double copies) {
  std::vector<std::size_t> hull;
  const auto lies_below = [&](std::size_t i, std::size_t j, std::size_t k) {  // j, of the line i–k
    const auto span = static_cast<double>(k - i);
    const auto part = static_cast<double>(j - i);
    return (values[j] - values[i]) * span < (values[k] - values[i]) * part;
  };
  for (std::size_t k = 0; k < values.size(); ++k) {
    while (hull.size() > 1 && !lies_below(hull[hull.size() - 2], hull.back(), k)) hull.pop_back();
    hull.push_back(k);
  }
  std::vector<double> sums;
  for (std::size_t corner = 0; corner + 1 < hull.size(); ++corner) {
    const auto [i, k] = std::pair(hull[corner], hull[corner + 1]);
    for (std::size_t j = i; j < k; ++j) {
      const double part = static_cast<double>(j - i) / static_cast<double>(k - i);
      sums.push_back(copies * (values[i] + part * (values[k] - values[i])));
    }
  }
  if (!values.empty()) sums.push_back(copies * values.back());
  return sums;
}

}  // namespace contextile
