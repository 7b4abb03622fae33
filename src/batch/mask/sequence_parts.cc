#include "batch/mask/sequence_parts.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace contextile {
namespace {

Range moved(Range range, std::int64_t by) { return {range.begin + by, range.end + by}; }

// Calls use(s, range of it in sequence s) for every sequence that the range meets.
template <typename Use>
void for_each_sequence(const Workload& workload, Range range, Use use) {
  auto at = std::ranges::upper_bound(workload.sequences, range.begin, {}, &Range::end);
  for (; at != workload.sequences.end() && at->begin < range.end; ++at) {
    use(static_cast<std::size_t>(at - workload.sequences.begin()), intersect(*at, range));
  }
}

}  // namespace

SequenceParts::SequenceParts(const Workload& workload)
    : workload_(workload), parts_(workload.sequences.size()) {
  for (Part& part : parts_) part.bands.resize(workload.masks.size());
  for (std::size_t m = 0; m < workload.masks.size(); ++m) {
    for (const Band& band : workload.masks[m].mask.bands) {
      for_each_sequence(workload, band.q, [&](std::size_t s, Range) {
        const Range sequence = workload.sequences[s];
        Band own = clip(band, sequence, sequence);
        if (own.q.empty()) return;
        own.q = moved(own.q, -sequence.begin);
        own.k = moved(own.k, -sequence.begin);
        parts_[s].bands[m].push_back(own);
      });
    }
  }
  for (const RoleRange& range : workload.roles) {
    for_each_sequence(workload, range.tokens, [&](std::size_t s, Range own) {
      parts_[s].roles.push_back({moved(own, -workload.sequences[s].begin), range.role});
    });
  }
  for (const PositionSegment& segment : workload.positions) {
    for_each_sequence(workload, segment.tokens, [&](std::size_t s, Range own) {
      const std::int64_t begin = workload.sequences[s].begin;
      parts_[s].positions.push_back(
          {moved(own, -begin), 0, segment.first_position + own.begin - segment.tokens.begin,
           segment.follows < 0 ? segment.follows : segment.follows - begin});
    });
  }
}

Workload SequenceParts::select(std::span<const std::int32_t> sequences) const {
  Workload selected;
  selected.shape = workload_.shape;
  for (const NamedMask& named : workload_.masks) {
    selected.masks.push_back({.name = named.name, .layers = named.layers, .mask = {}});
  }
  std::int64_t begin = 0;
  for (const std::int32_t index : sequences) {
    CONTEXTILE_CHECK(index >= 0 && static_cast<std::size_t>(index) < parts_.size(),
                     "sequences: expected indices below {}, found {}", parts_.size(), index);
    const auto s = static_cast<std::size_t>(index);
    const Part& part = parts_[s];
    for (std::size_t m = 0; m < part.bands.size(); ++m) {
      for (Band band : part.bands[m]) {
        band.q = moved(band.q, begin);
        band.k = moved(band.k, begin);
        selected.masks[m].mask.bands.push_back(band);
      }
    }
    for (const auto& [tokens, role] : part.roles) {
      selected.roles.push_back({moved(tokens, begin), role});
    }
    const auto place = static_cast<std::int64_t>(selected.sequences.size());
    for (const PositionSegment& segment : part.positions) {
      selected.positions.push_back(
          {moved(segment.tokens, begin), place, segment.first_position,
           segment.follows < 0 ? segment.follows : segment.follows + begin});
    }
    selected.sequences.push_back(moved({0, workload_.sequences[s].size()}, begin));
    begin += workload_.sequences[s].size();
  }
  return selected;
}

}  // namespace contextile
