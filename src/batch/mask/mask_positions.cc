#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/ranges.h"
#include "contextile/mask.h"
#include "contextile/workload.h"

namespace contextile {
namespace {

// Ranges of rows that a comparison may look at in all. A mask beyond it is no tree: each row is
// then a few bands of a dense pattern.
constexpr std::int64_t kMostRangesCompared = 100'000'000;

// Membership of ascending tokens in merged ranges.
class Walk {
 public:
  explicit Walk(std::span<const Range> ranges) : ranges_(ranges) {}

  [[nodiscard]] bool contains(std::int64_t token) {
    while (at_ < ranges_.size() && ranges_[at_].end <= token) ++at_;
    return at_ < ranges_.size() && ranges_[at_].begin <= token;
  }

 private:
  std::span<const Range> ranges_;
  std::size_t at_ = 0;
};

// The tokens, ascending, that do not attend the token stored before them.
struct Breaks {
  std::vector<std::int64_t> cuts;      // no pair joins a token before them to one from them on
  std::vector<std::int64_t> branches;  // all others that have a query
};

class BreakFinder {
 public:
  explicit BreakFinder(std::span<const Mask* const> masks) {
    for (const Mask* mask : masks) {
      for (const Band& band : mask->bands) add(band);
    }
    for (std::vector<Range>* ranges : {&rows_, &joined_, &follow_}) {
      *ranges = merged(std::move(*ranges));
    }
    Walk rows(rows_);
    Walk rows_before(rows_);
    Walk joined(joined_);
    const auto visit = [&](std::int64_t token) {
      const bool has_row = rows.contains(token);
      if (!joined.contains(token)) {
        // Tokens without pairs, such as padding, stay together.
        if (has_row || rows_before.contains(token - 1)) breaks_.cuts.push_back(token);
      } else if (has_row) {
        breaks_.branches.push_back(token);
      }
    };
    // Only tokens between the ranges of follow_ can be breaks.
    std::int64_t next = 1;
    for (const Range& range : follow_) {
      for (; next < range.begin; ++next) visit(next);
      next = std::max(next, range.end);
    }
    const std::int64_t end = rows_.empty() ? 0 : rows_.back().end + 1;
    for (; next < end; ++next) visit(next);
  }

  [[nodiscard]] const Breaks& breaks() const { return breaks_; }

 private:
  void add(const Band& whole) {
    const Band band = clip(whole, whole.q, whole.k);
    if (band.q.empty()) return;
    rows_.push_back(band.q);
    // The pairs of a tight band join all tokens between its first and its last, unless each query
    // attends itself alone.
    if (band.lo != 0 || band.hi != 0) {
      joined_.push_back(
          {std::min(band.q.begin, band.k.begin) + 1, std::max(band.q.end, band.k.end)});
    }
    if (band.lo <= -1 && -1 <= band.hi) {
      follow_.push_back(
          {std::max(band.q.begin, band.k.begin + 1), std::min(band.q.end, band.k.end + 1)});
    }
  }

  std::vector<Range> rows_;    // tokens with queries
  std::vector<Range> joined_;  // tokens t such that a pair has one token before t and the other not
  std::vector<Range> follow_;  // tokens that attend the token stored before them
  Breaks breaks_;
};

// The keys of some queries of a mask.
class Rows {
 public:
  // `tokens`: ascending.
  Rows(const Mask& mask, std::vector<std::int64_t> tokens)
      : tokens_(std::move(tokens)), rows_(tokens_.size()) {
    std::int64_t compared = 0;
    for (const Band& whole : mask.bands) {
      const Band band = clip(whole, whole.q, whole.k);
      auto at = std::ranges::lower_bound(tokens_, band.q.begin);
      for (; at != tokens_.end() && *at < band.q.end; ++at) {
        if (++compared > kMostRangesCompared) {
          is_complete_ = false;
          return;
        }
        const std::int64_t q = *at;
        rows_[static_cast<std::size_t>(at - tokens_.begin())].push_back(
            {std::max(band.k.begin, q + std::max(band.lo, -kUnbounded)),
             std::min(band.k.end, q + std::min(band.hi, kUnbounded) + 1)});
      }
    }
    for (std::vector<Range>& row : rows_) row = merged(std::move(row));
  }

  [[nodiscard]] bool is_complete() const { return is_complete_; }
  [[nodiscard]] const std::vector<Range>& of(std::int64_t token) const {
    return rows_[static_cast<std::size_t>(std::ranges::lower_bound(tokens_, token) -
                                          tokens_.begin())];
  }

 private:
  std::vector<std::int64_t> tokens_;
  std::vector<std::vector<Range>> rows_;
  bool is_complete_ = true;
};

// Returns the last key before a token, or nothing.
std::optional<std::int64_t> last_before(std::span<const Range> row, std::int64_t token) {
  std::optional<std::int64_t> last;
  for (const Range& range : row) {
    if (range.begin < token) last = std::min(range.end, token) - 1;
  }
  return last;
}

// Returns the token that each branch of a document follows, or nothing if the mask is no tree: in a
// tree, a token attends itself and the keys of the token that it follows. Checked are the first and
// the last token of every stretch without a branch.
std::optional<std::vector<std::int64_t>> followed_tokens(const Mask& mask, Range document,
                                                         std::span<const std::int64_t> branches) {
  std::vector<std::int64_t> edges = {document.begin};
  for (const std::int64_t branch : branches) edges.insert(edges.end(), {branch - 1, branch});
  edges.push_back(document.end - 1);
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  const Rows own(mask, edges);
  if (!own.is_complete()) return std::nullopt;

  std::vector<std::int64_t> followed;
  followed.reserve(branches.size());
  for (const std::int64_t branch : branches) {
    const std::optional<std::int64_t> token = last_before(own.of(branch), branch);
    if (!token || *token < document.begin) return std::nullopt;
    followed.push_back(*token);
  }
  std::vector<std::int64_t> wanted = followed;
  std::ranges::sort(wanted);
  const Rows parents(mask, std::move(wanted));
  if (!parents.is_complete()) return std::nullopt;

  const auto is_row = [](std::vector<Range> expected, Range added,
                         const std::vector<Range>& found) {
    expected.push_back(added);
    return merged(std::move(expected)) == found;
  };
  const auto is_stretch = [&](std::int64_t first, std::int64_t last) {
    return is_row(own.of(first), {first, last + 1}, own.of(last));
  };
  std::int64_t first = document.begin;
  for (std::size_t b = 0; b < branches.size(); ++b) {
    if (!is_stretch(first, branches[b] - 1)) return std::nullopt;
    first = branches[b];
    if (!is_row(parents.of(followed[b]), {first, first + 1}, own.of(first))) return std::nullopt;
  }
  return is_stretch(first, document.end - 1) ? std::optional(followed) : std::nullopt;
}

// Adds the segments of a document, of which `branches` do not attend the token before them: one
// segment per branch if one of the masks shows a tree, otherwise one for all, of unknown positions.
void add_document(std::span<const Mask* const> masks, Range document, std::int64_t sequence,
                  std::span<const std::int64_t> branches, std::vector<PositionSegment>& segments) {
  std::optional<std::vector<std::int64_t>> followed;
  for (std::size_t m = 0; m < masks.size() && !branches.empty() && !followed; ++m) {
    followed = followed_tokens(*masks[m], document, branches);
  }
  const auto first = static_cast<std::ptrdiff_t>(segments.size());
  const bool is_known = followed.has_value() || branches.empty();
  segments.push_back({document, sequence, 0, is_known ? kFollowsNone : kPositionsUnknown});
  if (!followed) return;
  const auto begin_of = [](const PositionSegment& segment) { return segment.tokens.begin; };
  for (std::size_t b = 0; b < branches.size(); ++b) {
    // The followed token is in a segment of the document that is there already.
    const std::int64_t token = (*followed)[b];
    const auto holder =
        std::ranges::upper_bound(segments.begin() + first, segments.end(), token, {}, begin_of) - 1;
    const std::int64_t position = holder->first_position + token - holder->tokens.begin + 1;
    segments.back().tokens.end = branches[b];
    segments.push_back({{branches[b], document.end}, sequence, position, token});
  }
}

}  // namespace

std::vector<PositionSegment> infer_positions(std::span<const Mask* const> masks,
                                             std::span<const Range> sequences) {
  const Breaks breaks = BreakFinder(masks).breaks();
  std::vector<PositionSegment> segments;
  auto cut = breaks.cuts.begin();
  auto branch = breaks.branches.begin();
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    std::int64_t begin = sequences[s].begin;
    while (begin < sequences[s].end) {
      while (cut != breaks.cuts.end() && *cut <= begin) ++cut;
      const std::int64_t end =
          cut == breaks.cuts.end() ? sequences[s].end : std::min(*cut, sequences[s].end);
      while (branch != breaks.branches.end() && *branch <= begin) ++branch;
      const auto first_branch = branch;
      while (branch != breaks.branches.end() && *branch < end) ++branch;
      add_document(masks, {begin, end}, static_cast<std::int64_t>(s), {first_branch, branch},
                   segments);
      begin = end;
    }
  }
  return segments;
}

void set_positions(Workload& workload, std::span<const std::int64_t> positions_T) {
  CONTEXTILE_CHECK(std::ssize(positions_T) == workload.num_tokens(),
                   "positions: expected one for each of {} tokens, found {}", workload.num_tokens(),
                   positions_T.size());
  const auto at = [&](std::int64_t token) { return positions_T[static_cast<std::size_t>(token)]; };
  for (std::int64_t t = 0; t < workload.num_tokens(); ++t) {
    CONTEXTILE_CHECK(0 <= at(t) && at(t) <= kMaxTokens,
                     "positions: expected 0 to {}, found {} of token {}", kMaxTokens, at(t), t);
  }
  const auto counts_from = [&](Range tokens, std::int64_t first) {
    for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
      if (at(t) != first + t - tokens.begin) return false;
    }
    return true;
  };
  std::vector<PositionSegment> segments;
  auto known = workload.positions.begin();
  for (std::size_t s = 0; s < workload.sequences.size(); ++s) {
    const Range tokens = workload.sequences[s];
    const auto sequence = static_cast<std::int64_t>(s);
    const auto first = known;
    bool is_known = first != workload.positions.end();
    for (; known != workload.positions.end() && known->tokens.begin < tokens.end; ++known) {
      is_known = is_known && known->follows != kPositionsUnknown &&
                 counts_from(known->tokens, known->first_position);
    }
    if (is_known) {
      segments.insert(segments.end(), first, known);
    } else if (counts_from(tokens, 0)) {
      segments.push_back({tokens, sequence, 0});
    } else {
      for (std::int64_t t = tokens.begin; t < tokens.end; ++t) {
        if (t == tokens.begin || at(t) != at(t - 1) + 1) {
          segments.push_back({{t, t}, sequence, at(t), kOrderUnknown});
        }
        segments.back().tokens.end = t + 1;
      }
    }
  }
  workload.positions = std::move(segments);
}

}  // namespace contextile
