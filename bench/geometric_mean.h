// Geometric means of ratios.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace contextile::bench {

class GeometricMean {
 public:
  // Values below `floor` count as `floor`: a single zero must not decide the mean alone.
  explicit GeometricMean(double floor = 0) : floor_(floor) {}

  void add(double x) {
    log_sum_ += std::log(std::max(x, floor_));
    ++count_;
    worst_ = std::max(worst_, x);
    least_ = std::min(least_, x);
  }
  [[nodiscard]] int count() const { return count_; }
  // 0 without values.
  [[nodiscard]] double value() const { return count_ > 0 ? std::exp(log_sum_ / count_) : 0; }
  [[nodiscard]] double worst() const { return worst_; }
  [[nodiscard]] double least() const { return least_; }

 private:
  double floor_;
  double log_sum_ = 0;
  double worst_ = 0;
  double least_ = std::numeric_limits<double>::infinity();
  int count_ = 0;
};

}  // namespace contextile::bench
