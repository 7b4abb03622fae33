#include "batch/mask/tree.h"

#include <algorithm>
#include <optional>

#include "batch/mask/mask_text.h"

namespace contextile {
namespace {

struct Segment {
  Range tokens;
  std::optional<std::size_t> parent;  // none: the root
};

std::vector<Segment> segments_of(const MaskSpec& spec, Range tokens) {
  check_sum_of_lengths(spec, tokens.size());
  std::vector<Segment> segments;
  segments.reserve(spec.lengths.size());
  std::int64_t begin = tokens.begin;
  for (std::size_t i = 0; i < spec.lengths.size(); ++i) {
    Segment segment{{begin, begin + spec.lengths[i]}, std::nullopt};
    if (spec.parents[i] >= 0) segment.parent = static_cast<std::size_t>(spec.parents[i]);
    begin = segment.tokens.end;
    segments.push_back(segment);
  }
  return segments;
}

// Joins segments with only children that are stored right behind them: the same rows attend both.
std::vector<Segment> joined(const std::vector<Segment>& segments) {
  std::vector<std::size_t> num_children(segments.size());
  for (const Segment& segment : segments) {
    if (segment.parent) ++num_children[*segment.parent];
  }
  std::vector<Segment> result;
  std::vector<std::size_t> place_of(segments.size());  // in the result
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto& [tokens, parent] = segments[i];
    if (parent && *parent + 1 == i && num_children[*parent] == 1) {
      result.back().tokens.end = tokens.end;
    } else {
      result.push_back({tokens, parent ? std::optional(place_of[*parent]) : std::nullopt});
    }
    place_of[i] = result.size() - 1;
  }
  return result;
}

// Reads segments in the order of storage. The segments on the way from the root to the latest one
// are open: a band of each, whose queries are all rows since it was opened, grows.
class BandBuilder {
 public:
  BandBuilder(const std::vector<Segment>& segments, std::size_t most)
      : segments_(segments), most_(most), opened_at_(segments.size(), kClosed) {}

  // O(bands + segments), because only segments that leave or enter the way are visited.
  std::vector<Band> build(std::int64_t end) {
    for (std::size_t i = 0; i < segments_.size() && bands_.size() < most_; ++i) visit(i);
    close_below(std::nullopt, end);
    std::ranges::sort(bands_);
    return std::move(bands_);
  }

 private:
  static constexpr std::int64_t kClosed = -1;

  void visit(std::size_t segment) {
    std::vector<std::size_t> entering;
    std::optional<std::size_t> above = segment;
    for (; above && opened_at_[*above] == kClosed; above = segments_[*above].parent) {
      entering.push_back(*above);
    }
    const std::int64_t begin = segments_[segment].tokens.begin;
    close_below(above, begin);
    for (auto entry = entering.rbegin(); entry != entering.rend(); ++entry) {
      opened_at_[*entry] = begin;
      open_.push_back(*entry);
    }
  }

  // Closes the open segments below one, or all, before the row `end`.
  void close_below(std::optional<std::size_t> above, std::int64_t end) {
    for (; !open_.empty() && open_.back() != above; open_.pop_back()) {
      const Range keys = segments_[open_.back()].tokens;
      std::int64_t& begin = opened_at_[open_.back()];
      // Rows behind the segment attend it whole.
      bands_.push_back({{begin, end}, keys, -kUnbounded, begin < keys.end ? 0 : kUnbounded});
      begin = kClosed;
    }
  }

  const std::vector<Segment>& segments_;
  std::size_t most_;
  std::vector<std::int64_t> opened_at_;  // the row, of every segment
  std::vector<std::size_t> open_;        // from the root on
  std::vector<Band> bands_;
};

}  // namespace

std::vector<Band> tree_bands(const MaskSpec& spec, Range tokens, std::size_t most) {
  return BandBuilder(joined(segments_of(spec, tokens)), most).build(tokens.end);
}

void append_tree_positions(const MaskSpec& spec, Range tokens, std::int64_t sequence,
                           std::vector<PositionSegment>& out) {
  const std::vector<Segment> segments = segments_of(spec, tokens);
  std::vector<std::int64_t> first_position(segments.size());
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const auto& [own, parent] = segments[i];
    if (!parent) {
      out.push_back({own, sequence, 0});
      continue;
    }
    const Range parent_tokens = segments[*parent].tokens;
    first_position[i] = first_position[*parent] + parent_tokens.size();
    if (*parent + 1 == i) {
      out.back().tokens.end = own.end;
    } else {
      out.push_back({own, sequence, first_position[i], parent_tokens.end - 1});
    }
  }
}

}  // namespace contextile
