#include "bounds/isoperimetry.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace contextile {
namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;  // of sums and roots of doubles

// Unordered pairs of `tokens` tokens.
double couples(double tokens) { return tokens > 1 ? 0.5 * tokens * (tokens - 1) : 0; }

}  // namespace

double Isoperimetry::free_pairs(double owned) const {
  const double n = std::min(owned, kind_.tokens);
  double pairs = n * n - std::max(0.0, couples(n) - kind_.future_pairs);
  if (kind_.degrees_matter) {
    pairs = std::min({pairs, kind_.rows.sum(n, n), kind_.columns.sum(n, n)});
  }
  return pairs;
}

double Isoperimetry::least_keys(double rows, double pairs, double owned) const {
  if (rows <= 0) return kNone;
  const double most = kind_.tokens;
  double keys = (pairs + std::max(0.0, couples(owned) - kind_.future_pairs)) / rows;
  // Overlap forced by a + b > tokens, s tokens: a·b - s(s - 1)/2 + future_pairs >= pairs, the
  // smaller root.
  const double forced = rows + keys - most;
  if (couples(forced) > kind_.future_pairs) {
    const double p = 2 * rows + 1;
    const double discriminant = p * p - 8 * (pairs - kind_.future_pairs - rows * (most - rows));
    if (discriminant < -kRounding * p * p) return kNone;
    const double s = 0.5 * (p - std::sqrt(std::max(0.0, discriminant)));
    keys = std::max(keys, s + most - rows);
  }
  if (kind_.degrees_matter) {
    keys =
        std::max({keys, kind_.rows.least_cap(rows, pairs), kind_.columns.least_rows(rows, pairs)});
  }
  return keys <= most * (1 + kRounding) + kRounding ? std::min(keys, most) : kNone;
}

// Golden-section search over the rows; what is moved is convex in them (see the header). At its end
// the least lies in [low, high], where nothing is below the fewest rows with the fewest keys.
double Isoperimetry::least_bytes(double pairs, double owned) const {
  constexpr double kGolden = 0.6180339887498949;
  constexpr double kClose = 0.99;
  constexpr int kMostSteps = 40;
  pairs *= 1 - kRounding;  // the whole document is always possible
  if (owned >= kind_.tokens || pairs <= free_pairs(owned)) return 0;
  struct Probe {
    double rows = 0;
    double key_bytes = 0;  // moved
    double bytes = 0;      // rows and keys
  };
  const auto probe = [&](double rows) {
    const double keys = std::max(0.0, least_keys(rows, pairs, owned) - owned);
    return Probe{rows, key_bytes_ * keys, row_bytes_ * (rows - owned) + key_bytes_ * keys};
  };
  double low = owned;
  Probe high = probe(kind_.tokens);
  if (high.bytes == kNone) return kNone;
  Probe left = probe(high.rows - kGolden * (high.rows - low));
  Probe right = probe(low + kGolden * (high.rows - low));
  double least = 0;
  for (int step = 0; step < kMostSteps; ++step) {
    if (left.bytes <= right.bytes && left.bytes < kNone) {
      high = right;
      right = left;
      left = probe(high.rows - kGolden * (high.rows - low));
    } else {
      low = left.rows;
      left = right;
      right = probe(low + kGolden * (high.rows - low));
    }
    least = row_bytes_ * (low - owned) + high.key_bytes;
    if (least >= kClose * std::min(left.bytes, right.bytes)) break;
  }
  return least;
}

}  // namespace contextile
