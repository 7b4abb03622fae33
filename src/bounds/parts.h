// A small linear program: how little the parts of the machine move for one document together.
#pragma once

#include <span>

namespace contextile {

// One way for a part to take its share of a document.
struct Share {
  double work = 0;   // pairs, all head groups
  double owned = 0;  // tokens
  double bytes = 0;  // moved
};

// The least Σ bytes over at most `parts` parts, each with one of the shares or none (or a mixture
// of them), that do at least `work` together and own at most `tokens`. A lower bound of it, that
// is: λ·work - μ·tokens - ν·parts with λ·work - μ·owned - ν <= bytes for every share, for λ, μ, ν
// >= 0 that the simplex method found; optimal up to rounding. Very large when the parts cannot do
// the work.
[[nodiscard]] double least_bytes_of_parts(std::span<const Share> shares, double parts, double work,
                                          double tokens);

}  // namespace contextile
