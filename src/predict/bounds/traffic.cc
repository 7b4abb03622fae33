#include "predict/bounds/traffic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <span>
#include <utility>

#include "predict/bounds/configuration_lp.h"

namespace contextile {
namespace {

// The number of cells at first, and the width at which cells are no longer split, as a share of the
// most tokens that a part can own.
constexpr int kFirstCells = 4;
constexpr double kNarrowCell = 1.0 / 128;
constexpr std::size_t kMostCells = 30;
constexpr double kCurveReach = 1.5;  // times the work requested, if curves were too short
// More kinds of documents than this are joined with similar ones.
constexpr std::size_t kMostKinds = 64;
constexpr double kTrafficRounding = 1e-6;

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

// Joins two kinds into one whose limits hold for the documents of both.
void join(DocumentKind& kind, const DocumentKind& other) {
  kind.tokens = std::max(kind.tokens, other.tokens);
  kind.pairs = std::min(kind.pairs, other.pairs);
  kind.future_pairs = std::max(kind.future_pairs, other.future_pairs);
  kind.best_share = std::max(kind.best_share, other.best_share);
  kind.count += other.count;
  // Unless both have degrees, only the other limits hold for both.
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

WorkCurve TrafficBound::curve_of(const Kind& kind, double owned, double most_pairs) const {
  return {Isoperimetry(kind.document, bytes_.row, bytes_.key), owned, rates_.head_groups,
          most_pairs};
}

void TrafficBound::extend_curves(Kind& kind, double most_pairs) const {
  if (kind.cells.empty()) {
    const double most_owned = std::min(level_.owned_tokens, kind.document.tokens);
    kind.cells.push_back({0, 0, curve_of(kind, 0, most_pairs)});
    for (int i = 0; i < kFirstCells; ++i) {
      const double owned = most_owned * (i + 1) / kFirstCells;
      kind.cells.push_back(
          {most_owned * i / kFirstCells, owned, curve_of(kind, owned, most_pairs)});
    }
    return;
  }
  for (OwnedCell& cell : kind.cells) cell.curve = curve_of(kind, cell.owned, most_pairs);
}

double TrafficBound::refined_bytes(Kind& kind, double most_work, double most_bytes) const {
  const double work = rates_.head_groups * kind.document.pairs;
  const double narrow = kNarrowCell * std::min(level_.owned_tokens, kind.document.tokens);
  std::vector<Configuration> configurations;
  std::vector<std::size_t> cell_of;  // configuration
  while (true) {
    configurations.clear();
    cell_of.clear();
    for (std::size_t c = 0; c < kind.cells.size(); ++c) {
      const OwnedCell& cell = kind.cells[c];
      cell.curve.append_configurations(most_work, most_bytes, cell.least_owned, configurations);
      cell_of.resize(configurations.size(), c);
    }
    const ConfigurationBound bound =
        configuration_lp_bound(configurations, level_.parts, work, kind.document.tokens);
    std::vector<std::size_t> wide;
    for (const std::size_t used : bound.used) {
      const OwnedCell& cell = kind.cells[cell_of[used]];
      if (cell.owned - cell.least_owned > narrow) wide.push_back(cell_of[used]);
    }
    if (wide.empty() || kind.cells.size() >= kMostCells) {
      double excess_bytes = 0;
      for (const OwnedCell& cell : kind.cells) {
        excess_bytes = std::max(excess_bytes, cell.curve.excess_bytes());
      }
      return std::max(0.0, bound.bytes - level_.parts * excess_bytes);
    }
    std::ranges::sort(wide);
    wide.erase(std::unique(wide.begin(), wide.end()), wide.end());
    for (const std::size_t c : wide) {
      const double middle = 0.5 * (kind.cells[c].least_owned + kind.cells[c].owned);
      kind.cells.push_back({kind.cells[c].least_owned, middle,
                            curve_of(kind, middle, kind.cells[c].curve.most_pairs())});
      kind.cells[c].least_owned = middle;
    }
  }
}

double TrafficBound::least_bytes(Kind& kind, double time_us) const {
  const double most_work = pairs_of_part(kind.document.best_share, time_us);
  const double work = rates_.head_groups * kind.document.pairs;
  if (kind.document.tokens <= level_.owned_tokens && work <= most_work) return 0;
  const double asked = std::min(most_work, work);
  if (kind.cells.empty()) {
    extend_curves(kind, asked);
  } else if (kind.cells.front().curve.most_pairs() < asked) {
    extend_curves(kind, std::min(kCurveReach * asked, work));
  }
  // A part moves at most this, in and out together.
  const double most_bytes = 2 * level_.part_bytes_per_us * std::max(0.0, time_us - level_.setup_us);
  return kind.document.count * refined_bytes(kind, asked, most_bytes);
}

double TrafficBound::least_bytes(double time_us) {
  double bytes = 0;
  for (Kind& kind : kinds_) bytes += least_bytes(kind, time_us);
  return bytes * (1 - kTrafficRounding);
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
