#include "papers/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace contextile {
namespace {

constexpr double kTicks = 5;
constexpr double kAlmostWhole = 1e-9;

// The round number, 1, 2 or 5 times a power of ten, that is not below `least`.
double round_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= least * (1 - kAlmostWhole)) return factor * power;
  }
  return 10 * power;
}

}  // namespace

Axis::Axis(std::span<const double> values, double log_factor, Begin begin) {
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  if (least > most) return;  // nothing to show
  if (least > 0 && most >= log_factor * least) {
    scale_ = AxisScale::kLogarithmic;
    low_ = least;
    high_ = most;
    if (begin == Begin::kZero) {  // round ends, as 0 would be
      low_ = std::pow(10, std::floor(std::log10(least) + kAlmostWhole));
      high_ = round_step(most);
    }
    return;
  }
  low_ = begin == Begin::kZero ? std::min(0.0, least) : least;
  high_ = begin == Begin::kZero ? std::max(0.0, most) : most;
  if (low_ == high_) high_ = low_ + (low_ == 0 ? 1 : std::abs(low_));
  step_ = round_step((high_ - low_) / kTicks);
  if (begin == Begin::kData) return;
  low_ = std::floor(low_ / step_ + kAlmostWhole) * step_;
  high_ = std::ceil(high_ / step_ - kAlmostWhole) * step_;
}

double Axis::at(double value) const {
  if (scale_ == AxisScale::kLogarithmic) return std::log(value / low_) / std::log(high_ / low_);
  return (value - low_) / (high_ - low_);
}

std::vector<AxisTick> Axis::ticks() const {
  std::vector<AxisTick> ticks;
  const auto add = [&](double value) { ticks.push_back({value, tick_text(value)}); };
  if (scale_ == AxisScale::kLogarithmic) {
    const bool few = high_ < 100 * low_;
    for (double power = std::pow(10, std::floor(std::log10(low_))); power <= high_; power *= 10) {
      for (const double factor : {1.0, 2.0, 5.0}) {
        const double value = factor * power;
        const bool inside =
            value >= low_ * (1 - kAlmostWhole) && value <= high_ * (1 + kAlmostWhole);
        if (inside && (few || factor == 1)) add(value);
      }
    }
    return ticks;
  }
  for (double i = std::ceil(low_ / step_ - kAlmostWhole); i * step_ <= high_ + kAlmostWhole * step_;
       ++i) {
    add(i * step_ + 0.0);  // never -0
  }
  return ticks;
}

std::string tick_text(double value) {
  if (std::abs(value) < 1e6 && value == std::floor(value)) return fmt::format("{:.0f}", value);
  return fmt::format("{:.3g}", value);
}

std::string count_text(double value) {
  constexpr double kBinaryThousand = 1024;
  const double thousands = value / kBinaryThousand;
  if (thousands < 1 || thousands != std::floor(thousands)) return tick_text(value);
  return tick_text(thousands) + "K";
}

}  // namespace contextile
