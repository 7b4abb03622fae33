#include "predict/bounds/least_kernel_time.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace contextile {
namespace {

// Raises entries of one line of the grid until they grow, and no faster than `points` do. `at(i)`
// refers to the i-th entry of the line.
template <typename At>
void raise_line(const std::vector<std::int64_t>& points, At at) {
  for (std::size_t i = 1; i < points.size(); ++i) at(i) = std::max(at(i), at(i - 1));
  for (std::size_t i = points.size() - 1; i > 0; --i) {
    const double ratio = static_cast<double>(points[i - 1]) / static_cast<double>(points[i]);
    at(i - 1) = std::max(at(i - 1), at(i) * ratio);
  }
}

// Grid points below `end`, and `end`.
std::vector<double> points_up_to(const std::vector<std::int64_t>& grid, double end) {
  std::vector<double> points;
  for (const std::int64_t point : grid) {
    if (static_cast<double>(point) < end) points.push_back(static_cast<double>(point));
  }
  points.push_back(end);
  return points;
}

// Buys the γ that is worth most with a part of `epsilon`, if there is one.
void add_diagonal(double half_tile, const MaskComponent& component, double epsilon,
                  KernelCost& cost) {
  cost.piece = epsilon;
  const auto diagonal = static_cast<double>(component.diagonal);
  const double most = std::sqrt(2 * epsilon / cost.pair) - 0.5;
  const double u = std::min({half_tile, most, diagonal - 0.5});
  if (!(u > 0)) return;
  const double paid = 0.5 * cost.pair * (u + 0.5) * (u + 0.5);
  if (cost.pair * u * diagonal <= paid) return;
  cost.diagonal = cost.pair * u;
  cost.piece -= paid;
}

}  // namespace

KernelPrice::KernelPrice(const AttentionProfile& profile, Direction direction) : profile_(profile) {
  if (direction == Direction::kBackward) profile_.forward = profile.backward;
  std::vector<double>& shares = profile_.forward;
  const std::size_t num_rows = profile_.q_rows.size();
  const std::size_t num_keys = profile_.kv_rows.size();
  for (std::size_t i = 0; i < num_rows; ++i) {
    raise_line(profile_.kv_rows,
               [&](std::size_t j) -> double& { return shares[i * num_keys + j]; });
  }
  // Raising along rows keeps the property along keys: maxima and multiples of lines have it, too.
  for (std::size_t j = 0; j < num_keys; ++j) {
    raise_line(profile_.q_rows, [&](std::size_t i) -> double& { return shares[i * num_keys + j]; });
  }
}

double KernelPrice::share(double rows, double keys) const {
  return profile_.forward_share(rows, keys);
}

// A piece computes at most the rectangle, and per row at most its longest row and half a kernel
// tile. A run of several pieces may compute more. It costs no less than one piece of this size, and
// has no more pairs and tokens on the diagonal than that piece may have.
double KernelPrice::most_keys(const MaskComponent& component) const {
  return std::min(static_cast<double>(component.tokens.size()),
                  static_cast<double>(component.max_degree) +
                      0.5 * static_cast<double>(profile_.kernel_tile_rows));
}

double KernelPrice::best_share(const MaskComponent& component) const {
  return share(static_cast<double>(component.rows), most_keys(component));
}

KernelPrice::Corners KernelPrice::corners_of(const MaskComponent& component) const {
  Corners corners;
  corners.rows = points_up_to(profile_.q_rows, static_cast<double>(component.rows));
  corners.keys = points_up_to(profile_.kv_rows, most_keys(component));
  corners.most_alpha = std::numeric_limits<double>::infinity();
  for (const double rows : corners.rows) {
    for (const double keys : corners.keys) {
      const double per_share = 1 / share(rows, keys);
      corners.keys_per_share.push_back(keys * per_share);
      corners.most_alpha = std::min(corners.most_alpha, per_share);
    }
  }
  return corners;
}

// The best bound of one α. At row length r, β + ε / r may be at most the least of k / share - α·k.
// The candidates for ε reach that at the longest rows and at one other length.
KernelCost KernelPrice::least_cost(const MaskComponent& component, const Corners& corners,
                                   double alpha) const {
  const std::size_t num_keys = corners.keys.size();
  std::vector<double> left;  // by row length
  for (std::size_t i = 0; i < corners.rows.size(); ++i) {
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t j = 0; j < num_keys; ++j) {
      least = std::min(least, corners.keys_per_share[i * num_keys + j] - alpha * corners.keys[j]);
    }
    left.push_back(std::max(0.0, least));
  }
  const double half_tile = 0.5 * static_cast<double>(profile_.kernel_tile_rows);
  std::vector<double> epsilons = {0, 0.5 * alpha * (half_tile + 0.5) * (half_tile + 0.5)};
  for (std::size_t i = 0; i + 1 < left.size(); ++i) {
    const double gap = 1 / corners.rows[i] - 1 / corners.rows.back();
    epsilons.push_back(std::max(0.0, (left[i] - left.back()) / gap));
  }
  KernelCost dearest;
  for (const double epsilon : epsilons) {
    KernelCost cost{.pair = alpha, .row = std::numeric_limits<double>::infinity()};
    for (std::size_t i = 0; i < left.size(); ++i) {
      cost.row = std::min(cost.row, left[i] - epsilon / corners.rows[i]);
    }
    if (cost.row < 0) continue;
    add_diagonal(half_tile, component, epsilon, cost);
    if (cost.of(component) > dearest.of(component)) dearest = cost;
  }
  return dearest;
}

KernelCost KernelPrice::least_cost(const MaskComponent& component) const {
  const Corners corners = corners_of(component);
  // Candidates for α: the pure price of a pair, and of one more key in pieces of all rows.
  KernelCost dearest = least_cost(component, corners, corners.most_alpha);
  const std::size_t num_keys = corners.keys.size();
  const double* longest = corners.keys_per_share.data() + (corners.rows.size() - 1) * num_keys;
  for (std::size_t j = 1; j < num_keys; ++j) {
    const double slope = (longest[j] - longest[j - 1]) / (corners.keys[j] - corners.keys[j - 1]);
    if (slope <= 0 || slope >= corners.most_alpha) continue;
    const KernelCost cost = least_cost(component, corners, slope);
    if (cost.of(component) > dearest.of(component)) dearest = cost;
  }
  return dearest;
}

}  // namespace contextile
