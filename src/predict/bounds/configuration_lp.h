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
  bool is_large = false;
  double early = 0;  // tokens of another sort, owned too
};

struct ConfigurationBound {
  double bytes = 0;
  // Configurations in the program's own solution. Refining others cannot raise the bound.
  std::vector<std::size_t> used;
};

// Limits of all parts together.
struct ConfigurationSums {
  double parts = 1;       // at most
  double work = 0;        // at least
  double tokens = 0;      // at most
  double most_large = 0;  // of the parts are in large configurations
  double early = 0;       // tokens, at most
};

// The least Σ bytes over parts that keep to the sums. Each part is in one of the configurations or
// none, or in a mixture of them. The result is a lower bound:
// λ·work - μ·tokens - ν·parts - σ·most_large - τ·early with
// λ·work - μ·owned - ν - σ·is_large - τ·early <= bytes for every configuration, for λ, μ, ν, σ,
// τ >= 0 that the simplex method found; optimal up to rounding. It is very large if the parts
// cannot do the work.
[[nodiscard]] ConfigurationBound configuration_lp_bound(
    std::span<const Configuration> configurations, const ConfigurationSums& sums);

}  // namespace contextile
