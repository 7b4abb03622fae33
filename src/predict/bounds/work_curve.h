// The bytes that a part of the machine moves for a document, by the work it does on it.
#pragma once

#include <cstdint>
#include <vector>

#include "predict/bounds/configuration_lp.h"
#include "predict/bounds/isoperimetry.h"

namespace contextile {

// F(w, n): the least a part moves that owns n tokens of a document and computes w of its pairs, all
// head groups: the least sum of Isoperimetry::least_bytes over pairs of the groups that add up to
// w. For one n and w up to a limit; rounded downwards.
//
// A group's function is sampled at multiples of a step of pairs beyond the free ones. The linear
// interpolation of the values lies nowhere above the function, or at most by excess_bytes of all
// groups. min_plus_power sums the groups, with steps chosen so that a part's work has about kSteps;
// convex_power does so beyond kMostWholeGroups groups.
class WorkCurve {
 public:
  // `most_pairs`: the limit, as pairs of all groups.
  WorkCurve(const Isoperimetry& isoperimetry, double owned, double groups, double most_pairs);

  // The limit of the work, in pairs of all groups.
  [[nodiscard]] double most_pairs() const { return most_pairs_; }
  // The most by which a value may exceed F.
  [[nodiscard]] double excess_bytes() const { return excess_bytes_; }
  // Appends configurations that do at most `most_work` <= most_pairs() and move at most
  // `most_bytes`, of parts that own `owned` tokens: the corners of the lower convex hull of F
  // there.
  void append_configurations(double most_work, double most_bytes, double owned,
                             std::vector<Configuration>& configurations) const;

 private:
  double most_pairs_ = 0;
  double excess_bytes_ = 0;
  double free_work_ = 0;      // nothing moves up to there
  double step_ = 0;           // between two of sums_
  std::vector<double> sums_;  // from free_work_ on
};

struct SampledBytes {
  std::vector<double> values;
  double excess_bytes = 0;
};

// Values at `from`, from + step, … (num_steps steps) whose linear interpolation is nowhere more
// than excess_bytes above the least bytes at that ownership; none is negative, the first is 0. A
// part that owns `owned` tokens computes `from` pairs without moving anything. O(num_steps · log).
[[nodiscard]] SampledBytes sampled_least_bytes(const Isoperimetry& isoperimetry, double owned,
                                               double from, double step, std::int64_t num_steps);

}  // namespace contextile
