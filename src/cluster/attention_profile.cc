#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>

#include "base/check.h"
#include "contextile/cluster.h"

namespace contextile {
namespace {

// Position of x on an ascending grid: index of the lower point and the weight of the next one.
struct GridPosition {
  std::size_t lower = 0;
  double weight = 0;
};

GridPosition locate(std::span<const std::int64_t> grid, double x) {
  if (x <= static_cast<double>(grid.front())) return {0, 0};
  if (x >= static_cast<double>(grid.back())) return {grid.size() - 1, 0};
  std::size_t upper = 1;
  while (static_cast<double>(grid[upper]) < x) ++upper;
  const double low = std::log(static_cast<double>(grid[upper - 1]));
  const double high = std::log(static_cast<double>(grid[upper]));
  return {upper - 1, (std::log(x) - low) / (high - low)};
}

double share_of(const AttentionProfile& profile, const std::vector<double>& shares, double rows,
                double keys) {
  const GridPosition q = locate(profile.q_rows, rows);
  const GridPosition k = locate(profile.kv_rows, keys);
  const auto at = [&](std::size_t i, std::size_t j) {
    i = std::min(i, profile.q_rows.size() - 1);
    j = std::min(j, profile.kv_rows.size() - 1);
    return std::log(shares[i * profile.kv_rows.size() + j]);
  };
  const double low = at(q.lower, k.lower) * (1 - k.weight) + at(q.lower, k.lower + 1) * k.weight;
  const double high =
      at(q.lower + 1, k.lower) * (1 - k.weight) + at(q.lower + 1, k.lower + 1) * k.weight;
  // Below the grid the time stays that of the smallest rectangle.
  const double shrink = std::min(1.0, rows / static_cast<double>(profile.q_rows.front())) *
                        std::min(1.0, keys / static_cast<double>(profile.kv_rows.front()));
  return std::exp(low * (1 - q.weight) + high * q.weight) * shrink;
}

void check_grid(std::span<const std::int64_t> grid, std::string_view name) {
  CONTEXTILE_CHECK(!grid.empty() && grid.front() >= 1 &&
                       std::ranges::adjacent_find(grid, std::greater_equal<>()) == grid.end(),
                   "attention profile: {}: expected positive ascending numbers, found {}", name,
                   fmt::join(grid, ", "));
}

void check_shares(const std::vector<double>& shares, std::size_t count, std::string_view name) {
  CONTEXTILE_CHECK(shares.size() == count,
                   "attention profile: {}: expected {} numbers (q_rows x kv_rows), found {}", name,
                   count, shares.size());
  for (const double share : shares) {
    CONTEXTILE_CHECK(share > 0 && share <= 2,
                     "attention profile: {}: expected shares of the peak in (0, 2], found {}", name,
                     share);
  }
}

}  // namespace

double AttentionProfile::forward_share(double rows, double keys) const {
  return share_of(*this, forward, rows, keys);
}

double AttentionProfile::backward_share(double rows, double keys) const {
  return share_of(*this, backward, rows, keys);
}

AttentionProfile AttentionProfile::from_overheads(double row_keys, double call_pairs,
                                                  double backward_share) {
  AttentionProfile profile;
  for (std::int64_t rows = 16; rows <= 65536; rows *= 2) profile.q_rows.push_back(rows);
  profile.kv_rows = profile.q_rows;
  for (const std::int64_t rows : profile.q_rows) {
    for (const std::int64_t keys : profile.kv_rows) {
      const auto pairs = static_cast<double>(rows * keys);
      const double share = pairs / (pairs + row_keys * static_cast<double>(rows) + call_pairs);
      profile.forward.push_back(share);
      profile.backward.push_back(backward_share * share);
    }
  }
  return profile;
}

void check_profile(const AttentionProfile& profile) {
  check_grid(profile.q_rows, "q_rows");
  check_grid(profile.kv_rows, "kv_rows");
  const std::size_t count = profile.q_rows.size() * profile.kv_rows.size();
  check_shares(profile.forward, count, "forward");
  check_shares(profile.backward, count, "backward");
  CONTEXTILE_CHECK(std::isfinite(profile.call_us) && profile.call_us >= 0,
                   "attention profile: call_us: expected 0 or more, found {}", profile.call_us);
  CONTEXTILE_CHECK(profile.kernel_tile_rows >= 0 && profile.kernel_tile_rows <= 65536,
                   "attention profile: kernel_tile_rows: expected 0 to 65536, found {}",
                   profile.kernel_tile_rows);
}

}  // namespace contextile
