#include "bounds/traffic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "bounds/configuration_lp.h"
#include "bounds/min_plus_convolution.h"

namespace contextile {
namespace {

// Owned tokens are told apart at these shares of the most a part can own: finer near the end, where
// equal parts are.
constexpr double kOwnedShares[] = {0, 0.25, 0.5, 0.7, 0.82, 0.9, 0.95, 0.98, 1};
constexpr int kCurvePoints = 120;
constexpr double kCurveRatio = 1.06;  // of the pairs of two points
constexpr std::int64_t kShareSteps = 96;
// With more head groups in one part sums are bounded, not found.
constexpr std::int64_t kMostGroups = 2 * kShareSteps;
// More kinds of documents than this are joined with similar ones.
constexpr std::size_t kMostKinds = 64;
constexpr double kRounding = 1e-6;

std::span<const DegreeRun> runs_of(const std::vector<DegreeRun>& runs, std::size_t first,
                                   std::size_t end) {
  return std::span(runs).subspan(first, end - first);
}

DocumentKind document_of(const MaskComponents& all, std::size_t index, const KernelPrice& price) {
  const MaskComponent& component = all.components[index];
  DocumentKind kind;
  kind.tokens = static_cast<double>(component.tokens.size());
  kind.pairs = static_cast<double>(component.pairs);
  kind.future_pairs = static_cast<double>(component.future_pairs);
  kind.best_share = price.best_share(component);
  const bool causal =
      component.future_pairs == 0 && kind.pairs >= 0.5 * kind.tokens * (kind.tokens + 1);
  kind.degrees_matter = !causal && kind.pairs < kind.tokens * kind.tokens;
  if (kind.degrees_matter) {
    const bool is_last = index + 1 == all.components.size();
    const MaskComponent next = is_last ? MaskComponent{} : all.components[index + 1];
    kind.rows = DegreeSteps(runs_of(all.row_runs, component.first_row_run,
                                    is_last ? all.row_runs.size() : next.first_row_run));
    kind.columns = DegreeSteps(runs_of(all.column_runs, component.first_column_run,
                                       is_last ? all.column_runs.size() : next.first_column_run));
  }
  return kind;
}

// What holds for the documents of both.
void join(DocumentKind& kind, const DocumentKind& other) {
  kind.tokens = std::max(kind.tokens, other.tokens);
  kind.pairs = std::min(kind.pairs, other.pairs);
  kind.future_pairs = std::max(kind.future_pairs, other.future_pairs);
  kind.best_share = std::max(kind.best_share, other.best_share);
  kind.count += other.count;
  // Without degrees in one of them only the rest holds for both.
  kind.degrees_matter = kind.degrees_matter && other.degrees_matter;
  if (!kind.degrees_matter) return;
  kind.rows = DegreeSteps::envelope(kind.rows, other.rows);
  kind.columns = DegreeSteps::envelope(kind.columns, other.columns);
}

// Documents of one kind agree in their lengths and pairs, or in the logarithms of both, rounded to
// 1/resolution of an octave.
using Likeness = std::array<std::int64_t, 3>;
Likeness likeness_of(const MaskComponent& component, std::int32_t resolution) {
  if (resolution == 0) {
    return {component.tokens.size(), component.pairs, component.future_pairs};
  }
  const auto rounded = [&](std::int64_t number) {
    return static_cast<std::int64_t>(
        std::floor(resolution * std::log2(static_cast<double>(1 + number))));
  };
  return {rounded(component.tokens.size()), rounded(component.pairs),
          component.future_pairs == 0 ? 0 : 1};
}

std::map<Likeness, std::vector<std::size_t>> alike(const std::vector<MaskComponent>& components,
                                                   const std::vector<std::size_t>& chosen) {
  for (const std::int32_t resolution : {0, 64, 32, 16, 8, 4, 2, 1}) {
    std::map<Likeness, std::vector<std::size_t>> groups;
    for (const std::size_t index : chosen) {
      groups[likeness_of(components[index], resolution)].push_back(index);
    }
    if (groups.size() <= kMostKinds || resolution == 1) return groups;
  }
  return {};
}

}  // namespace

TrafficBound::TrafficBound(const MaskComponents& components, const KernelPrice& price,
                           const PartLevel& level, const WorkRates& rates, const TokenBytes& bytes,
                           double least_us)
    : level_(level), rates_(rates), bytes_(bytes), least_us_(least_us) {
  add_kinds(components, price);
}

// Documents that one part can own and compute move nothing: they are left out.
void TrafficBound::add_kinds(const MaskComponents& components, const KernelPrice& price) {
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < components.components.size(); ++i) {
    const MaskComponent& component = components.components[i];
    const double work = static_cast<double>(component.pairs) * rates_.head_groups;
    if (static_cast<double>(component.tokens.size()) > level_.owned_tokens ||
        work > pairs_of_part(price.best_share(component), least_us_)) {
      chosen.push_back(i);
    }
  }
  for (const auto& [likeness, members] : alike(components.components, chosen)) {
    Kind& kind = kinds_.emplace_back();
    kind.document = document_of(components, members.front(), price);
    for (const std::size_t member : std::span(members).subspan(1)) {
      join(kind.document, document_of(components, member, price));
    }
  }
}

// Counts pairs of all head groups.
double TrafficBound::pairs_of_part(double best_share, double time_us) const {
  return level_.devices_per_part * std::max(0.0, time_us - rates_.call_us) * rates_.pairs_per_us *
         best_share;
}

// Points are in growing distances from the free pairs. Each has the bytes of the point before it:
// between two points the line stays below those of the first.
void TrafficBound::make_curves(Kind& kind, double most_pairs) const {
  const Isoperimetry isoperimetry(kind.document, bytes_.row, bytes_.key);
  const double most_owned = std::min(level_.owned_tokens, kind.document.tokens);
  kind.curves_to_pairs = most_pairs;
  kind.curves.clear();
  double least_owned = 0;
  for (const double share : kOwnedShares) {
    TrafficCurve& curve = kind.curves.emplace_back();
    curve.owned = share * most_owned;
    curve.least_owned = least_owned;
    least_owned = curve.owned;
    const double free = std::min(isoperimetry.free_pairs(curve.owned), kind.document.pairs);
    curve.pairs.push_back(free);
    curve.bytes.push_back(0);
    double before = 0;
    for (int i = kCurvePoints; i >= 0 && free < most_pairs; --i) {
      const double pairs = free + (most_pairs - free) * std::pow(kCurveRatio, -i);
      curve.pairs.push_back(pairs);
      curve.bytes.push_back(before);
      const double bytes = isoperimetry.least_bytes(pairs, curve.owned);
      if (std::isfinite(bytes)) before = std::max(before, bytes);
    }
  }
}

double TrafficBound::least_bytes(Kind& kind, double time_us) const {
  const double groups = rates_.head_groups;
  const double most_work = pairs_of_part(kind.document.best_share, time_us);
  const double work = groups * kind.document.pairs;
  if (kind.document.tokens <= level_.owned_tokens && work <= most_work) return 0;
  if (std::min(most_work, kind.document.pairs) > kind.curves_to_pairs) {
    make_curves(kind, std::min(2 * most_work, kind.document.pairs));
  }
  // A part moves at most this, in and out together.
  const double most_bytes = 2 * level_.part_bytes_per_us * std::max(0.0, time_us - level_.setup_us);
  std::vector<Configuration> configurations;
  for (const TrafficCurve& curve : kind.curves) {
    const double free = curve.pairs.front();
    const double beyond = std::min(most_work, work) - groups * free;
    if (beyond <= 0) {
      configurations.push_back({std::min(most_work, groups * free), curve.least_owned, 0});
      continue;
    }
    // Steps end where a head group does, if a part can do a whole one.
    const double of_group = kind.document.pairs - free;
    const bool are_many = of_group * static_cast<double>(kMostGroups) < beyond;
    double step = are_many ? of_group / static_cast<double>(kShareSteps)
                           : beyond / static_cast<double>(kShareSteps);
    std::int64_t group_steps = kShareSteps;
    if (of_group <= beyond && !are_many) {
      group_steps = std::max<std::int64_t>(1, std::llround(of_group / step));
      step = of_group / static_cast<double>(group_steps);
    }
    std::vector<double> distance;
    for (const double pairs : curve.pairs) distance.push_back(pairs - free);
    const std::vector<double> values =
        sample_below({.x = distance, .y = curve.bytes}, step, group_steps);
    const std::vector<double> sums =
        are_many ? convex_power(values, groups)
                 : min_plus_power(values, static_cast<std::int32_t>(groups),
                                  static_cast<std::int64_t>(beyond / step) + 1);
    append_configurations(sums, groups * free, are_many ? groups * step : step, curve.least_owned,
                          most_work, most_bytes, configurations);
  }
  return kind.document.count *
         configuration_lp_bound(configurations, level_.parts, work, kind.document.tokens);
}

double TrafficBound::least_bytes(double time_us) {
  double bytes = 0;
  for (Kind& kind : kinds_) bytes += least_bytes(kind, time_us);
  return bytes * (1 - kRounding);
}

double TrafficBound::least_us() {
  constexpr double kClose = 1.01;
  double bytes = least_bytes(least_us_);
  if (bytes < 1) return 0;
  // With fewer bytes than V(t), for t before the end, no plan is done before this.
  double high = level_.setup_us + bytes / level_.bytes_per_us;
  if (high <= least_us_) return high;
  double low = least_us_;
  while (high > kClose * low) {
    const double middle = std::sqrt(low * high);
    bytes = least_bytes(middle);
    if (bytes >= 1 && bytes > level_.bytes_per_us * (middle - level_.setup_us)) {
      low = middle;
      high = std::min(high, level_.setup_us + bytes / level_.bytes_per_us);
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace contextile
