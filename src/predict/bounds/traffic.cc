#include "predict/bounds/traffic.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
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
// Limits for cases of the largest part, which need more cells. Curves take long if degrees matter.
constexpr std::size_t kMostCellsOfCases = 80;
constexpr double kNarrowCellByDegrees = 1.0 / 32;
constexpr std::size_t kMostCellsByDegrees = 40;
constexpr double kCurveReach = 1.5;  // times the work requested, if curves were too short
// More kinds of documents than this are joined with similar ones.
constexpr std::size_t kMostKinds = 64;
constexpr double kTrafficRounding = 1e-6;
// Steps of the early tokens of a part.
constexpr int kEarlySteps = 3;

std::span<const DegreeRun> runs_of(const std::vector<DegreeRun>& runs, std::size_t first,
                                   std::size_t end) {
  return std::span(runs).subspan(first, end - first);
}

// Every one of these rows attends every one of these keys, and no row is a key.
DocumentKind biclique_of(const MaskComponent& component) {
  DocumentKind kind;
  kind.tokens = static_cast<double>(component.tokens.size());
  kind.late_tokens = static_cast<double>(component.biclique_rows);
  kind.early_tokens = static_cast<double>(component.biclique_keys);
  kind.keys_are_early = true;
  kind.pairs = kind.late_tokens * kind.early_tokens;
  return kind;
}

DocumentKind document_of(const MaskComponents& all, std::size_t index, const KernelPrice& price,
                         CountedPairs counted) {
  const MaskComponent& component = all.components[index];
  if (counted == CountedPairs::kBiclique) {
    DocumentKind kind = biclique_of(component);
    kind.best_share = price.best_share(component);
    return kind;
  }
  DocumentKind kind;
  kind.tokens = static_cast<double>(component.tokens.size());
  kind.late_tokens = kind.tokens;
  kind.pairs = static_cast<double>(component.pairs);
  kind.future_pairs = static_cast<double>(component.future_pairs);
  kind.best_share = price.best_share(component);
  kind.max_degree = static_cast<double>(component.max_degree);
  const bool causal =
      component.future_pairs == 0 && kind.pairs >= 0.5 * kind.tokens * (kind.tokens + 1);
  kind.degrees_matter = !causal && kind.pairs < kind.tokens * kind.tokens;
  if (kind.degrees_matter) {
    const bool is_last = index + 1 == all.components.size();
    const MaskComponent next = is_last ? MaskComponent{} : all.components[index + 1];
    const auto rows = runs_of(all.row_runs, component.first_row_run,
                              is_last ? all.row_runs.size() : next.first_row_run);
    kind.rows = DegreeSteps(rows);
    kind.columns = DegreeSteps(runs_of(all.column_runs, component.first_column_run,
                                       is_last ? all.column_runs.size() : next.first_column_run));
  }
  return kind;
}

// Joins two kinds into one whose limits hold for the documents of both.
void join(DocumentKind& kind, const DocumentKind& other) {
  kind.tokens = std::max(kind.tokens, other.tokens);
  kind.late_tokens = std::max(kind.late_tokens, other.late_tokens);
  kind.early_tokens = std::max(kind.early_tokens, other.early_tokens);
  kind.pairs = std::min(kind.pairs, other.pairs);
  kind.future_pairs = std::max(kind.future_pairs, other.future_pairs);
  kind.best_share = std::max(kind.best_share, other.best_share);
  kind.max_degree = std::max(kind.max_degree, other.max_degree);
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
                           double least_us, CountedPairs counted)
    : level_(level), rates_(rates), bytes_(bytes), least_us_(least_us) {
  add_kinds(components, price, counted);
}

// Documents that one part can own and compute move nothing: they are left out.
void TrafficBound::add_kinds(const MaskComponents& components, const KernelPrice& price,
                             CountedPairs counted) {
  std::vector<std::size_t> chosen;
  for (std::size_t i = 0; i < components.components.size(); ++i) {
    const MaskComponent& component = components.components[i];
    if (counted == CountedPairs::kBiclique && component.biclique_keys == 0) continue;
    const double work = static_cast<double>(component.pairs) * rates_.head_groups;
    if (static_cast<double>(component.tokens.size()) > level_.owned_tokens ||
        work > pairs_of_part(price.best_share(component), least_us_)) {
      chosen.push_back(i);
    }
  }
  for (const auto& [likeness, members] : alike(components.components, chosen)) {
    Kind& kind = kinds_.emplace_back();
    kind.document = document_of(components, members.front(), price, counted);
    for (const std::size_t member : std::span(members).subspan(1)) {
      join(kind.document, document_of(components, member, price, counted));
    }
  }
}

// Counts pairs of all head groups.
double TrafficBound::pairs_of_part(double best_share, double time_us) const {
  return level_.devices_per_part * std::max(0.0, time_us - rates_.call_us) * rates_.pairs_per_us *
         best_share;
}

PartLimits TrafficBound::limits_of_part(double best_share, double time_us) const {
  PartLimits limits;
  limits.work = pairs_of_part(best_share, time_us);
  for (const double lost_us : bytes_.part_lost_us) {
    limits.bytes += level_.part_bytes_per_us * std::max(0.0, time_us - lost_us);
  }
  limits.work_in_calls = std::numeric_limits<double>::infinity();
  if (!level_.launch_us) return limits;
  const double pairs_per_us = rates_.pairs_per_us * best_share;
  const double launch_us = *level_.launch_us;
  const double call_us = rates_.call_us;
  const auto pairs_after = [&](double us) { return (time_us - us) * pairs_per_us; };
  limits.work_in_calls =
      pairs_after(std::min(level_.setup_us + 2 * call_us, launch_us + 3 * call_us));
  limits.work_in_two_calls = pairs_after(launch_us + 2 * call_us);
  limits.work_and_bytes = pairs_after(level_.setup_us + call_us);
  limits.pairs_per_byte = pairs_per_us / level_.part_bytes_per_us;
  return limits;
}

WorkCurve TrafficBound::curve_of(const Kind& kind, double owned, double most_pairs) const {
  return {Isoperimetry(kind.document, bytes_.row, bytes_.key), owned, rates_.head_groups,
          most_pairs};
}

double TrafficBound::most_owned(const Kind& kind) const {
  return std::min(level_.owned_tokens, kind.document.late_tokens);
}

double TrafficBound::most_large(const Kind& kind) const {
  return std::floor(kind.document.late_tokens / most_owned(kind));
}

double TrafficBound::large_tokens(const Kind& kind) const {
  return kind.document.late_tokens / (most_large(kind) + 1);
}

void TrafficBound::extend_curves(Kind& kind, double most_pairs) const {
  if (!kind.cells.empty()) {
    for (OwnedCell& cell : kind.cells) cell.curve = curve_of(kind, cell.owned, most_pairs);
    return;
  }
  kind.cells.push_back({0, 0, curve_of(kind, 0, most_pairs)});
  const double most = most_owned(kind);
  const double large = std::min(most, large_tokens(kind));
  for (int i = 0; i < kFirstCells; ++i) {
    const double least = kind.cells.back().owned;
    const double owned = i < kFirstCells / 2 ? large * (i + 1) / (kFirstCells / 2)
                                             : large + (most - large) * (i + 1 - kFirstCells / 2) /
                                                           (kFirstCells / 2);
    if (owned <= least) continue;
    kind.cells.push_back({least, owned, curve_of(kind, owned, most_pairs)});
  }
}

// Each early token that a part owns spares the bytes of a key, until nothing moves. So a part is a
// mixture of owning the fewest that its limits allow, and the most. The fewest are rounded down to
// a step, and the limits count the step above.
void TrafficBound::append_configurations(const Kind& kind, const OwnedCell& cell,
                                         const PartLimits& limits,
                                         std::vector<Configuration>& configurations) const {
  const double most =
      std::clamp(level_.owned_tokens - cell.least_owned, 0.0, kind.document.early_tokens);
  OwnedShare share = {.tokens = cell.least_owned, .token_bytes = rates_.head_groups * bytes_.key};
  const auto append = [&](double early, double most_early) {
    share.early = early;
    share.most_early = most_early;
    share.most_free = rates_.head_groups * cell.owned * most_early;
    cell.curve.append_configurations(limits, share, configurations);
  };
  const int steps = most > 0 ? kEarlySteps : 0;
  for (int i = 0; i < steps; ++i) append(most * i / steps, most * (i + 1) / steps);
  share.or_fewer = true;
  append(most, most);
}

struct TrafficBound::Search {
  // The plans whose largest part is in this cell, or in no large one. At least `bytes` are moved.
  struct Case {
    std::optional<std::size_t> largest;
    double bytes = 0;
  };

  PartLimits limits;
  ConfigurationSums sums;
  double large = 0;
  std::vector<std::vector<Configuration>> configurations = {};  // by cell
  std::vector<Case> cases = {};
};

// With at most one large part its cell is given, and how much the others may own.
ConfigurationBound TrafficBound::solved(const Kind& kind, const Search& search,
                                        std::optional<std::size_t> largest) const {
  const bool one_is_large = search.sums.most_large <= 1;
  double rest = kind.document.late_tokens;
  if (largest) rest -= kind.cells[*largest].least_owned;
  std::vector<Configuration> configurations;
  std::vector<std::size_t> cell_of;  // configuration
  for (std::size_t c = 0; c < kind.cells.size(); ++c) {
    const OwnedCell& cell = kind.cells[c];
    const bool is_large = cell.owned > search.large && cell.least_owned >= search.large;
    const bool counts = c == largest || (!is_large && cell.least_owned < rest);
    if (one_is_large && !counts) continue;
    const std::size_t first = configurations.size();
    const std::vector<Configuration>& of_cell = search.configurations[c];
    configurations.insert(configurations.end(), of_cell.begin(), of_cell.end());
    for (std::size_t i = first; i < configurations.size(); ++i) {
      configurations[i].is_large = is_large;
    }
    cell_of.resize(configurations.size(), c);
  }
  ConfigurationBound bound = configuration_lp_bound(configurations, search.sums);
  for (std::size_t& used : bound.used) used = cell_of[used];
  return bound;
}

// Splits cells in the middle. A case of such a cell becomes two.
void TrafficBound::split(Kind& kind, const std::vector<std::size_t>& cells, Search& search) const {
  for (const std::size_t c : cells) {
    const double middle = 0.5 * (kind.cells[c].least_owned + kind.cells[c].owned);
    kind.cells.push_back({kind.cells[c].least_owned, middle,
                          curve_of(kind, middle, kind.cells[c].curve.most_pairs())});
    kind.cells[c].least_owned = middle;
    search.configurations.resize(kind.cells.size());
    for (const std::size_t changed : {c, kind.cells.size() - 1}) {
      search.configurations[changed].clear();
      append_configurations(kind, kind.cells[changed], search.limits,
                            search.configurations[changed]);
    }
    const auto known = std::ranges::find(search.cases, std::optional(c), &Search::Case::largest);
    if (known != search.cases.end()) {
      search.cases.push_back({kind.cells.size() - 1, known->bytes});
    }
  }
}

double TrafficBound::refined_bytes(Kind& kind, const PartLimits& limits) const {
  Search search = {.limits = limits,
                   .sums = {.parts = level_.parts,
                            .work = rates_.head_groups * kind.document.pairs,
                            .tokens = kind.document.late_tokens,
                            .most_large = most_large(kind),
                            .early = kind.document.early_tokens},
                   .large = large_tokens(kind),
                   .cases = {{}}};
  double excess_bytes = 0;
  for (std::size_t c = 0; c < kind.cells.size(); ++c) {
    const OwnedCell& cell = kind.cells[c];
    append_configurations(kind, cell, limits, search.configurations.emplace_back());
    const bool is_large = cell.owned > search.large && cell.least_owned >= search.large;
    if (is_large && search.sums.most_large <= 1) search.cases.push_back({c, 0});
  }
  double narrow = kNarrowCell * most_owned(kind);
  std::size_t most_cells = kMostCells;
  if (search.cases.size() > 1) {
    most_cells = kMostCellsOfCases;
    if (kind.document.degrees_matter) {
      most_cells = kMostCellsByDegrees;
      narrow = kNarrowCellByDegrees * most_owned(kind);
    }
  }
  while (true) {
    // Solves the case that may move least, until it does.
    Search::Case* least = &*std::ranges::min_element(search.cases, {}, &Search::Case::bytes);
    const ConfigurationBound bound = solved(kind, search, least->largest);
    least->bytes = std::max(least->bytes, bound.bytes);
    const double bytes = least->bytes;
    if (std::ranges::any_of(search.cases, [&](const auto& one) { return one.bytes < bytes; })) {
      continue;
    }
    std::vector<std::size_t> wide;
    for (const std::size_t c : bound.used) {
      if (kind.cells[c].owned - kind.cells[c].least_owned > narrow) wide.push_back(c);
    }
    if (wide.empty() || kind.cells.size() >= most_cells) {
      for (const OwnedCell& cell : kind.cells) {
        excess_bytes = std::max(excess_bytes, cell.curve.excess_bytes());
      }
      return std::max(0.0, bytes - level_.parts * excess_bytes);
    }
    std::ranges::sort(wide);
    wide.erase(std::unique(wide.begin(), wide.end()), wide.end());
    split(kind, wide, search);
  }
}

double TrafficBound::least_bytes(Kind& kind, double time_us) const {
  PartLimits limits = limits_of_part(kind.document.best_share, time_us);
  const double work = rates_.head_groups * kind.document.pairs;
  if (kind.document.tokens <= level_.owned_tokens && work <= limits.work) return 0;
  limits.work = std::min(limits.work, work);
  if (kind.cells.empty()) {
    extend_curves(kind, limits.work);
  } else if (kind.cells.front().curve.most_pairs() < limits.work) {
    extend_curves(kind, std::min(kCurveReach * limits.work, work));
  }
  return kind.document.count * refined_bytes(kind, limits);
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
  double high = bytes_.lost_us + bytes / level_.bytes_per_us;
  if (high <= least_us_) return high;
  double low = least_us_;
  while (high > kClose * low) {
    const double middle = std::sqrt(low * high);
    bytes = least_bytes(middle);
    if (bytes >= 1 && bytes > level_.bytes_per_us * (middle - bytes_.lost_us)) {
      low = middle;
      high = std::min(high, bytes_.lost_us + bytes / level_.bytes_per_us);
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace contextile
