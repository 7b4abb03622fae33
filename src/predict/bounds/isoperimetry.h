// The least that a part of the machine moves to compute pairs of a document: an isoperimetric
// inequality between pairs and the tokens at their border, like that between volume and surface.
#pragma once

#include <array>
#include <limits>

#include "predict/bounds/degrees.h"

namespace contextile {

// Properties of documents that a bound needs; for several documents of a kind they hold for each.
struct DocumentKind {
  double tokens = 0;                                            // at most
  double pairs = 0;                                             // at least
  double future_pairs = 0;                                      // with key > query, at most
  double best_share = 0;                                        // of a device's peak, at most
  double max_degree = std::numeric_limits<double>::infinity();  // keys of a row, at most
  double count = 1;
  // Tokens whose rows count: all, or the rows of a biclique. Its keys are `early_tokens`.
  double late_tokens = 0;   // at most
  double early_tokens = 0;  // at most
  bool keys_are_early = false;
  // True if degrees tell more than tokens and future_pairs do; not so for causal and full masks.
  bool degrees_matter = false;
  DegreeSteps rows = {};     // if degrees_matter
  DegreeSteps columns = {};  // likewise
};

// A part (a device, a node) computes pairs of one head group with the queries of a token set A and
// the keys of B, and owns the tokens S: a = |A|, b = |B|, n = |S|. It moves at least row_bytes for
// every token of A - S and key_bytes for every one of B - S.
//
// The number of pairs that this allows, φ, is the least of
// * a·b - max(0, o(o - 1)/2 - future_pairs) with o = max(n_q + n_k - n, a + b - tokens), where S
//   has n_q tokens in A and n_k in B. Here A and B share at least o tokens. Two of these can attend
//   each other in two ways, and all except `future_pairs` of one way are missing;
// * the sum over the a largest rows of min(degree, b);
// * the sum over the b largest columns of min(degree, a);
// * future_pairs + x·min(D, b) + Σ min(D, b - i) for i = 0 … n - 1, with D = max_degree. Apart from
//   future pairs, a token in A and B attends none of the i later tokens that are in both. More
//   tokens of S in A or B add a term. Up to b = D this is the first of these limits; beyond, it is
//   future_pairs + a·D - e(e - 1)/2 with e = D - y.
// Given x = a - n_q and y = b - n_k, the bytes moved, φ only grows with n_q and n_k: a step of n_q
// adds b to a·b and at most o - 1/2 <= b to the deduction, and sums grow with a and b. So a part
// that owns n tokens has n_q = n_k = n: it moves row_bytes·x + key_bytes·y and has
// a = n + x, b = n + y, o = max(n, a + b - tokens).
//
// Each of the four has convex sets {φ >= w}. The first are hyperbolas, and concave if o counts
// a + b. The fourth continues them: beyond b = D its least b falls faster with a, along a root. The
// others are the area under a falling staircase inside a x b (locally a·b, or a concave
// function of a plus one of b, with continuous slopes). So the least b is a convex function of a,
// and so are the bytes moved.
//
// Two of them give bytes in closed form, as functions of w:
// * area: a·b >= w + max(0, n(n - 1)/2 - future_pairs) within [n, tokens]². The least of
//   row_bytes·a + key_bytes·b is where a side is n or tokens, or both sides cost the same. Its
//   slope in w falls, except at two bends: the first is where it leaves 0. The second exists if one
//   side costs more than tokens / n times the other: there the cheaper side has reached tokens, the
//   other has n, and both stay at their limits.
// * forced overlap, for o = a + b - tokens: with x = tokens - a and y = tokens - b,
//   (x + 1/2)² + (y + 1/2)² <= 2·(tokens²/2 + tokens/2 + 1/4 + future_pairs - w), a disc. The bytes
//   left out are the most on it, so the bytes moved are convex. This holds if a + b >= tokens. If
//   the least of the area has a + b > tokens + n, it holds for the least of all. The reason: take
//   the line from a point with a smaller a + b to the least of the area. The point costs no less
//   than the place where that line comes to tokens + n, and there both hold.
//
// In a biclique all keys count as moved: a = n + x, b = y and φ = a·b, with at most early_tokens
// keys. Its bytes are those of the area. Their slope falls except at one bend: all keys are moved
// for the owned rows, and a further row costs more per pair.
class Isoperimetry {
 public:
  Isoperimetry(const DocumentKind& kind, double row_bytes, double key_bytes)
      : kind_(kind), row_bytes_(row_bytes), key_bytes_(key_bytes) {}

  [[nodiscard]] double pairs() const { return kind_.pairs; }
  [[nodiscard]] bool degrees_matter() const { return kind_.degrees_matter; }

  // Most pairs that a part which owns `owned` tokens computes without moving anything.
  [[nodiscard]] double free_pairs(double owned) const;
  // The least bytes it moves to compute `pairs`; at most 2% too low, never too high. Infinite if it
  // cannot. `near`: rows that the search begins with, 0 if unknown; set to those it ends with.
  // O(log).
  [[nodiscard]] double least_bytes(double pairs, double owned, double& near) const;

  // Bytes that the area alone requires: never above least_bytes, concave in pairs except at the
  // bends, and linear from the second bend on. O(1).
  [[nodiscard]] double area_bytes(double pairs, double owned) const;
  // Pairs at the two bends; infinite if there is no second one.
  [[nodiscard]] std::array<double, 2> area_bends(double owned) const;
  // True if forced overlap may be counted at this number of pairs; it then may for more pairs.
  [[nodiscard]] bool overlap_is_forced(double pairs, double owned) const;
  // Bytes that forced overlap alone requires, and their growth per pair; convex in pairs. The
  // tangent is never above least_bytes if overlap_is_forced. O(1).
  struct Tangent {
    double bytes = 0;
    double slope = 0;
  };
  [[nodiscard]] Tangent forced_bytes(double pairs, double owned) const;

 private:
  // Bytes moved by a part that uses `rows` rows, and the fewest keys that suffice.
  struct Probe {
    double rows = 0;
    double key_bytes = 0;  // moved
    double bytes = 0;      // rows and keys
  };
  [[nodiscard]] Probe probe(double rows, double pairs, double owned) const;
  // The least b with φ >= pairs; infinite if there is none.
  [[nodiscard]] double least_keys(double rows, double pairs, double owned) const;
  [[nodiscard]] double keys_in_order(double rows, double pairs, double owned) const;
  // Pairs on that much area.
  [[nodiscard]] double pairs_on_area(double area, double owned) const;
  // The a·b that the area requires, and the a of its least.
  [[nodiscard]] double least_area(double pairs, double owned) const;
  [[nodiscard]] double rows_of_area(double area, double owned) const;

  const DocumentKind& kind_;
  double row_bytes_;
  double key_bytes_;
};

}  // namespace contextile
