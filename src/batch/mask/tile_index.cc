#include <algorithm>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "contextile/mask.h"

namespace contextile {
namespace {

// The ranges (ascending tokens) that meet `tokens`.
std::span<const RangeOfBlock> meeting(std::span<const RangeOfBlock> ranges, Range tokens) {
  const auto end_of = [](const RangeOfBlock& range) { return range.tokens.end; };
  const auto begin_of = [](const RangeOfBlock& range) { return range.tokens.begin; };
  const auto first = std::ranges::upper_bound(ranges, tokens.begin, {}, end_of);
  const auto last = std::ranges::lower_bound(first, ranges.end(), tokens.end, {}, begin_of);
  return {first, last};
}

// The first of the ranges from `from` on that is not `before`; no range behind it is. A caller that
// goes through ranges in their order finds it within a few steps.
template <typename Iterator, typename Before>
Iterator first_not(Iterator from, Iterator end, const Before& before) {
  constexpr int kNear = 8;
  for (int i = 0; i < kNear; ++i, ++from) {
    if (from == end || !before(*from)) return from;
  }
  return std::partition_point(from, end, before);
}

template <typename Iterator>
Iterator first_ending_after(Iterator from, Iterator end, std::int64_t token) {
  return first_not(from, end, [=](const RangeOfBlock& range) { return range.tokens.end <= token; });
}
template <typename Iterator>
Iterator first_beginning_at(Iterator from, Iterator end, std::int64_t token) {
  return first_not(from, end,
                   [=](const RangeOfBlock& range) { return range.tokens.begin < token; });
}

std::uint32_t in_32_bits(std::int64_t token) { return static_cast<std::uint32_t>(token); }

constexpr std::size_t kMaxIncidences = std::size_t{1} << 26;

std::int64_t shift_of(const RangeOfBlock& range) { return range.tokens.begin - range.first_row; }

// A tight band moved into local rows. A bound that cuts nothing is dropped.
LocalBand to_local(const Band& band, std::int64_t q_shift, std::int64_t k_shift) {
  LocalBand local;
  local.q = {band.q.begin - q_shift, band.q.end - q_shift};
  local.k = {band.k.begin - k_shift, band.k.end - k_shift};
  if (band.lo > band.k.begin - (band.q.end - 1)) local.lo = band.lo + q_shift - k_shift;
  if (band.hi < band.k.end - 1 - band.q.begin) local.hi = band.hi + q_shift - k_shift;
  return local;
}

// The keys that every query of a tight band attends; nothing if it ends at or before its begin.
Range whole_columns(const Band& band) {
  const std::int64_t rows = band.q.size() - 1;
  Range whole = band.k;
  if (band.lo > band.k.begin - band.q.begin - rows) whole.begin = band.q.begin + rows + band.lo;
  if (band.hi < band.k.end - 1 - band.q.begin) whole.end = band.q.begin + band.hi + 1;
  return {whole.begin, std::max(std::int64_t{0}, whole.end)};
}

// first[b]: where block b's part begins after `counts` items were counted per block.
std::vector<std::size_t> offsets(std::span<const std::size_t> counts) {
  std::vector<std::size_t> first(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), first.begin() + 1);
  return first;
}

}  // namespace

TileIndex::TileIndex(const Mask& mask, const Blocking& blocking)
    : by_token_(sorted_ranges(blocking)),
      num_tokens_(static_cast<std::size_t>(blocking.num_blocks())) {
  tokens_of_range_.reserve(by_token_.size());
  block_of_range_.reserve(by_token_.size());
  for (const RangeOfBlock& range : by_token_) {
    num_tokens_[range.block.index()] += range.tokens.size();
    tokens_of_range_.push_back(static_cast<std::uint32_t>(range.tokens.size()));
    block_of_range_.push_back(range.block);
  }
  group_ranges_by_block();
  add_incidences(mask.bands);
}

void TileIndex::group_ranges_by_block() {
  std::vector<std::size_t> counts(num_tokens_.size());
  for (const RangeOfBlock& range : by_token_) ++counts[range.block.index()];
  first_range_of_block_ = offsets(counts);
  std::vector<std::size_t> next = first_range_of_block_;
  ranges_of_block_.resize(by_token_.size());
  for (const RangeOfBlock& range : by_token_) {
    ranges_of_block_[next[range.block.index()]++] = {ShortRange::of(range.tokens),
                                                     in_32_bits(range.first_row)};
  }
}

void TileIndex::add_incidences(std::span<const Band> bands) {
  std::size_t num_incidences = 0;
  for (const Band& band : bands) {
    num_incidences += meeting(by_token_, clip(band, band.q, band.k).q).size();
    if (num_incidences > kMaxIncidences) {
      fail_argument(
          "mask: expected bands that meet at most {} ranges of query blocks, found more: "
          "{} bands, {} ranges",
          kMaxIncidences, bands.size(), by_token_.size());
    }
  }
  std::vector<std::size_t> counts(num_tokens_.size());
  for (const Band& band : bands) {
    const Band tight = clip(band, band.q, band.k);
    for (const RangeOfBlock& range : meeting(by_token_, tight.q)) ++counts[range.block.index()];
  }
  first_incidence_ = offsets(counts);
  std::vector<std::size_t> next = first_incidence_;
  incidences_.resize(num_incidences);
  for (const Band& band : bands) add_incidences_of(clip(band, band.q, band.k), next);
  order_incidences();
}

// Keys ascend with the queries, and so do the ranges they meet.
void TileIndex::add_incidences_of(const Band& tight, std::vector<std::size_t>& next) {
  const std::span<const RangeOfBlock> all(by_token_);
  auto first = meeting(all, tight.k).begin();
  auto last = first;
  for (const RangeOfBlock& range : meeting(all, tight.q)) {
    Incidence& incidence = incidences_[next[range.block.index()]++];
    const Band band = clip(tight, range.tokens, tight.k);
    if (band.k.empty()) continue;
    incidence = {.q = ShortRange::of(band.q),
                 .k = ShortRange::of(band.k),
                 .whole = ShortRange::of(whole_columns(band)),
                 .first_row = in_32_bits(band.q.begin - shift_of(range)),
                 .lo = band.lo,
                 .hi = band.hi};
    first = first_ending_after(first, all.end(), band.k.begin);
    last = first_beginning_at(std::max(first, last), all.end(), band.k.end);
    incidence.first_range = static_cast<std::uint32_t>(first - all.begin());
    incidence.last_range = static_cast<std::uint32_t>(last - all.begin());
  }
}

void TileIndex::order_incidences() {
  const auto first_key = [](const Incidence& incidence) { return incidence.k.begin; };
  reach_.resize(incidences_.size());
  for (std::size_t block = 0; block < num_tokens_.size(); ++block) {
    const std::span<Incidence> own(incidences_.data() + first_incidence_[block],
                                   first_incidence_[block + 1] - first_incidence_[block]);
    if (!std::ranges::is_sorted(own, {}, first_key)) std::ranges::stable_sort(own, {}, first_key);
    std::uint32_t reach = 0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      reach = std::max(reach, own[i].k.end);
      reach_[first_incidence_[block] + i] = reach;
    }
  }
}

std::vector<Tile> TileIndex::tiles() const {
  return *tiles_up_to(std::numeric_limits<std::int64_t>::max());
}

std::optional<std::vector<Tile>> TileIndex::tiles_up_to(std::int64_t limit) const {
  std::vector<Tile> tiles;
  const auto blocks = std::ssize(num_tokens_);
  tiles.reserve(static_cast<std::size_t>(std::min({num_pieces(), blocks * blocks, limit})));
  std::vector<std::int64_t> pairs(num_tokens_.size());  // of each kv block with the current q block
  std::vector<BlockId> touched;
  const auto add = [&](BlockId kv, std::int64_t more) {
    std::int64_t& sum = pairs[kv.index()];
    if (sum == 0) touched.push_back(kv);
    sum += more;  // > 0: every column of a tight band holds a pair
  };
  for (std::size_t q = 0; q < num_tokens_.size(); ++q) {
    touched.clear();
    for (std::size_t i = first_incidence_[q]; i < first_incidence_[q + 1]; ++i) {
      const Band band = incidences_[i].band();
      const auto add_cut = [&](std::size_t r) {
        Band piece = band;
        piece.k = intersect(band.k, by_token_[r].tokens);
        add(block_of_range_[r], num_pairs(piece));
      };
      const Range whole = incidences_[i].whole.range();
      std::size_t first = incidences_[i].first_range;
      std::size_t last = incidences_[i].last_range;
      for (; first < last && by_token_[first].tokens.begin < whole.begin; ++first) add_cut(first);
      for (; last > first && by_token_[last - 1].tokens.end > whole.end; --last) add_cut(last - 1);
      const std::int64_t rows = band.q.size();
      for (std::size_t r = first; r < last; ++r)
        add(block_of_range_[r], rows * tokens_of_range_[r]);
    }
    if (std::ssize(tiles) + std::ssize(touched) > limit) return std::nullopt;
    std::ranges::sort(touched);
    for (const BlockId kv : touched) {
      tiles.push_back({BlockId{static_cast<std::int32_t>(q)}, kv, pairs[kv.index()]});
      pairs[kv.index()] = 0;
    }
  }
  return tiles;
}

std::int64_t TileIndex::num_pieces() const {
  std::int64_t pieces = 0;
  for (const Incidence& incidence : incidences_) {
    pieces += incidence.last_range - incidence.first_range;
  }
  return pieces;
}

void TileIndex::check_block(BlockId block) const {
  CONTEXTILE_CHECK(block.valid() && block.index() < num_tokens_.size(),
                   "tile: expected a block below {}, found {}", num_tokens_.size(), block.value);
}

// Calls visit(incidence, ranges) for the incidences of q_block that can meet kv_block. The ranges
// are those of kv_block from the first one that ends behind the first key of the incidence.
template <typename Visit>
void TileIndex::for_each_meeting(BlockId q_block, BlockId kv_block, Visit visit) const {
  check_block(q_block);
  check_block(kv_block);
  const std::size_t kv = kv_block.index();
  const std::span<const KeyRange> ranges(ranges_of_block_.data() + first_range_of_block_[kv],
                                         first_range_of_block_[kv + 1] - first_range_of_block_[kv]);
  const std::size_t begin = first_incidence_[q_block.index()];
  const std::size_t end = first_incidence_[q_block.index() + 1];
  const std::span<const std::uint32_t> reach(reach_.data() + begin, end - begin);
  const std::span<const Incidence> own(incidences_.data() + begin, end - begin);
  // Only incidences whose keys can reach the block's tokens count.
  const auto first =
      own.begin() + (std::ranges::upper_bound(reach, ranges.front().tokens.begin) - reach.begin());
  const auto last =
      std::ranges::lower_bound(first, own.end(), ranges.back().tokens.end, {},
                               [](const Incidence& incidence) { return incidence.k.begin; });
  auto next = ranges.begin();  // incidences ascend, and so does the first range each meets
  for (const Incidence& incidence : std::span<const Incidence>(first, last)) {
    const std::uint32_t first_key = incidence.k.begin;
    if (next->tokens.end <= first_key) {
      next = first_not(next + 1, ranges.end(),
                       [=](const KeyRange& range) { return range.tokens.end <= first_key; });
      if (next == ranges.end()) return;
    }
    visit(incidence, std::span<const KeyRange>(next, ranges.end()));
  }
}

// Calls visit(band ∩ range, incidence, range) for every range of kv_block that an incidence meets.
template <typename Visit>
void TileIndex::for_each_piece(BlockId q_block, BlockId kv_block, Visit visit) const {
  for_each_meeting(q_block, kv_block,
                   [&](const Incidence& incidence, std::span<const KeyRange> ranges) {
                     const Band band = incidence.band();
                     for (const KeyRange& range : ranges) {
                       if (range.tokens.begin >= incidence.k.end) return;
                       visit(clip(band, band.q, range.tokens.range()), incidence, range);
                     }
                   });
}

std::int64_t TileIndex::append_bands(BlockId q_block, BlockId kv_block,
                                     std::vector<LocalBand>& out) const {
  const std::size_t first = out.size();
  std::int64_t pairs = 0;
  for_each_piece(
      q_block, kv_block, [&](const Band& piece, const Incidence& incidence, const KeyRange& range) {
        pairs += num_pairs(piece);
        out.push_back(to_local(piece, std::int64_t{incidence.q.begin} - incidence.first_row,
                               std::int64_t{range.tokens.begin} - range.first_row));
      });
  std::sort(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
  return pairs;
}

// The simulation of plans with composite blocks spends most of its time here. Most pieces are
// rectangles, which need no cut.
void TileIndex::append_pieces(BlockId q_block, BlockId kv_block,
                              std::vector<TilePiece>& out) const {
  for_each_meeting(
      q_block, kv_block, [&out](const Incidence& incidence, std::span<const KeyRange> ranges) {
        const auto is_whole = [&incidence](const ShortRange& tokens) {
          return incidence.whole.begin <= tokens.begin && tokens.end <= incidence.whole.end;
        };
        auto range = ranges.begin();
        while (range != ranges.end() && range->tokens.begin < incidence.k.end) {
          TilePiece& piece = out.emplace_back();  // in place: copies of what was just written stall
          if (!is_whole(range->tokens)) {
            const Band band = incidence.band();
            const Band cut = clip(band, band.q, range->tokens.range());
            const std::int64_t first_row = cut.q.begin - band.q.begin + incidence.first_row;
            piece.q = {first_row, first_row + cut.q.size()};
            piece.keys = cut.k.size();
            piece.pairs = num_pairs(cut);
            ++range;
            continue;
          }
          const std::int64_t rows = incidence.q.end - incidence.q.begin;
          std::int64_t keys = 0;
          for (; range != ranges.end() && is_whole(range->tokens); ++range) {
            keys += range->tokens.end - range->tokens.begin;
          }
          piece.q = {incidence.first_row, incidence.first_row + rows};
          piece.keys = keys;
          piece.pairs = rows * keys;
        }
      });
}

TileCover TileIndex::cover(BlockId q_block, BlockId kv_block) const {
  std::int64_t pairs = 0;
  for_each_piece(q_block, kv_block, [&](const Band& piece, const Incidence&, const KeyRange&) {
    pairs += num_pairs(piece);
  });
  if (pairs == 0) return TileCover::kEmpty;
  const bool full = pairs == num_tokens_[q_block.index()] * num_tokens_[kv_block.index()];
  return full ? TileCover::kFull : TileCover::kPartial;
}

}  // namespace contextile
