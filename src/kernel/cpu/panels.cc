#include "kernel/cpu/panels.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace contextile {
namespace {

// Bound on rows and keys: indices and their differences fit 32-bit lanes with room to spare.
constexpr std::int64_t kMostRows = std::int64_t{1} << 29;

LaneBand lane_band(const LocalBand& band) {
  const auto narrow = [](std::int64_t value) {
    return static_cast<std::int32_t>(std::clamp(value, -kMostRows, kMostRows));
  };
  return {narrow(band.q.begin), narrow(band.q.end), narrow(band.k.begin),
          narrow(band.k.end),   narrow(band.lo),    narrow(band.hi)};
}

// Returns the band's part of a panel: the keys that any token meets, and those that every token of
// the panel meets.
PanelStep clip_to_panel(const LaneBand& band, Range tokens) {
  const auto begin = static_cast<std::int32_t>(tokens.begin);
  const auto end = static_cast<std::int32_t>(tokens.end);
  PanelStep step;
  step.begin = std::max(band.k_begin, std::max(begin, band.q_begin) + band.lo);
  step.end = std::min(band.k_end, std::min(end, band.q_end) + band.hi);
  if (band.q_begin > begin || band.q_end < end) return step;
  step.full_begin = std::max(band.k_begin, end - 1 + band.lo);
  step.full_end = std::min(band.k_end, begin + band.hi + 1);
  if (step.full_begin >= step.full_end) step.full_begin = step.full_end = 0;
  return step;
}

bool has_full_part(const PanelStep& step) { return step.full_begin < step.full_end; }

// Joins `next` (which begins no earlier) to `step` if they touch or overlap and their full parts
// are one range.
bool join(PanelStep& step, const PanelStep& next) {
  if (next.begin > step.end) return false;
  if (has_full_part(step) && has_full_part(next)) {
    if (step.full_end != next.full_begin) return false;  // disjoint bands never overlap
    step.full_end = next.full_end;
  } else if (has_full_part(next)) {
    step.full_begin = next.full_begin;
    step.full_end = next.full_end;
  }
  step.end = std::max(step.end, next.end);
  step.num_bands += next.num_bands;
  return true;
}

}  // namespace

PanelGrid::PanelGrid(std::int64_t num_rows, std::int32_t lanes, std::int32_t most_vectors)
    : num_rows_(num_rows), lanes_(lanes) {
  const std::int64_t vectors = (num_rows + lanes - 1) / lanes;
  if (vectors == 1 || most_vectors == 1) {
    num_narrow_ = vectors;
    narrow_vectors_ = 1;
    return;
  }
  // Solves 3·wide + 2·narrow = vectors with as few narrow panels as possible.
  num_narrow_ = (kMaxPanelVectors - vectors % kMaxPanelVectors) % kMaxPanelVectors;
  num_wide_ = (vectors - 2 * num_narrow_) / kMaxPanelVectors;
}

Panel PanelGrid::panel(std::int64_t index) const {
  const std::int64_t wide = std::min(index, num_wide_);
  Panel panel;
  panel.vectors = index < num_wide_ ? kMaxPanelVectors : narrow_vectors_;
  panel.first_row = (wide * kMaxPanelVectors + (index - wide) * narrow_vectors_) * lanes_;
  panel.num_rows = static_cast<std::int32_t>(
      std::min<std::int64_t>(panel.vectors * lanes_, num_rows_ - panel.first_row));
  return panel;
}

std::int64_t PanelGrid::panel_of(std::int64_t row) const {
  const std::int64_t vector = row / lanes_;
  if (vector < num_wide_ * kMaxPanelVectors) return vector / kMaxPanelVectors;
  return num_wide_ + (vector - num_wide_ * kMaxPanelVectors) / narrow_vectors_;
}

PanelBands::PanelBands(std::span<const LocalBand> bands, std::int64_t num_rows,
                       std::int64_t num_keys, std::int32_t heads_per_kv, std::int32_t lanes,
                       std::int32_t most_vectors)
    : heads_per_kv_(heads_per_kv), lanes_(lanes) {
  CONTEXTILE_CHECK(num_rows < kMostRows && num_keys < kMostRows,
                   "tile: expected fewer than 2^29 rows and keys, found {} and {}", num_rows,
                   num_keys);
  const PanelGrid grid(num_rows * heads_per_kv, lanes, most_vectors);
  const auto num_panels = static_cast<std::size_t>(grid.num_panels());
  // Sorts the bands by panel, in listed order, by counting.
  std::vector<std::pair<std::size_t, std::size_t>> panels_of_band;
  std::vector<std::size_t> first(num_panels + 1);
  for (const LocalBand& wide : bands) {
    const Band band = clip(wide, {0, num_rows}, {0, num_keys});
    if (band.q.empty()) continue;
    bands_.push_back(lane_band(band));
    const auto begin = static_cast<std::size_t>(grid.panel_of(band.q.begin * heads_per_kv));
    const auto end = static_cast<std::size_t>(grid.panel_of(band.q.end * heads_per_kv - 1)) + 1;
    panels_of_band.emplace_back(begin, end);
    for (std::size_t p = begin; p < end; ++p) ++first[p + 1];
  }
  for (std::size_t p = 0; p < num_panels; ++p) first[p + 1] += first[p];
  std::vector<std::uint32_t> meeting(first.back());
  std::vector<std::size_t> next(first.begin(), first.end() - 1);
  for (std::size_t b = 0; b < bands_.size(); ++b) {
    for (std::size_t p = panels_of_band[b].first; p < panels_of_band[b].second; ++p) {
      meeting[next[p]++] = static_cast<std::uint32_t>(b);
    }
  }
  // Cuts each panel's bands into steps.
  for (std::size_t p = 0; p < num_panels; ++p) {
    const Panel panel = grid.panel(static_cast<std::int64_t>(p));
    const std::int64_t last_row = panel.first_row + panel.num_rows - 1;
    first_step_.push_back(steps_.size());
    add_panel({panel.first_row / heads_per_kv, last_row / heads_per_kv + 1},
              std::span(meeting).subspan(first[p], first[p + 1] - first[p]));
  }
  first_step_.push_back(steps_.size());
}

void PanelBands::add_panel(Range tokens, std::span<const std::uint32_t> meeting) {
  std::vector<std::pair<PanelStep, std::uint32_t>> parts;
  for (const std::uint32_t b : meeting) {
    PanelStep part = clip_to_panel(bands_[b], tokens);
    part.num_bands = 1;
    if (part.begin < part.end) parts.emplace_back(part, b);
  }
  std::stable_sort(parts.begin(), parts.end(),
                   [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
  const std::size_t first_of_panel = steps_.size();
  for (auto& [part, band] : parts) {
    part.first_band = static_cast<std::uint32_t>(band_of_step_.size());
    band_of_step_.push_back(band);
    if (steps_.size() > first_of_panel && join(steps_.back(), part)) continue;
    steps_.push_back(part);
  }
}

std::int64_t PanelBands::size_bytes() const {
  return static_cast<std::int64_t>(
      bands_.size() * sizeof(LaneBand) + first_step_.size() * sizeof(std::size_t) +
      steps_.size() * sizeof(PanelStep) + band_of_step_.size() * sizeof(std::uint32_t));
}

}  // namespace contextile
