#include "kernel/cpu/logaddexp.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace contextile {

double logaddexp(double a, double b) {
  const double high = std::max(a, b);
  const double low = std::min(a, b);
  if (low == -std::numeric_limits<double>::infinity()) return high;
  return high + std::log1p(std::exp(low - high));
}

}  // namespace contextile
