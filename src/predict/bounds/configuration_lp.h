// The least that the parts of the machine move for one document together: a configuration linear
// program.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace contextile {

// One way for a part to take its share of a document.
struct Configuration {
  double work = 0;   // pairs, all head groups
  double owned = 0;  // tokens
  double bytes = 0;  // moved
};

struct ConfigurationBound {
  double bytes = 0;
  // Configurations in the program's own solution. Refining others cannot raise the bound.
  std::vector<std::size_t> used;
};

// The least Σ bytes over at most `parts` parts that do at least `work` together and own at most
// `tokens`. Each part is in one of the configurations or none, or in a mixture of them. The result
// is a lower bound: λ·work - μ·tokens - ν·parts with λ·work - μ·owned - ν <= bytes for every
// configuration, for λ, μ, ν >= 0 that the simplex method found; optimal up to rounding. It is very
// large if the parts cannot do the work.
[[nodiscard]] ConfigurationBound configuration_lp_bound(
    std::span<const Configuration> configurations, double parts, double work, double tokens);

}  // namespace contextile
