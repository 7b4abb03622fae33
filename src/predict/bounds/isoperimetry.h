// What a part of the machine must move to compute pairs of a document: an isoperimetric inequality,
// pairs against the tokens at their border, as surface is to volume.
#pragma once

#include <array>

#include "predict/bounds/degrees.h"

namespace contextile {

// What a bound needs to know of documents; of several documents of a kind: what holds for each.
struct DocumentKind {
  double tokens = 0;        // at most
  double pairs = 0;         // at least
  double future_pairs = 0;  // with key > query, at most
  double best_share = 0;    // of a device's peak, at most
  double count = 1;
  // Whether degrees say more than tokens and future_pairs do: not so of causal and full masks.
  bool degrees_matter = false;
  DegreeSteps rows;     // if degrees_matter
  DegreeSteps columns;  // likewise
};

// A part (a device, a node) computes pairs of one head group with the queries of a token set A and
// the keys of B, and owns the tokens S: a = |A|, b = |B|, n = |S|. It moves at least row_bytes for
// every token of A - S and key_bytes for every one of B - S.
//
// How many pairs that allows, φ, is the least of
// * a·b - max(0, o(o - 1)/2 - future_pairs) with o = max(n_q + n_k - n, a + b - tokens), n_q and
//   n_k tokens of S in A and B: A and B share at least o tokens, and of the two ways in which two
//   of these attend each other all but `future_pairs` of one way are missing;
// * the sum over the a largest rows of min(degree, b);
// * the sum over the b largest columns of min(degree, a).
// Given x = a - n_q and y = b - n_k, what is moved, φ only grows with n_q and n_k: a step of n_q
// adds b to a·b and at most o - 1/2 <= b to the deduction, and sums grow with a and b. So a part
// that owns n tokens has n_q = n_k = n: it moves row_bytes·x + key_bytes·y and has
// a = n + x, b = n + y, o = max(n, a + b - tokens).
//
// Each of them has convex sets {φ >= w}: hyperbolas; concave where o counts a + b; the area
// under a falling staircase inside a x b (locally a·b, or a concave function of a plus one of b,
// with continuous slopes). So the least b is a convex function of a, and so is what is moved.
//
// Two of them give bytes in closed form, as functions of w:
// * area: a·b >= w + max(0, n(n - 1)/2 - future_pairs) within [n, tokens]². The least of
//   row_bytes·a + key_bytes·b is where a side is n or tokens, or both cost the same; its slope in w
//   falls, but for two bends: where it leaves 0, and, if one side costs more than tokens / n times
//   the other, where that other one has reached tokens beside n and both stay at their limits.
// * forced overlap, for o = a + b - tokens: with x = tokens - a and y = tokens - b,
//   (x + 1/2)² + (y + 1/2)² <= 2·(tokens²/2 + tokens/2 + 1/4 + future_pairs - w), a disc. What is
//   left out is the most on it: the bytes are convex. This holds where a + b >= tokens. Where the
//   least of the area has a + b > tokens + n it holds for the least of all: a point with a smaller
//   a + b costs no less than where the line from it to the least of the area comes to
//   tokens + n, and there both hold.
class Isoperimetry {
 public:
  Isoperimetry(const DocumentKind& kind, double row_bytes, double key_bytes)
      : kind_(kind), row_bytes_(row_bytes), key_bytes_(key_bytes) {}

  [[nodiscard]] double pairs() const { return kind_.pairs; }
  [[nodiscard]] bool degrees_matter() const { return kind_.degrees_matter; }

  // Most pairs that a part which owns `owned` tokens computes without moving anything.
  [[nodiscard]] double free_pairs(double owned) const;
  // The least bytes it moves to compute `pairs`; at most 2% too low, never too high. Infinite if it
  // cannot. `near`: rows that the search begins with, 0 if unknown; becomes those it ends with.
  // O(log).
  [[nodiscard]] double least_bytes(double pairs, double owned, double& near) const;

  // What the area alone demands: never above least_bytes, concave in pairs but for the bends, from
  // the second of which it is linear. O(1).
  [[nodiscard]] double area_bytes(double pairs, double owned) const;
  // Pairs at the two bends; infinite if there is no second one.
  [[nodiscard]] std::array<double, 2> area_bends(double owned) const;
  // Whether forced overlap may be counted at these pairs, and then at more.
  [[nodiscard]] bool overlap_is_forced(double pairs, double owned) const;
  // What forced overlap alone demands, and by how much that grows a pair; convex in pairs. The
  // tangent is nowhere above least_bytes where overlap_is_forced. O(1).
  struct Tangent {
    double bytes = 0;
    double slope = 0;
  };
  [[nodiscard]] Tangent forced_bytes(double pairs, double owned) const;

 private:
  // What a part moves that uses so many rows, and the fewest keys that will do.
  struct Probe {
    double rows = 0;
    double key_bytes = 0;  // moved
    double bytes = 0;      // rows and keys
  };
  [[nodiscard]] Probe probe(double rows, double pairs, double owned) const;
  // The least b with φ >= pairs; infinite if there is none.
  [[nodiscard]] double least_keys(double rows, double pairs, double owned) const;
  // Pairs on so much area.
  [[nodiscard]] double pairs_on_area(double area, double owned) const;
  // a·b that the area demands, and the a of its least.
  [[nodiscard]] double least_area(double pairs, double owned) const;
  [[nodiscard]] double rows_of_area(double area, double owned) const;

  const DocumentKind& kind_;
  double row_bytes_;
  double key_bytes_;
};

}  // namespace contextile
