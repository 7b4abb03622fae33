#include "predict/bounds/configuration_lp.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace contextile {
namespace {

constexpr std::size_t kRows = 5;
using Vector = std::array<double, kRows>;

struct Column {
  Vector a{};  // of the rows work, -owned, -1, -is_large, -early
  double cost = 0;
};

double dot(const Vector& x, const Vector& y) {
  return x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3] + x[4] * y[4];
}

// min Σ cost·x with Σ a·x >= b, x >= 0, by the revised simplex method on five rows. Columns of
// surplus and an expensive artificial column, which does all the work, make the problem feasible
// and bounded.
class Simplex {
 public:
  Simplex(std::vector<Column> columns, const Vector& b) : columns_(std::move(columns)), b_(b) {
    double dearest = 1;
    for (const Column& column : columns_) dearest = std::max(dearest, column.cost);
    for (std::size_t i = 0; i < kRows; ++i) {
      Column surplus;
      surplus.a[i] = -1;
      columns_.push_back(surplus);
    }
    columns_.push_back({{b[0], 0, 0, 0, 0}, kStandIn * dearest});
    const std::size_t n = columns_.size();
    basis_ = {n - 1, n - 5, n - 4, n - 3, n - 2};  // the artificial column; slack in the other rows
    for (std::size_t i = 0; i < kRows; ++i) invert_column(i);
  }

  // Prices of the rows at the optimum, or after the last step allowed.
  Vector prices() {
    Vector y{};
    for (int step = 0; step < kMostSteps; ++step) {
      y = current_prices();
      const std::size_t entering = best_column(y, step < kMostSteps / 2);
      if (entering == columns_.size() || !pivot(entering)) break;
    }
    return y;
  }

  // Columns of the basis, including those that were added here.
  [[nodiscard]] const std::array<std::size_t, kRows>& basis() const { return basis_; }

 private:
  static constexpr double kStandIn = 1e6;
  static constexpr int kMostSteps = 400;

  void invert_column(std::size_t i) {
    const Column& column = columns_[basis_[i]];
    inverse_[i] = {};
    inverse_[i][i] = 1 / column.a[i];
  }

  [[nodiscard]] Vector current_prices() const {
    Vector y{};
    for (std::size_t i = 0; i < kRows; ++i) {
      for (std::size_t j = 0; j < kRows; ++j) y[j] += columns_[basis_[i]].cost * inverse_[i][j];
    }
    return y;
  }

  // Most negative reduced cost; in the second half of the steps the first one (Bland: no cycles).
  [[nodiscard]] std::size_t best_column(const Vector& y, bool most_negative) const {
    std::size_t best = columns_.size();
    double least = 0;
    for (std::size_t j = 0; j < columns_.size(); ++j) {
      const double reduced = columns_[j].cost - dot(y, columns_[j].a);
      if (reduced >= -1e-9 * (1 + columns_[j].cost) || reduced >= least) continue;
      best = j;
      if (!most_negative) break;
      least = reduced;
    }
    return best;
  }

  bool pivot(std::size_t entering) {
    Vector d{};
    std::size_t leaving = kRows;
    double step = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < kRows; ++i) {
      d[i] = dot(inverse_[i], columns_[entering].a);
      if (d[i] <= 1e-12) continue;
      const double ratio = std::max(0.0, dot(inverse_[i], b_)) / d[i];
      if (ratio < step || (ratio == step && basis_[i] < basis_[leaving])) {
        step = ratio;
        leaving = i;
      }
    }
    if (leaving == kRows) return false;
    for (double& entry : inverse_[leaving]) entry /= d[leaving];
    for (std::size_t i = 0; i < kRows; ++i) {
      if (i == leaving) continue;
      for (std::size_t j = 0; j < kRows; ++j) inverse_[i][j] -= d[i] * inverse_[leaving][j];
    }
    basis_[leaving] = entering;
    return true;
  }

  std::vector<Column> columns_;
  Vector b_;
  std::array<std::size_t, kRows> basis_{};
  std::array<Vector, kRows> inverse_{};  // of the basis, row by row
};

}  // namespace

ConfigurationBound configuration_lp_bound(std::span<const Configuration> configurations,
                                          const ConfigurationSums& sums) {
  const double most_large = std::max(1.0, sums.most_large);
  const double early = std::max(1.0, sums.early);
  // Scaled so that all rows are of the order of 1.
  std::vector<Column> columns;
  columns.reserve(configurations.size() + kRows + 1);
  for (const Configuration& one : configurations) {
    columns.push_back(
        {{sums.parts * one.work / sums.work, -sums.parts * one.owned / sums.tokens, -1,
          one.is_large ? -sums.parts / most_large : 0, -sums.parts * one.early / early},
         one.bytes});
  }
  Simplex simplex(std::move(columns), {1, -1, -1, -1, -1});
  const Vector y = simplex.prices();
  ConfigurationBound bound;
  for (const std::size_t column : simplex.basis()) {
    if (column < configurations.size()) bound.used.push_back(column);
  }
  // Despite rounding: with these μ, ν, σ and τ the largest λ makes a bound.
  const double mu = std::max(0.0, y[1]) * sums.parts / sums.tokens;
  const double nu = std::max(0.0, y[2]);
  const double sigma = std::max(0.0, y[3]) * sums.parts / most_large;
  const double tau = std::max(0.0, y[4]) * sums.parts / early;
  double lambda = std::numeric_limits<double>::infinity();
  for (const Configuration& one : configurations) {
    if (one.work <= 0) continue;
    const double price =
        one.bytes + mu * one.owned + nu + (one.is_large ? sigma : 0) + tau * one.early;
    lambda = std::min(lambda, price / one.work);
  }
  bound.bytes = lambda;  // infinite: no part can do anything
  if (std::isfinite(lambda)) {
    bound.bytes = std::max(0.0, lambda * sums.work - mu * sums.tokens - nu * sums.parts -
                                    sigma * most_large - tau * early);
  }
  return bound;
}

}  // namespace contextile
