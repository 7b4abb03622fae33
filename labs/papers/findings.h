// The quantities on which findings are decided, and their texts.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "labs/papers/paper_table.h"

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

[[nodiscard]] double mean_of(std::span<const double> values);
// The standard deviation of samples; 0 of one.
[[nodiscard]] double deviation_of(std::span<const double> values);

// The range of a sample without the tenth at either end. A sample of fewer than ten is all in it.
struct Spread {
  double p10 = 0;
  double p90 = 0;

  [[nodiscard]] std::string text() const;  // "1.07x to 1.20x"
};
// At least one value.
[[nodiscard]] Spread spread_of(std::vector<double> values);
// values[i] / base[i] of every batch.
[[nodiscard]] Spread spread_of_ratios(std::span<const double> values, std::span<const double> base);

// The relative change of means that a sample of batches shows, and how far it can be off.
struct Estimate {
  double mean = 0;
  double noise = 0;  // two standard errors

  [[nodiscard]] std::string text() const;  // "-0.6% ± 1.2%"
  // The text is "within noise" if the change is.
  [[nodiscard]] std::string change_text() const;
};
// Estimates mean(values) / mean(base) - 1. The noise comes from the batches' differences from that
// ratio; one batch has none.
[[nodiscard]] Estimate change_of(std::span<const double> values, std::span<const double> base);

[[nodiscard]] std::string whole_percent(double share);            // "19%"
[[nodiscard]] std::string range_text(double least, double most);  // "1.07x to 1.20x"

// Agrees if every gain lies in the paper's range, give or take 0.05.
[[nodiscard]] Finding gains_finding(const Extent& gains, std::string claim, double paper_least,
                                    double paper_most);

}  // namespace contextile
