// The least bytes that parts of a machine move for a mask in a given time, and the least time in
// which a plan can do so.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "predict/bounds/components.h"
#include "predict/bounds/configuration_lp.h"
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
  double setup_us = 0;           // a launch and a latency, before any byte moves
  // The launch of a device. Unset: parts compute more than one call at a time.
  std::optional<double> launch_us = std::nullopt;
};

struct WorkRates {
  double head_groups = 1;
  double pairs_per_us = 0;  // of one head group on one device at peak
  double call_us = 0;       // of a device that computes anything
};

// The bytes that are counted, of one token and head group, and the time in which they move.
struct TokenBytes {
  double row = 0;  // of a query's way to a part that does not own it, and of its result's way back
  double key = 0;
  double lost_us = 0;  // none of these bytes moves then
  // The same for those into a part and out of it. Infinite: none are counted.
  std::array<double, 2> part_lost_us = {0, 0};
};

// Counting only the pairs of a document's biclique also makes a bound.
enum class CountedPairs : std::uint8_t { kAll, kBiclique };

// Let F(w, n) be the least that a part moves if it computes w pairs, over all head groups, and owns
// n tokens: the least sum of Isoperimetry::least_bytes over pairs of the groups that add up to w.
// For one document V(T) is the least Σ F over parts whose pairs add up to the document's and whose
// tokens to at most its length, w no more than a part computes in T and n no more than a part owns.
// At most m = ⌊length / most owned⌋ of them own more than length / (m + 1). If m is 1 and such a
// part owns n tokens, no other owns more than the rest.
// Different documents may well be in each other's way; V ignores that. A byte moved for one
// document is not moved for another, and every byte leaves one part, by one port. So a plan that
// takes T has Σ V(T) <= bytes_per_us · (T - lost_us). V falls with T.
//
// A part moves at most part_bytes_per_us · Σ max(0, T - part_lost_us). Let B be its bytes and r
// part_bytes_per_us. A device that moves any computes a pair of a token that it does not own, in a
// foreign call. An input comes before that and a result leaves after it. With s = setup_us it takes
// * with one call: T >= s + call + w + B / r;
// * with a local and a foreign call: T >= launch + 2 call + w, and T >= s + call + B / r + the work
//   of the foreign call, which is at least all but the free pairs of its tokens;
// * with two foreign calls: T >= s + 2 call + w, as the first waits for an input or the last for
//   the end of its result;
// * with three calls or more: T >= launch + 3 call + w.
//
// Owned tokens are divided into cells, few at first. Cells that the solution of the configuration
// LP uses are split until they are narrow. Any cells make a bound, narrower ones a higher one.
//
// With CountedPairs::kBiclique w are pairs of the biclique. Its rows are late tokens, n of which a
// part owns, and its keys early tokens. A part that owns e of these has n + e no more than a part
// owns, all e add up to the early tokens, and it moves F less e keys.
class TrafficBound {
 public:
  TrafficBound(const MaskComponents& components, const KernelPrice& price, const PartLevel& level,
               const WorkRates& rates, const TokenBytes& bytes, double least_us,
               CountedPairs counted = CountedPairs::kAll);

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

  void add_kinds(const MaskComponents& components, const KernelPrice& price, CountedPairs counted);
  void append_configurations(const Kind& kind, const OwnedCell& cell, const PartLimits& limits,
                             std::vector<Configuration>& configurations) const;
  [[nodiscard]] double pairs_of_part(double best_share, double time_us) const;
  [[nodiscard]] PartLimits limits_of_part(double best_share, double time_us) const;
  [[nodiscard]] WorkCurve curve_of(const Kind& kind, double owned, double most_pairs) const;
  // Most tokens of a document that a part owns.
  [[nodiscard]] double most_owned(const Kind& kind) const;
  // A part that owns more than large_tokens of a document is large; at most most_large are.
  [[nodiscard]] double large_tokens(const Kind& kind) const;
  [[nodiscard]] double most_large(const Kind& kind) const;
  // Extends the curves to `most_pairs`.
  void extend_curves(Kind& kind, double most_pairs) const;
  // A search in one call of refined_bytes.
  struct Search;
  // The configuration LP over the kind's cells, which splits cells that its solution uses.
  [[nodiscard]] double refined_bytes(Kind& kind, const PartLimits& limits) const;
  [[nodiscard]] ConfigurationBound solved(const Kind& kind, const Search& search,
                                          std::optional<std::size_t> largest) const;
  void split(Kind& kind, const std::vector<std::size_t>& cells, Search& search) const;
  [[nodiscard]] double least_bytes(Kind& kind, double time_us) const;

  PartLevel level_;
  WorkRates rates_;
  TokenBytes bytes_;
  double least_us_;
  std::vector<Kind> kinds_;
};

}  // namespace contextile
