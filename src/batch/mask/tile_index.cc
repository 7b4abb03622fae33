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

// True if every query of the tight band attends all of the keys. Most pieces are such rectangles,
// which need no cut.
bool is_rectangle(const Band& band, Range keys) {
  return band.k.begin <= keys.begin && keys.end <= band.k.end &&
         keys.end - 1 - band.q.begin <= band.hi && keys.begin - (band.q.end - 1) >= band.lo;
}

// The keys that every query of a tight band attends.
Range whole_columns(const Band& band) {
  const std::int64_t rows = band.q.size() - 1;
  Range whole = band.k;
  if (band.lo > band.k.begin - band.q.begin - rows) whole.begin = band.q.begin + rows + band.lo;
  if (band.hi < band.k.end - 1 - band.q.begin) whole.end = band.q.begin + band.hi + 1;
  return whole;
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
  for (const RangeOfBlock& range : by_token_) ranges_of_block_[next[range.block.index()]++] = range;
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
    incidence.band = clip(tight, range.tokens, tight.k);
    incidence.row_shift = shift_of(range);
    const Range keys = incidence.band.k;
    if (keys.empty()) continue;
    first = first_ending_after(first, all.end(), keys.begin);
    last = first_beginning_at(std::max(first, last), all.end(), keys.end);
    incidence.first_range = static_cast<std::uint32_t>(first - all.begin());
    incidence.last_range = static_cast<std::uint32_t>(last - all.begin());
  }
}

void TileIndex::order_incidences() {
  const auto first_key = [](const Incidence& incidence) { return incidence.band.k.begin; };
  reach_.resize(incidences_.size());
  for (std::size_t block = 0; block < num_tokens_.size(); ++block) {
    const std::span<Incidence> own(incidences_.data() + first_incidence_[block],
                                   first_incidence_[block + 1] - first_incidence_[block]);
    if (!std::ranges::is_sorted(own, {}, first_key)) std::ranges::stable_sort(own, {}, first_key);
    std::int64_t reach = 0;
    for (std::size_t i = 0; i < own.size(); ++i) {
      reach = std::max(reach, own[i].band.k.end);
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
      const Band& band = incidences_[i].band;
      const auto add_cut = [&](std::size_t r) {
        Band piece = band;
        piece.k = intersect(band.k, by_token_[r].tokens);
        add(block_of_range_[r], num_pairs(piece));
      };
      const Range whole = whole_columns(band);
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

template <typename Visit>
void TileIndex::for_each_piece(BlockId q_block, BlockId kv_block, Visit visit) const {
  check_block(q_block);
  check_block(kv_block);
  const std::size_t kv = kv_block.index();
  const std::span<const RangeOfBlock> ranges(
      ranges_of_block_.data() + first_range_of_block_[kv],
      first_range_of_block_[kv + 1] - first_range_of_block_[kv]);
  const std::size_t begin = first_incidence_[q_block.index()];
  const std::size_t end = first_incidence_[q_block.index() + 1];
  const std::span<const std::int64_t> reach(reach_.data() + begin, end - begin);
  const std::span<const Incidence> own(incidences_.data() + begin, end - begin);
  // Only incidences whose keys can reach the block's tokens count.
  const auto first =
      own.begin() + (std::ranges::upper_bound(reach, ranges.front().tokens.begin) - reach.begin());
  const auto last =
      std::ranges::lower_bound(first, own.end(), ranges.back().tokens.end, {},
                               [](const Incidence& incidence) { return incidence.band.k.begin; });
  auto next = ranges.begin();  // incidences ascend, and so does the first range each meets
  for (const Incidence& incidence : std::span<const Incidence>(first, last)) {
    const Range keys = incidence.band.k;
    if (next->tokens.end <= keys.begin) {
      next = first_ending_after(next + 1, ranges.end(), keys.begin);
      if (next == ranges.end()) return;
    }
    for (auto range = next; range != ranges.end() && range->tokens.begin < keys.end; ++range) {
      const bool whole = is_rectangle(incidence.band, range->tokens);
      if (whole) {
        Band piece = incidence.band;
        piece.k = range->tokens;
        visit(piece, incidence, *range, whole);
      } else {
        visit(clip(incidence.band, incidence.band.q, range->tokens), incidence, *range, whole);
      }
    }
  }
}

std::int64_t TileIndex::append_bands(BlockId q_block, BlockId kv_block,
                                     std::vector<LocalBand>& out) const {
  const std::size_t first = out.size();
  std::int64_t pairs = 0;
  for_each_piece(
      q_block, kv_block,
      [&](const Band& piece, const Incidence& incidence, const RangeOfBlock& range, bool) {
        pairs += num_pairs(piece);
        out.push_back(to_local(piece, incidence.row_shift, shift_of(range)));
      });
  std::sort(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
  return pairs;
}

void TileIndex::append_pieces(BlockId q_block, BlockId kv_block,
                              std::vector<TilePiece>& out) const {
  const Incidence* rectangle_of = nullptr;  // the last piece is this one's, and can take more keys
  for_each_piece(
      q_block, kv_block,
      [&](const Band& piece, const Incidence& incidence, const RangeOfBlock&, bool whole) {
        const std::int64_t keys = piece.k.size();
        const std::int64_t pairs = whole ? piece.q.size() * keys : num_pairs(piece);
        if (whole && rectangle_of == &incidence) {
          out.back().keys += keys;
          out.back().pairs += pairs;
          return;
        }
        rectangle_of = whole ? &incidence : nullptr;
        TilePiece& added = out.emplace_back();  // in place: copies of what was just written stall
        added.q = {piece.q.begin - incidence.row_shift, piece.q.end - incidence.row_shift};
        added.keys = keys;
        added.pairs = pairs;
      });
}

TileCover TileIndex::cover(BlockId q_block, BlockId kv_block) const {
  std::int64_t pairs = 0;
  for_each_piece(q_block, kv_block,
                 [&](const Band& piece, const Incidence&, const RangeOfBlock&, bool) {
                   pairs += num_pairs(piece);
                 });
  if (pairs == 0) return TileCover::kEmpty;
  const bool full = pairs == num_tokens_[q_block.index()] * num_tokens_[kv_block.index()];
  return full ? TileCover::kFull : TileCover::kPartial;
}

}  // namespace contextile
