// An axis of a figure: where values lie on it, and its ticks.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace contextile {

struct AxisTick {
  double value = 0;
  std::string text;
};

enum class AxisScale : std::uint8_t { kLinear, kLogarithmic };

// Maps [low, high] to [0, 1].
class Axis {
 public:
  // Holds all finite values, on a logarithmic scale if they are positive and the largest is at
  // least `log_factor` times the least; a linear one begins at 0 when `from_zero` says so or values
  // lie on both sides. Its ends are round numbers.
  enum class Begin : std::uint8_t { kZero, kData };
  Axis(std::span<const double> values, double log_factor, Begin begin);

  [[nodiscard]] double at(double value) const;
  [[nodiscard]] double low() const { return low_; }
  [[nodiscard]] double high() const { return high_; }
  [[nodiscard]] AxisScale scale() const { return scale_; }
  // About five round numbers; on a logarithmic scale powers of ten, with 2 and 5 between few.
  [[nodiscard]] std::vector<AxisTick> ticks() const;

 private:
  AxisScale scale_ = AxisScale::kLinear;
  double low_ = 0;
  double high_ = 1;
  double step_ = 0.2;  // between ticks of a linear scale
};

// Three significant digits, all of whole numbers below a million: "0.5", "4096", "1.5e-05".
[[nodiscard]] std::string tick_text(double value);
// The same, but multiples of 1024 as "128K".
[[nodiscard]] std::string count_text(double value);

}  // namespace contextile
