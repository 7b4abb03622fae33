// The least bytes that parts of a machine move for a mask in a given time, and the least time in
// which a plan can do so.
#pragma once

#include <cstdint>
#include <vector>

#include "predict/bounds/components.h"
#include "predict/bounds/isoperimetry.h"
#include "predict/bounds/least_kernel_time.h"
#include "predict/bounds/work_curve.h"

namespace contextile {

// The machine in equal parts: its devices, or its nodes.
struct PartLevel {
  double parts = 1;
  double devices_per_part = 1;
  double owned_tokens = 0;       // most tokens of a part
  double bytes_per_us = 0;       // out of (and into) all parts together
  double part_bytes_per_us = 0;  // out of (and into) one part, at most
  double setup_us = 0;           // before the first byte moves
};

struct WorkRates {
  double head_groups = 1;
  double pairs_per_us = 0;  // of one head group on one device at peak
  double call_us = 0;       // of a device that computes anything
};

// Bytes of one token and head group.
struct TokenBytes {
  double row = 0;  // of a query's way to a part that does not own it, and of its result's way back
  double key = 0;
};

// Let F(w, n) be the least that a part moves if it computes w pairs, over all head groups, and owns
// n tokens: the least sum of Isoperimetry::least_bytes over pairs of the groups that add up to w.
// For one document V(T) is the least Σ F over parts whose pairs add up to the document's and whose
// tokens to at most its length, w no more than a part computes in T and n no more than a part owns.
// Different documents may well be in each other's way; V ignores that. A byte moved for one
// document is not moved for another, and every byte leaves one part, by one port. So a plan that
// takes T has Σ V(T) <= bytes_per_us · (T - setup_us). V falls with T.
//
// Owned tokens are divided into cells, few at first. Cells that the solution of the configuration
// LP uses are split until they are narrow. Any cells make a bound, narrower ones a higher one.
class TrafficBound {
 public:
  TrafficBound(const MaskComponents& components, const KernelPrice& price, const PartLevel& level,
               const WorkRates& rates, const TokenBytes& bytes, double least_us);

  // Σ V(time), rounded down. time_us >= least_us of the constructor.
  [[nodiscard]] double least_bytes(double time_us);

  // A time below which no plan is done, at most 1% too low; 0 if nothing has to move. No plan is
  // done before the least_us of the constructor.
  [[nodiscard]] double least_us();

 private:
  // Parts that own more than `least_owned` and at most `owned` tokens of a document. They count as
  // owning as few and moving as little as any of them might.
  struct OwnedCell {
    double least_owned = 0;
    double owned = 0;
    WorkCurve curve;
  };
  struct Kind {
    DocumentKind document;
    std::vector<OwnedCell> cells;
  };

  void add_kinds(const MaskComponents& components, const KernelPrice& price);
  [[nodiscard]] double pairs_of_part(double best_share, double time_us) const;
  [[nodiscard]] WorkCurve curve_of(const Kind& kind, double owned, double most_pairs) const;
  // Extends the curves to `most_pairs`.
  void extend_curves(Kind& kind, double most_pairs) const;
  // The configuration LP over the kind's cells, which splits cells that its solution uses.
  [[nodiscard]] double refined_bytes(Kind& kind, double most_work, double most_bytes) const;
  [[nodiscard]] double least_bytes(Kind& kind, double time_us) const;

  PartLevel level_;
  WorkRates rates_;
  TokenBytes bytes_;
  double least_us_;
  std::vector<Kind> kinds_;
};

}  // namespace contextile
