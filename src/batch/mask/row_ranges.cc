#include <algorithm>

#include "base/check.h"
#include "contextile/mask.h"

namespace contextile {
namespace {

// A band while it grows row by row. In a band the first key stays at k.begin and then moves with
// the row, the last key moves with the row and then stays at k.end - 1.
class GrowingBand {
 public:
  GrowingBand(std::int64_t row, Range keys) : keys_(keys), band_{{row, row + 1}, keys} {}

  [[nodiscard]] Range keys() const { return keys_; }
  [[nodiscard]] const Band& band() const { return band_; }

  // Takes `keys` as the next row if the band stays one.
  bool extend(Range keys) {
    const std::int64_t row = band_.q.end;
    const std::int64_t begin_step = keys.begin - keys_.begin;
    const std::int64_t end_step = keys.end - keys_.end;
    if (begin_step < 0 || begin_step > 1 || end_step < 0 || end_step > 1) return false;
    if (begin_step == 0 && band_.lo != -kUnbounded) return false;  // moved already
    if (end_step == 1 && end_stays_) return false;
    if (begin_step == 1) band_.lo = keys.begin - row;
    if (end_step == 1) {
      band_.hi = keys.end - 1 - row;
    } else {
      end_stays_ = true;
    }
    band_.k.end = keys.end;
    band_.q.end = row + 1;
    keys_ = keys;
    return true;
  }

 private:
  Range keys_;  // of the last row
  Band band_;
  bool end_stays_ = false;
};

// The ranges of a row ascending, touching ones joined.
void sort_row(std::int64_t row, std::span<const Range> ranges, std::vector<Range>& sorted) {
  sorted.assign(ranges.begin(), ranges.end());
  std::ranges::sort(sorted);
  std::size_t size = 0;
  for (const Range keys : sorted) {
    CONTEXTILE_CHECK(0 <= keys.begin && !keys.empty() && keys.end <= kMaxTokens,
                     "row {}: expected non-empty key ranges inside [0, {}), found [{}, {})", row,
                     kMaxTokens, keys.begin, keys.end);
    if (size > 0 && sorted[size - 1].end == keys.begin) {
      sorted[size - 1].end = keys.end;
      continue;
    }
    CONTEXTILE_CHECK(size == 0 || sorted[size - 1].end < keys.begin,
                     "row {}: expected disjoint key ranges, found [{}, {}) and [{}, {})", row,
                     sorted[size - 1].begin, sorted[size - 1].end, keys.begin, keys.end);
    sorted[size++] = keys;
  }
  sorted.resize(size);
}

// Bands out of rows handed over in order.
class RowMerger {
 public:
  // `ranges` ascending with gaps between them; rows count from 0.
  void add_row(std::int64_t row, std::span<const Range> ranges) {
    next_.clear();
    auto open = open_.begin();
    for (const Range keys : ranges) {
      // A band goes on in the range that begins where its last row did or one token further. There
      // is at most one such range.
      for (; open != open_.end() && open->keys().begin < keys.begin - 1; ++open) close(*open);
      if (open != open_.end() && open->keys().begin <= keys.begin) {
        if (open->extend(keys)) {
          next_.push_back(*open++);
          continue;
        }
        close(*open++);
      }
      next_.emplace_back(row, keys);
    }
    for (; open != open_.end(); ++open) close(*open);
    open_.swap(next_);
  }

  Mask finish() {
    for (const GrowingBand& band : open_) close(band);
    std::ranges::sort(mask_.bands);
    return std::move(mask_);
  }

 private:
  void close(const GrowingBand& open) { mask_.bands.push_back(open.band()); }

  std::vector<GrowingBand> open_;  // of the last row, ascending
  std::vector<GrowingBand> next_;
  Mask mask_;
};

}  // namespace

Mask mask_from_row_ranges(std::span<const std::vector<Range>> rows) {
  CONTEXTILE_CHECK(std::ssize(rows) <= kMaxTokens, "rows: expected at most {}, found {}",
                   kMaxTokens, rows.size());
  RowMerger merger;
  std::vector<Range> sorted;
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const auto query = static_cast<std::int64_t>(row);
    sort_row(query, rows[row], sorted);
    merger.add_row(query, sorted);
  }
  return merger.finish();
}

Mask mask_from_dense(std::span<const std::uint8_t> dense, std::int64_t num_queries,
                     std::int64_t num_keys) {
  CONTEXTILE_CHECK(0 <= num_queries && num_queries <= kMaxTokens && 0 <= num_keys &&
                       num_keys <= kMaxTokens && std::ssize(dense) == num_queries * num_keys,
                   "dense mask: expected {} x {} elements, found {}", num_queries, num_keys,
                   dense.size());
  RowMerger merger;
  std::vector<Range> ranges;
  for (std::int64_t q = 0; q < num_queries; ++q) {
    const std::uint8_t* row = dense.data() + q * num_keys;
    ranges.clear();
    for (std::int64_t k = 0; k < num_keys; ++k) {
      if (row[k] == 0) continue;
      if (!ranges.empty() && ranges.back().end == k) {
        ++ranges.back().end;
      } else {
        ranges.push_back({k, k + 1});
      }
    }
    merger.add_row(q, ranges);
  }
  return merger.finish();
}

}  // namespace contextile
