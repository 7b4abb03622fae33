// The bytes that a part of the machine moves for a document, by the work it does on it.
#pragma once

#include <cstdint>
#include <vector>

#include "predict/bounds/configuration_lp.h"
#include "predict/bounds/isoperimetry.h"

namespace contextile {

// Limits of a part in a given time (traffic.h). Work is in pairs.
struct PartLimits {
  double work = 0;   // at most
  double bytes = 0;  // moved, at most
  // A part that moves anything does at most `work_in_calls`. Or it does at most `work_in_two_calls`
  // or work_and_bytes - bytes·pairs_per_byte, and at most the latter beyond its free work.
  double work_in_calls = 0;
  double work_in_two_calls = 0;
  double work_and_bytes = 0;
  double pairs_per_byte = 0;
};

// Tokens of a document that a part owns. F counts early tokens as moved, so they spare bytes.
struct OwnedShare {
  double tokens = 0;
  double early = 0;
  double most_early = 0;  // that the limits count
  double most_free = 0;   // pairs of these and its other tokens
  double token_bytes = 0;
  bool or_fewer = false;  // early tokens, as long as nothing else moves
};

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
  // Appends configurations within the limits, whose work is at most most_pairs(), for parts that
  // own so much: the corners of the lower convex hull of F there.
  void append_configurations(const PartLimits& limits, const OwnedShare& share,
                             std::vector<Configuration>& configurations) const;

 private:
  // The part of the way from one point of F to the next that is within the limits.
  [[nodiscard]] double part_within(const PartLimits& limits, const OwnedShare& share,
                                   const Configuration& from, const Configuration& to) const;

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
