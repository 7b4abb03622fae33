#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <set>

#include "base/check.h"
#include "contextile/mask.h"

namespace contextile {
namespace {

// Bounds as numbers that can be added to token indices without overflow.
std::int64_t finite(std::int64_t bound) { return std::clamp(bound, -kUnbounded, kUnbounded); }

// The pairs that two bands share. They form a band: both rectangles and both bounds apply.
Band shared_pairs(const Band& a, const Band& b) {
  Band shared = a;
  shared.lo = std::max(a.lo, b.lo);
  shared.hi = std::min(a.hi, b.hi);
  return clip(shared, b.q, b.k);
}

// Pairs (x, y) of [0, num_x) x [0, num_y) with y - x <= d.
std::int64_t pairs_up_to(std::int64_t d, std::int64_t num_x, std::int64_t num_y) {
  if (d <= -num_x) return 0;
  if (d >= num_y - 1) return num_x * num_y;
  // Column x holds min(x + d + 1, num_y) pairs from its first non-empty one on.
  const std::int64_t first = std::max<std::int64_t>(0, -d);
  const std::int64_t full = std::min(num_x, num_y - 1 - d);  // columns >= full hold num_y
  const std::int64_t growing = full - first;
  return growing * (first + full + 2 * d + 1) / 2 + (num_x - full) * num_y;
}

// Walks the bands in ascending query order with the intervals of the current row in an ordered set.
// Both edges of a tight band stay or move by one from row to row. So disjoint intervals keep their
// order, and the first two intervals to collide are neighbours before they do. Testing every two
// bands that become neighbours finds an overlap if there is one.
class OverlapSweep {
 public:
  explicit OverlapSweep(std::span<const Band> bands)
      : bands_(bands.begin(), bands.end()), active_(RowOrder{this}) {
    for (std::size_t b = 0; b < bands_.size(); ++b) {
      bands_[b] = clip(bands_[b], bands_[b].q, bands_[b].k);
      if (!bands_[b].q.empty()) by_begin_.push_back(b);
    }
    by_end_ = by_begin_;
    std::ranges::sort(by_begin_, {},
                      [&](std::size_t b) { return std::pair(bands_[b].q.begin, b); });
    std::ranges::sort(by_end_, {}, [&](std::size_t b) { return std::pair(bands_[b].q.end, b); });
  }

  std::optional<std::pair<std::size_t, std::size_t>> run() {
    for (const std::size_t band : by_begin_) {
      if (!remove_until(bands_[band].q.begin) || !insert(band)) return found_;
    }
    (void)remove_until(std::numeric_limits<std::int64_t>::max());
    return found_;
  }

 private:
  struct RowOrder {
    const OverlapSweep* sweep;
    bool operator()(std::size_t a, std::size_t b) const {
      return sweep->first_key(a) < sweep->first_key(b);
    }
  };

  std::int64_t first_key(std::size_t band) const {
    return std::max(bands_[band].k.begin, row_ + finite(bands_[band].lo));
  }

  bool disjoint(std::size_t a, std::size_t b) {
    if (shared_pairs(bands_[a], bands_[b]).q.empty()) return true;
    found_ = std::minmax(a, b);
    return false;
  }

  // Removes the bands that end by `row`, in the order of their last rows: the set is ordered only
  // up to the last row of each band in it.
  bool remove_until(std::int64_t row) {
    for (; next_end_ < by_end_.size() && bands_[by_end_[next_end_]].q.end <= row; ++next_end_) {
      row_ = bands_[by_end_[next_end_]].q.end - 1;
      if (!remove(by_end_[next_end_])) return false;
    }
    return true;
  }

  bool insert(std::size_t band) {
    row_ = bands_[band].q.begin;
    const auto after = active_.lower_bound(band);
    if (after != active_.end() && !disjoint(band, *after)) return false;
    if (after != active_.begin() && !disjoint(band, *std::prev(after))) return false;
    active_.insert(after, band);
    return true;
  }

  bool remove(std::size_t band) {
    const auto after = active_.erase(active_.find(band));
    if (after == active_.begin() || after == active_.end()) return true;
    return disjoint(*std::prev(after), *after);
  }

  std::vector<Band> bands_;            // tight
  std::vector<std::size_t> by_begin_;  // bands with a pair, by first row
  std::vector<std::size_t> by_end_;    // and by last row
  std::size_t next_end_ = 0;           // of by_end_: the first still to leave
  std::int64_t row_ = 0;
  std::set<std::size_t, RowOrder> active_;
  std::optional<std::pair<std::size_t, std::size_t>> found_;
};

bool in_batch(Range range, std::int64_t num_tokens) {
  return 0 <= range.begin && range.begin <= range.end && range.end <= num_tokens;
}

// Sorted disjoint ranges with touching ones joined.
std::vector<Range> join_ranges(std::span<const Range> ranges) {
  std::vector<Range> joined;
  for (const Range range : ranges) {
    if (range.empty()) continue;
    if (!joined.empty() && joined.back().end == range.begin) {
      joined.back().end = range.end;
      continue;
    }
    CONTEXTILE_CHECK(joined.empty() || joined.back().end < range.begin,
                     "token ranges: expected ascending and disjoint, found [{}, {}) after [{}, {})",
                     range.begin, range.end, joined.back().begin, joined.back().end);
    joined.push_back(range);
  }
  return joined;
}

// The part of `ranges` (sorted, disjoint) that meets `range`, both ends cut only when used.
std::span<const Range> meeting(std::span<const Range> ranges, Range range) {
  const auto first = std::ranges::upper_bound(ranges, range.begin, {}, &Range::end);
  const auto last = std::lower_bound(first, ranges.end(), range.end,
                                     [](Range r, std::int64_t end) { return r.begin < end; });
  return {first, last};
}

}  // namespace

std::int64_t num_pairs(const Band& band) {
  const std::int64_t num_q = band.q.size();
  const std::int64_t num_k = band.k.size();
  const std::int64_t lo = finite(band.lo);
  const std::int64_t hi = finite(band.hi);
  if (num_q == 0 || num_k == 0 || lo > hi) return 0;
  const std::int64_t shift = band.k.begin - band.q.begin;
  return pairs_up_to(hi - shift, num_q, num_k) - pairs_up_to(lo - shift - 1, num_q, num_k);
}

Band clip(const Band& band, Range q, Range k) {
  Band result = band;
  result.q = intersect(band.q, q);
  result.k = intersect(band.k, k);
  const std::int64_t lo = finite(band.lo);
  const std::int64_t hi = finite(band.hi);
  if (!result.q.empty() && !result.k.empty() && lo <= hi) {
    // Row q holds a pair iff q + hi >= k.begin and q + lo < k.end; then the same for the columns.
    result.q = intersect(result.q, {result.k.begin - hi, result.k.end - lo});
    result.k = intersect(result.k, {result.q.begin + lo, result.q.end + hi});
    if (!result.q.empty() && !result.k.empty()) return result;
  }
  result.q = {};
  result.k = {};
  return result;
}

std::int64_t Mask::num_pairs() const {
  return std::accumulate(
      bands.begin(), bands.end(), std::int64_t{0},
      [](std::int64_t sum, const Band& band) { return sum + contextile::num_pairs(band); });
}

std::optional<std::pair<std::size_t, std::size_t>> find_overlap(std::span<const Band> bands) {
  return OverlapSweep(bands).run();
}

void check_mask(const Mask& mask, std::int64_t num_tokens) {
  for (std::size_t b = 0; b < mask.bands.size(); ++b) {
    const Band& band = mask.bands[b];
    CONTEXTILE_CHECK(in_batch(band.q, num_tokens) && in_batch(band.k, num_tokens),
                     "mask band {}: expected ranges inside [0, {}), found queries [{}, {}), keys "
                     "[{}, {})",
                     b, num_tokens, band.q.begin, band.q.end, band.k.begin, band.k.end);
  }
  if (const auto overlap = find_overlap(mask.bands)) {
    const Band& a = mask.bands[overlap->first];
    const Band& b = mask.bands[overlap->second];
    const Band shared = shared_pairs(a, b);
    const std::int64_t key = std::max(shared.k.begin, shared.q.begin + finite(shared.lo));
    fail_argument(
        "mask: expected disjoint bands, found bands {} and {} both holding query {}, key {}",
        overlap->first, overlap->second, shared.q.begin, key);
  }
}

Mask restrict(const Mask& mask, std::span<const Range> tokens) {
  const std::vector<Range> kept = join_ranges(tokens);
  Mask result;
  for (const Band& band : mask.bands) {
    const Band tight = clip(band, band.q, band.k);
    if (tight.q.empty()) continue;
    for (const Range q : meeting(kept, tight.q)) {
      const Band rows = clip(tight, q, tight.k);
      for (const Range k : meeting(kept, rows.k)) {
        const Band piece = clip(rows, rows.q, k);
        if (!piece.q.empty()) result.bands.push_back(piece);
      }
    }
  }
  return result;
}

}  // namespace contextile
