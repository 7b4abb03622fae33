#include "predict/bounds/degrees.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace contextile {
namespace {

constexpr double kNoDegree = std::numeric_limits<double>::infinity();
// Steps of at most 1/kLevels of the largest degree, joined as long as the sum of degrees grows by
// at most 1/kJoins per step.
constexpr std::int64_t kLevels = 128;
constexpr double kJoins = 256;

}  // namespace

DegreeSteps::DegreeSteps(std::span<const DegreeRun> runs) {
  std::int64_t most = 0;
  for (const DegreeRun& run : runs) most = std::max({most, run.first, run.last()});
  const std::int64_t level = std::max<std::int64_t>(1, most / kLevels);
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;  // (largest degree, rows)
  for (const DegreeRun& run : runs) {
    const std::int64_t range = std::abs(run.last() - run.first);
    const std::int64_t num_parts = std::min(run.count, range / level + 1);
    for (std::int64_t i = 0; i < num_parts; ++i) {
      const std::int64_t begin = run.count * i / num_parts;
      const std::int64_t end = run.count * (i + 1) / num_parts;
      const std::int64_t degree = run.first + run.slope * (run.slope > 0 ? end - 1 : begin);
      parts.emplace_back(degree, end - begin);
    }
  }
  std::ranges::sort(parts, std::greater<>());
  DegreeSteps exact;
  for (const auto& [degree, count] : parts) {
    exact.append(static_cast<double>(degree), static_cast<double>(count));
  }
  *this = compressed(exact);
}

void DegreeSteps::append(double degree, double count) {
  if (!steps_.empty() && steps_.back().degree == degree) {
    steps_.back().count += count;
  } else {
    steps_.push_back({degree, count, 0, 0});
  }
  Step& step = steps_.back();
  const Step before = steps_.size() > 1 ? steps_[steps_.size() - 2] : Step{};
  step.end = before.end + step.count;
  step.sum_end = before.sum_end + step.degree * step.count;
}

DegreeSteps DegreeSteps::compressed(const DegreeSteps& steps) {
  DegreeSteps result;
  if (steps.steps_.empty()) return result;
  const double allowed = steps.steps_.back().sum_end / kJoins;
  double degree = 0;
  double count = 0;
  double added = 0;
  for (const Step& step : steps.steps_) {
    added += (degree - step.degree) * step.count;
    if (count > 0 && added <= allowed) {
      count += step.count;
      continue;
    }
    if (count > 0) result.append(degree, count);
    degree = step.degree;
    count = step.count;
    added = 0;
  }
  result.append(degree, count);
  return result;
}

DegreeSteps DegreeSteps::envelope(const DegreeSteps& a, const DegreeSteps& b) {
  DegreeSteps result;
  std::size_t i = 0;
  std::size_t j = 0;
  double rank = 0;
  while (i < a.steps_.size() || j < b.steps_.size()) {
    const double end_a = i < a.steps_.size() ? a.steps_[i].end : kNoDegree;
    const double end_b = j < b.steps_.size() ? b.steps_[j].end : kNoDegree;
    const double degree = std::max(end_a < kNoDegree ? a.steps_[i].degree : 0,
                                   end_b < kNoDegree ? b.steps_[j].degree : 0);
    const double end = std::min(end_a, end_b);
    if (end > rank) result.append(degree, end - rank);
    rank = end;
    if (end_a == end) ++i;
    if (end_b == end) ++j;
  }
  return compressed(result);
}

double DegreeSteps::prefix_sum(double rows) const {
  const auto it = std::ranges::lower_bound(steps_, rows, {}, &Step::end);
  if (it == steps_.end()) return steps_.empty() ? 0 : steps_.back().sum_end;
  return it->sum_end - (it->end - rows) * it->degree;
}

double DegreeSteps::sum(double rows, double cap) const {
  // Rows of degree above the cap come first.
  const auto it =
      std::ranges::partition_point(steps_, [&](const Step& s) { return s.degree > cap; });
  const double clipped = it == steps_.begin() ? 0 : std::prev(it)->end;
  if (rows <= clipped) return rows * cap;
  return clipped * cap + prefix_sum(rows) - prefix_sum(clipped);
}

double DegreeSteps::least_cap(double rows, double pairs) const {
  const double whole = prefix_sum(rows);
  if (pairs <= 0) return 0;
  if (whole < pairs) return kNoDegree;
  // With cap = degree of a step, all rows before its end count as clipped; sums fall with it.
  const auto clipped_sum = [&](const Step& step) {
    if (rows <= step.end) return rows * step.degree;
    return step.degree * step.end + whole - step.sum_end;
  };
  const auto it = std::ranges::partition_point(
      steps_, [&](const Step& step) { return clipped_sum(step) >= pairs; });
  // Between this step's degree and the next one's the sum is linear in the cap. In front of the
  // first step, rows lie inside it.
  const Step& step = it == steps_.begin() ? *it : *std::prev(it);
  if (rows <= step.end) return pairs / rows;
  return (pairs - whole + step.sum_end) / step.end;
}

double DegreeSteps::least_rows(double cap, double pairs) const {
  if (pairs <= 0) return 0;
  const auto above =
      std::ranges::partition_point(steps_, [&](const Step& s) { return s.degree > cap; });
  const Step clipped = above == steps_.begin() ? Step{} : *std::prev(above);
  if (cap * clipped.end >= pairs) return pairs / cap;
  const double wanted = pairs - cap * clipped.end + clipped.sum_end;  // as a prefix sum
  const auto it = std::ranges::lower_bound(steps_, wanted, {}, &Step::sum_end);
  if (it == steps_.end()) return kNoDegree;
  return it->end - (it->sum_end - wanted) / it->degree;
}

}  // namespace contextile
