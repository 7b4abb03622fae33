#include "predict/bounds/work_curve.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <span>
#include <utility>

#include "predict/bounds/min_plus_convolution.h"

namespace contextile {
namespace {

constexpr std::int64_t kSteps = 64;
// A part that could do a whole head group does less than that of each group, so steps are finer.
constexpr std::int64_t kStepsOfGroups = 128;
// With this many whole head groups in a part, the last, partial one hardly matters.
constexpr double kMostWholeGroups = 4;
constexpr double kBendRounding = 1e-9;
// If degrees matter, the search begins at kNearest of the first step.
constexpr double kNearest = 1.0 / 256;
constexpr double kNearRatio = 1.2;

// A line over one step.
struct Chord {
  double left = 0;
  double right = 0;

  [[nodiscard]] double middle() const { return 0.5 * (left + right); }
};

// Least bytes by search. They grow with pairs, so between two points they are no less than at the
// first. In the first step a line from 0 lies below all of them from kNearest of the step on.
// Closer to 0 it exceeds them by at most its height at kNearest.
SampledBytes searched_bytes(const Isoperimetry& isoperimetry, double owned, double from,
                            double step, std::int64_t num_steps) {
  double near = 0;
  double before = 0;  // least bytes at the point before
  const auto search = [&](double distance) {
    const double least = isoperimetry.least_bytes(from + distance, owned, near);
    if (std::isfinite(least)) before = std::max(before, least);
  };
  search(kNearest * step);
  double rise = std::numeric_limits<double>::infinity();  // of the line, in a step
  for (double part = kNearRatio * kNearest; part < 1; part *= kNearRatio) {
    rise = std::min(rise, before / part);
    search(part * step);
  }
  rise = std::min(rise, before);
  SampledBytes sampled{.values = {0, rise}, .excess_bytes = kNearest * rise};
  search(step);
  for (std::int64_t k = 2; k <= num_steps; ++k) {
    sampled.values.push_back(std::max(rise, before));
    search(static_cast<double>(k) * step);
  }
  return sampled;
}

// Appends the corners of the lower convex hull of points with ascending work.
void append_hull(std::span<const Configuration> points, std::vector<Configuration>& hull) {
  const std::size_t first = hull.size();
  for (const Configuration& point : points) {
    while (hull.size() >= first + 2) {
      const Configuration& a = hull[hull.size() - 2];
      const Configuration& b = hull.back();
      const bool lies_below =
          (b.bytes - a.bytes) * (point.work - a.work) < (point.bytes - a.bytes) * (b.work - a.work);
      if (lies_below) break;
      hull.pop_back();
    }
    hull.push_back(point);
  }
}

}  // namespace

// Several lines are lower bounds on a step; the one that is highest in the middle of the step is
// taken. A value is the lower of the two lines that meet there.
SampledBytes sampled_least_bytes(const Isoperimetry& isoperimetry, double owned, double from,
                                 double step, std::int64_t num_steps) {
  SampledBytes searched;
  if (isoperimetry.degrees_matter()) {
    searched = searched_bytes(isoperimetry, owned, from, step, num_steps);
  }
  std::vector<double> values = {0};
  double left_bytes = 0;
  for (std::int64_t k = 0; k < num_steps; ++k) {
    const auto at = static_cast<std::size_t>(k);
    const double left = from + step * static_cast<double>(k);
    const double right_bytes = isoperimetry.area_bytes(left + step, owned);
    Chord best{left_bytes, right_bytes};
    for (const double bend : isoperimetry.area_bends(owned)) {
      if (bend <= left * (1 + kBendRounding) || bend >= left + step) continue;
      // From the bend on bytes rise faster: continue the line from the left of it.
      const double rise = (isoperimetry.area_bytes(bend, owned) - left_bytes) / (bend - left);
      best.right = std::min(best.right, left_bytes + step * rise);
    }
    left_bytes = right_bytes;
    const auto take = [&](const Chord& chord) {
      if (chord.left >= 0 && chord.middle() > best.middle()) best = chord;
    };
    if (isoperimetry.overlap_is_forced(left, owned)) {
      const auto [bytes, slope] = isoperimetry.forced_bytes(left + 0.5 * step, owned);
      take({bytes - 0.5 * step * slope, bytes + 0.5 * step * slope});
    }
    if (!searched.values.empty()) take({searched.values[at], searched.values[at + 1]});
    values.back() = k == 0 ? 0 : std::min(values.back(), best.left);
    values.push_back(best.right);
  }
  return {std::move(values), searched.excess_bytes};
}

WorkCurve::WorkCurve(const Isoperimetry& isoperimetry, double owned, double groups,
                     double most_pairs)
    : most_pairs_(most_pairs) {
  const double free = std::min(isoperimetry.free_pairs(owned), isoperimetry.pairs());
  free_work_ = groups * free;
  const double beyond = most_pairs - free_work_;
  const double of_group = isoperimetry.pairs() - free;
  if (beyond <= 0 || of_group <= 0) {
    sums_ = {0};
    return;
  }
  const double whole_groups = beyond / of_group;
  const bool are_many = whole_groups > kMostWholeGroups;
  // Steps end at the end of a head group, if a part can do a whole one.
  std::int64_t group_steps = kSteps;
  double step = of_group / static_cast<double>(kSteps);
  if (whole_groups < 1) {
    step = beyond / static_cast<double>(kSteps);
  } else if (!are_many) {
    group_steps = std::llround(static_cast<double>(kStepsOfGroups) / whole_groups);
    step = of_group / static_cast<double>(group_steps);
  }
  const SampledBytes sampled = sampled_least_bytes(isoperimetry, owned, free, step, group_steps);
  excess_bytes_ = groups * sampled.excess_bytes;
  step_ = are_many ? groups * step : step;
  sums_ = are_many ? convex_power(sampled.values, groups)
                   : min_plus_power(sampled.values, static_cast<std::int32_t>(groups),
                                    static_cast<std::int64_t>(std::ceil(beyond / step)));
}

// Work and bytes grow from one point to the next, so each limit holds up to some point.
double WorkCurve::part_within(const PartLimits& limits, const OwnedShare& share,
                              const Configuration& from, const Configuration& to) const {
  const double spared = excess_bytes_ + share.token_bytes * share.most_early;
  // The way up to which work · by_work + bytes · by_bytes is at most `most`.
  const auto up_to = [&](double by_work, double by_bytes, double most) {
    const auto sum = [&](const Configuration& point) {
      return by_work * point.work + by_bytes * (point.bytes - spared);
    };
    if (sum(to) <= most) return 1.0;
    return sum(from) <= most ? (most - sum(from)) / (sum(to) - sum(from)) : 0.0;
  };
  const double per_byte = limits.pairs_per_byte;
  const double free = free_work_ + share.most_free;
  const double one_call = up_to(1, per_byte, limits.work_and_bytes);
  const double two_calls = std::min(up_to(1, 0, limits.work_in_two_calls),
                                    up_to(1, per_byte, limits.work_and_bytes + free));
  const double moves_nothing = up_to(0, 1, 0);
  const double in_calls =
      std::max({moves_nothing, one_call, two_calls, up_to(1, 0, limits.work_in_calls)});
  return std::min({in_calls, up_to(1, 0, limits.work), up_to(0, 1, limits.bytes)});
}

void WorkCurve::append_configurations(const PartLimits& limits, const OwnedShare& share,
                                      std::vector<Configuration>& configurations) const {
  if (limits.work <= free_work_) {
    configurations.push_back({limits.work, share.tokens, 0});
    return;
  }
  const double spared = share.token_bytes * share.early;
  std::vector<Configuration> within;
  std::vector<Configuration> beyond;
  Configuration from = {free_work_, share.tokens, sums_.front()};
  (from.bytes < spared ? within : beyond).push_back(from);
  for (std::size_t k = 1; k < sums_.size(); ++k) {
    const Configuration to = {free_work_ + static_cast<double>(k) * step_, share.tokens, sums_[k]};
    const double end = part_within(limits, share, from, to);
    const auto at = [&](double part) {
      return Configuration{from.work + part * (to.work - from.work), share.tokens,
                           from.bytes + part * (to.bytes - from.bytes)};
    };
    if (end <= 0) break;
    if (from.bytes < spared && at(end).bytes >= spared) {
      const Configuration bend = at((spared - from.bytes) / (to.bytes - from.bytes));
      within.push_back(bend);
      beyond.push_back(bend);
    }
    (at(end).bytes < spared ? within : beyond).push_back(at(end));
    if (end < 1) break;
    from = to;
  }
  const std::size_t first = configurations.size();
  if (share.or_fewer) append_hull(within, configurations);
  for (std::size_t i = first; i < configurations.size(); ++i) {
    configurations[i].early = configurations[i].bytes / share.token_bytes;
    configurations[i].bytes = 0;
  }
  const std::size_t next = configurations.size();
  append_hull(beyond, configurations);
  for (std::size_t i = next; i < configurations.size(); ++i) {
    configurations[i].early = share.early;
    configurations[i].bytes -= spared;
  }
}

}  // namespace contextile
