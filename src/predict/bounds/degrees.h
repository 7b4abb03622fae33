// Degrees of rows (or columns) of a mask, largest first, and the work they allow.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "predict/bounds/components.h"

namespace contextile {

// A step function over ranks, close to the degree of the row of each rank and never below it.
class DegreeSteps {
 public:
  DegreeSteps() = default;
  explicit DegreeSteps(std::span<const DegreeRun> runs);

  // Takes the larger of the two at every rank.
  [[nodiscard]] static DegreeSteps envelope(const DegreeSteps& a, const DegreeSteps& b);

  // Σ over the `rows` first rows of min(degree, cap).
  [[nodiscard]] double sum(double rows, double cap) const;
  // The least cap with sum(rows, cap) >= pairs; infinite if there is none.
  [[nodiscard]] double least_cap(double rows, double pairs) const;
  // The least rows with sum(rows, cap) >= pairs; infinite if there are none.
  [[nodiscard]] double least_rows(double cap, double pairs) const;

 private:
  struct Step {
    double degree = 0;
    double count = 0;
    double end = 0;      // rank after the last row
    double sum_end = 0;  // Σ of degrees up to there
  };

  void append(double degree, double count);
  // Joins steps if that adds little.
  [[nodiscard]] static DegreeSteps compressed(const DegreeSteps& steps);
  [[nodiscard]] double prefix_sum(double rows) const;

  std::vector<Step> steps_;  // descending degrees
};

}  // namespace contextile
