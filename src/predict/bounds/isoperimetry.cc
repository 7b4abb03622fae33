#include "predict/bounds/isoperimetry.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace contextile {
namespace {

constexpr double kNoSet = std::numeric_limits<double>::infinity();
constexpr double kSurfaceRounding = 1e-9;  // of sums and roots of doubles

// Unordered pairs of `tokens` tokens.
double couples(double tokens) { return tokens > 1 ? 0.5 * tokens * (tokens - 1) : 0; }

}  // namespace

double Isoperimetry::free_pairs(double owned) const {
  if (kind_.keys_are_early) return 0;
  const double n = std::min(owned, kind_.tokens);
  double pairs = pairs_on_area(n * n, n);
  if (kind_.degrees_matter) {
    pairs = std::min({pairs, kind_.rows.sum(n, n), kind_.columns.sum(n, n)});
  }
  if (n > kind_.max_degree) {
    pairs = std::min(pairs, n * kind_.max_degree - couples(kind_.max_degree) + kind_.future_pairs);
  }
  return pairs;
}

double Isoperimetry::least_area(double pairs, double owned) const {
  const double area = pairs + std::max(0.0, couples(owned) - kind_.future_pairs);
  return std::clamp(area, owned * owned, kind_.tokens * kind_.tokens);
}

double Isoperimetry::rows_of_area(double area, double owned) const {
  const double fewest = std::max(owned, area / kind_.tokens);
  return std::clamp(std::sqrt(area * key_bytes_ / row_bytes_), fewest, area / fewest);
}

double Isoperimetry::pairs_on_area(double area, double owned) const {
  return area - std::max(0.0, couples(owned) - kind_.future_pairs);
}

std::array<double, 2> Isoperimetry::area_bends(double owned) const {
  if (kind_.keys_are_early) {
    const bool bends = owned * row_bytes_ > kind_.early_tokens * key_bytes_;
    return {kNoSet, bends ? owned * kind_.early_tokens : kNoSet};
  }
  const bool is_lopsided =
      owned * std::max(row_bytes_, key_bytes_) > kind_.tokens * std::min(row_bytes_, key_bytes_);
  return {pairs_on_area(owned * owned, owned),
          is_lopsided ? pairs_on_area(owned * kind_.tokens, owned) : kNoSet};
}

double Isoperimetry::area_bytes(double pairs, double owned) const {
  if (kind_.keys_are_early) {
    const double fewest = std::max(owned, pairs / kind_.early_tokens);
    const double best = std::sqrt(pairs * key_bytes_ / row_bytes_);
    const double rows = std::max(fewest, std::min(best, kind_.late_tokens));
    return rows > 0 ? row_bytes_ * (rows - owned) + key_bytes_ * pairs / rows : 0;
  }
  const double area = least_area(pairs, owned);
  if (area <= owned * owned) return 0;
  const double rows = rows_of_area(area, owned);
  return std::max(0.0, row_bytes_ * (rows - owned) + key_bytes_ * (area / rows - owned));
}

bool Isoperimetry::overlap_is_forced(double pairs, double owned) const {
  if (kind_.keys_are_early) return false;
  const double area = least_area(pairs, owned);
  if (area <= owned * owned) return false;
  const double rows = rows_of_area(area, owned);
  return rows + area / rows > (kind_.tokens + owned) * (1 + kSurfaceRounding);
}

// Leaves out x rows and y keys, as many bytes of them as the disc allows, but none that are owned.
Isoperimetry::Tangent Isoperimetry::forced_bytes(double pairs, double owned) const {
  const double most = kind_.tokens - owned;
  const double left_over =
      0.5 * kind_.tokens * (kind_.tokens + 1) + 0.25 + kind_.future_pairs - pairs;
  const double radius = std::sqrt(std::max(0.5, 2 * left_over));
  const double norm = std::hypot(row_bytes_, key_bytes_);
  const double x = std::clamp(radius * row_bytes_ / norm - 0.5, 0.0, most);
  const double y = std::clamp(radius * key_bytes_ / norm - 0.5, 0.0, most);
  // If one is at its limit, the other has the rest of the disc.
  const auto rest = [&](double fixed) {
    const double square = radius * radius - (fixed + 0.5) * (fixed + 0.5);
    return std::clamp(std::sqrt(std::max(0.25, square)) - 0.5, 0.0, most);
  };
  const bool x_is_free = x > 0 && x < most;
  const bool y_is_free = y > 0 && y < most;
  const double rows = x_is_free && !y_is_free ? rest(y) : x;
  const double keys = y_is_free && !x_is_free ? rest(x) : y;
  Tangent tangent{.bytes = row_bytes_ * (most - rows) + key_bytes_ * (most - keys)};
  if (x_is_free && y_is_free) {
    tangent.slope = norm / radius;
  } else if (keys > 0 && keys < most) {
    tangent.slope = key_bytes_ / (keys + 0.5);
  } else if (rows > 0 && rows < most) {
    tangent.slope = row_bytes_ / (rows + 0.5);
  }
  return tangent;
}

// The least b > max_degree of the fourth limit; 0 if others decide, infinite if there is none.
double Isoperimetry::keys_in_order(double rows, double pairs, double owned) const {
  const double most = rows * kind_.max_degree + kind_.future_pairs;
  if (!(most < kNoSet)) return 0;
  if (most < pairs) return kNoSet;
  // e(e - 1)/2 <= most - pairs. With e >= owned no key beyond max_degree is needed.
  const double missing = 0.5 * (1 + std::sqrt(1 + 8 * (most - pairs)));
  return missing < owned ? owned + kind_.max_degree - missing : 0;
}

double Isoperimetry::least_keys(double rows, double pairs, double owned) const {
  if (rows <= 0) return kNoSet;
  const double most = kind_.tokens;
  double keys = (pairs + std::max(0.0, couples(owned) - kind_.future_pairs)) / rows;
  // With s = a + b - tokens > 0 forced overlap requires a·b - s(s - 1)/2 + future_pairs >= pairs;
  // take the smaller root.
  const double forced = rows + keys - most;
  if (couples(forced) > kind_.future_pairs) {
    const double p = 2 * rows + 1;
    const double discriminant = p * p - 8 * (pairs - kind_.future_pairs - rows * (most - rows));
    if (discriminant < -kSurfaceRounding * p * p) return kNoSet;
    const double s = 0.5 * (p - std::sqrt(std::max(0.0, discriminant)));
    keys = std::max(keys, s + most - rows);
  }
  keys = std::max(keys, keys_in_order(rows, pairs, owned));
  if (kind_.degrees_matter) {
    keys =
        std::max({keys, kind_.rows.least_cap(rows, pairs), kind_.columns.least_rows(rows, pairs)});
  }
  return keys <= most * (1 + kSurfaceRounding) + kSurfaceRounding ? std::min(keys, most) : kNoSet;
}

Isoperimetry::Probe Isoperimetry::probe(double rows, double pairs, double owned) const {
  const double keys = std::max(0.0, least_keys(rows, pairs, owned) - owned);
  return {rows, key_bytes_ * keys, row_bytes_ * (rows - owned) + key_bytes_ * keys};
}

// Golden-section search over the rows; the bytes moved are convex in them (see the header). At its
// end the least lies in [low, high], where nothing is below the fewest rows with the fewest keys.
double Isoperimetry::least_bytes(double pairs, double owned, double& near) const {
  constexpr double kGolden = 0.6180339887498949;
  constexpr double kClose = 0.98;
  constexpr double kNear = 0.04;
  constexpr int kMostSteps = 40;
  pairs *= 1 - kSurfaceRounding;  // the whole document is always possible
  if (owned >= kind_.tokens || pairs <= free_pairs(owned)) return 0;
  const auto at = [&](double rows) { return probe(rows, pairs, owned); };
  double low = owned;
  Probe high = at(kind_.tokens);
  if (high.bytes == kNoSet) return kNoSet;
  // If the middle of three is least, the least of all lies between the others.
  const double near_low = (1 - kNear) * near;
  if (near_low > owned && (1 + kNear) * near < kind_.tokens) {
    const Probe above = at((1 + kNear) * near);
    const Probe middle = at(near);
    if (middle.bytes < kNoSet && middle.bytes <= above.bytes &&
        middle.bytes <= at(near_low).bytes) {
      low = near_low;
      high = above;
    }
  }
  Probe left = at(high.rows - kGolden * (high.rows - low));
  Probe right = at(low + kGolden * (high.rows - low));
  double least = 0;
  for (int step = 0; step < kMostSteps; ++step) {
    if (left.bytes <= right.bytes && left.bytes < kNoSet) {
      high = right;
      right = left;
      left = at(high.rows - kGolden * (high.rows - low));
    } else {
      low = left.rows;
      left = right;
      right = at(low + kGolden * (high.rows - low));
    }
    least = row_bytes_ * (low - owned) + high.key_bytes;
    if (least >= kClose * std::min(left.bytes, right.bytes)) break;
  }
  near = 0.5 * (low + high.rows);
  return least;
}

}  // namespace contextile
