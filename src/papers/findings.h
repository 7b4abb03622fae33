// What findings are decided on, and how their numbers read.
#pragma once

#include <algorithm>
#include <limits>
#include <string>

#include "papers/paper_table.h"

namespace contextile {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Smallest and largest of some values.
struct Extent {
  double least = kInfinity;
  double most = -kInfinity;

  void take(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
  [[nodiscard]] bool any() const { return least <= most; }
  [[nodiscard]] bool within(double low, double high) const { return least >= low && most <= high; }
};

[[nodiscard]] std::string whole_percent(double share);            // "19%"
[[nodiscard]] std::string range_text(double least, double most);  // "1.07x to 1.20x"

// Agrees when every gain lies in what the paper says, give or take 0.05.
[[nodiscard]] Finding gains_finding(const Extent& gains, std::string claim, double paper_least,
                                    double paper_most);

}  // namespace contextile
