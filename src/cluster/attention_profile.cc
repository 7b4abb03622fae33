#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>

#include "base/check.h"
#include "contextile/cluster.h"

namespace contextile {
namespace {

constexpr double kMostCallUs = 1e9;  // a quarter of an hour

// Grid points of one axis and their logarithms, if they are at hand.
struct Axis {
  std::span<const std::int64_t> points;
  const double* logs = nullptr;

  [[nodiscard]] double at(std::size_t i) const { return static_cast<double>(points[i]); }
  [[nodiscard]] double log_at(std::size_t i) const {
    return logs != nullptr ? logs[i] : std::log(at(i));
  }
};

// Shares on the grid and their logarithms, if they are at hand.
struct Surface {
  const std::vector<double>& shares;
  const double* logs = nullptr;

  [[nodiscard]] double log_at(std::size_t i) const {
    return logs != nullptr ? logs[i] : std::log(shares[i]);
  }
};

// Position of x on an ascending grid: index of the lower point and the weight of the next one.
struct GridPosition {
  std::size_t lower = 0;
  double weight = 0;
};

GridPosition locate(const Axis& axis, double x) {
  const std::size_t size = axis.points.size();
  if (x <= axis.at(0)) return {0, 0};
  if (x >= axis.at(size - 1)) return {size - 1, 0};
  std::size_t upper = 1;
  while (axis.at(upper) < x) ++upper;
  const double low = axis.log_at(upper - 1);
  const double high = axis.log_at(upper);
  return {upper - 1, (std::log(x) - low) / (high - low)};
}

double share_of(const Axis& q_axis, const Axis& kv_axis, const Surface& surface, double rows,
                double keys) {
  const GridPosition q = locate(q_axis, rows);
  const GridPosition k = locate(kv_axis, keys);
  const auto at = [&](std::size_t i, std::size_t j) {
    i = std::min(i, q_axis.points.size() - 1);
    j = std::min(j, kv_axis.points.size() - 1);
    return surface.log_at(i * kv_axis.points.size() + j);
  };
  const double low = at(q.lower, k.lower) * (1 - k.weight) + at(q.lower, k.lower + 1) * k.weight;
  const double high =
      at(q.lower + 1, k.lower) * (1 - k.weight) + at(q.lower + 1, k.lower + 1) * k.weight;
  // Below the grid the time stays that of the smallest rectangle.
  const double shrink = std::min(1.0, rows / q_axis.at(0)) * std::min(1.0, keys / kv_axis.at(0));
  return std::exp(low * (1 - q.weight) + high * q.weight) * shrink;
}

template <typename Number>
std::vector<double> logs_of(const std::vector<Number>& numbers) {
  std::vector<double> logs;
  logs.reserve(numbers.size());
  for (const Number number : numbers) logs.push_back(std::log(static_cast<double>(number)));
  return logs;
}

constexpr double kLeastShare = 1e-6;  // a millionth of the peak: far below anything that computes
constexpr std::int64_t kMostRows = std::int64_t{1} << 31;  // as tokens

void check_grid(std::span<const std::int64_t> grid, std::string_view name) {
  CONTEXTILE_CHECK(!grid.empty() && grid.front() >= 1 && grid.back() <= kMostRows &&
                       std::ranges::adjacent_find(grid, std::greater_equal<>()) == grid.end(),
                   "attention profile: {}: expected ascending numbers of 1 to {}, found {}", name,
                   kMostRows, grid.empty() ? "none" : fmt::format("{}", fmt::join(grid, ", ")));
}

void check_shares(const std::vector<double>& shares, std::size_t count, std::string_view name) {
  CONTEXTILE_CHECK(shares.size() == count,
                   "attention profile: {}: expected {} numbers (q_rows x kv_rows), found {}", name,
                   count, shares.size());
  for (const double share : shares) {
    CONTEXTILE_CHECK(share >= kLeastShare && share <= 2,
                     "attention profile: {}: expected shares of the peak of {} to 2, found {}",
                     name, kLeastShare, share);
  }
}

}  // namespace

double AttentionProfile::forward_share(double rows, double keys) const {
  return share_of({q_rows}, {kv_rows}, {forward}, rows, keys);
}

double AttentionProfile::backward_share(double rows, double keys) const {
  return share_of({q_rows}, {kv_rows}, {backward}, rows, keys);
}

double AttentionProfile::computed_pairs(std::int64_t rows, std::int64_t keys,
                                        std::int64_t pairs) const {
  const double area = static_cast<double>(rows) * static_cast<double>(keys);
  const auto attended = static_cast<double>(pairs);
  if (attended == area) return area;
  const double wasted =
      0.5 * static_cast<double>(kernel_tile_rows) * static_cast<double>(std::min(rows, keys));
  return std::min(area, attended + wasted);
}

AttentionProfile AttentionProfile::from_overheads(double row_keys, double call_pairs,
                                                  double backward_share,
                                                  std::int64_t kernel_tile_rows) {
  AttentionProfile profile;
  profile.kernel_tile_rows = kernel_tile_rows;
  for (std::int64_t rows = 16; rows <= 65536; rows *= 2) profile.q_rows.push_back(rows);
  profile.kv_rows = profile.q_rows;
  for (const std::int64_t rows : profile.q_rows) {
    for (const std::int64_t keys : profile.kv_rows) {
      const auto pairs = static_cast<double>(rows * keys);
      const double fitted = pairs + row_keys * static_cast<double>(rows) + call_pairs;
      const auto whole_tiles =
          static_cast<double>(std::max(rows, kernel_tile_rows) * std::max(keys, kernel_tile_rows));
      const double share = pairs / std::max(fitted, whole_tiles);
      profile.forward.push_back(share);
      profile.backward.push_back(backward_share * share);
    }
  }
  return profile;
}

AttentionShares::AttentionShares(const AttentionProfile& profile)
    : profile_(profile),
      log_q_rows_(logs_of(profile.q_rows)),
      log_kv_rows_(logs_of(profile.kv_rows)),
      log_forward_(logs_of(profile.forward)),
      log_backward_(logs_of(profile.backward)) {}

double AttentionShares::forward(double rows, double keys) const {
  return share_of({profile_.q_rows, log_q_rows_.data()}, {profile_.kv_rows, log_kv_rows_.data()},
                  {profile_.forward, log_forward_.data()}, rows, keys);
}

double AttentionShares::backward(double rows, double keys) const {
  return share_of({profile_.q_rows, log_q_rows_.data()}, {profile_.kv_rows, log_kv_rows_.data()},
                  {profile_.backward, log_backward_.data()}, rows, keys);
}

void check_profile(const AttentionProfile& profile) {
  check_grid(profile.q_rows, "q_rows");
  check_grid(profile.kv_rows, "kv_rows");
  const std::size_t count = profile.q_rows.size() * profile.kv_rows.size();
  check_shares(profile.forward, count, "forward");
  check_shares(profile.backward, count, "backward");
  CONTEXTILE_CHECK(profile.call_us >= 0 && profile.call_us <= kMostCallUs,
                   "attention profile: call_us: expected 0 to {}, found {}", kMostCallUs,
                   profile.call_us);
  CONTEXTILE_CHECK(profile.kernel_tile_rows >= 0 && profile.kernel_tile_rows <= 65536,
                   "attention profile: kernel_tile_rows: expected 0 to 65536, found {}",
                   profile.kernel_tile_rows);
}

}  // namespace contextile
