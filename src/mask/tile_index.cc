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

constexpr std::size_t kMaxIncidences = std::size_t{1} << 26;

std::int64_t shift_of(const RangeOfBlock& range) { return range.tokens.begin - range.first_row; }

// A tight band moved into local rows; a bound that cuts nothing becomes none.
LocalBand to_local(const Band& band, std::int64_t q_shift, std::int64_t k_shift) {
  LocalBand local;
  local.q = {band.q.begin - q_shift, band.q.end - q_shift};
  local.k = {band.k.begin - k_shift, band.k.end - k_shift};
  if (band.lo > band.k.begin - (band.q.end - 1)) local.lo = band.lo + q_shift - k_shift;
  if (band.hi < band.k.end - 1 - band.q.begin) local.hi = band.hi + q_shift - k_shift;
  return local;
}

// Whether every query of the tight band attends all of the keys: most pieces are rectangles, and
// need no cut.
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
  for (const RangeOfBlock& range : by_token_) {
    num_tokens_[range.block.index()] += range.tokens.size();
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
  for (const Band& band : bands) {
    const Band tight = clip(band, band.q, band.k);
    for (const RangeOfBlock& range : meeting(by_token_, tight.q)) {
      incidences_[next[range.block.index()]++] = {clip(tight, range.tokens, tight.k),
                                                  shift_of(range), 0};
    }
  }
  for (std::size_t block = 0; block < num_tokens_.size(); ++block) {
    const std::span<Incidence> own(incidences_.data() + first_incidence_[block],
                                   first_incidence_[block + 1] - first_incidence_[block]);
    std::ranges::stable_sort(own, {}, [](const Incidence& i) { return i.band.k.begin; });
    std::int64_t reach = 0;
    for (Incidence& incidence : own) {
      reach = std::max(reach, incidence.band.k.end);
      incidence.reach = reach;
    }
  }
}

std::vector<Tile> TileIndex::tiles() const {
  return *tiles_up_to(std::numeric_limits<std::int64_t>::max());
}

std::optional<std::vector<Tile>> TileIndex::tiles_up_to(std::int64_t limit) const {
  std::vector<Tile> tiles;
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
      const Range whole = whole_columns(band);
      for (const RangeOfBlock& range : meeting(by_token_, band.k)) {
        if (whole.begin <= range.tokens.begin && range.tokens.end <= whole.end) {
          add(range.block, band.q.size() * range.tokens.size());
          continue;
        }
        Band piece = band;
        piece.k = intersect(band.k, range.tokens);
        add(range.block, num_pairs(piece));
      }
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
    pieces += std::ssize(meeting(by_token_, incidence.band.k));
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
  const std::span<const Incidence> own(
      incidences_.data() + first_incidence_[q_block.index()],
      first_incidence_[q_block.index() + 1] - first_incidence_[q_block.index()]);
  // Only incidences whose keys can reach the block's tokens.
  const auto first =
      std::ranges::upper_bound(own, ranges.front().tokens.begin, {}, &Incidence::reach);
  const auto last =
      std::ranges::lower_bound(first, own.end(), ranges.back().tokens.end, {},
                               [](const Incidence& incidence) { return incidence.band.k.begin; });
  const auto end_of = [](const RangeOfBlock& range) { return range.tokens.end; };
  auto next = ranges.begin();  // incidences ascend, and so does the first range each meets
  for (const Incidence& incidence : std::span<const Incidence>(first, last)) {
    const Range keys = incidence.band.k;
    if (next->tokens.end <= keys.begin) ++next;
    if (next != ranges.end() && next->tokens.end <= keys.begin) {
      next = std::ranges::upper_bound(next, ranges.end(), keys.begin, {}, end_of);
    }
    if (next == ranges.end()) return;
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
  for_each_piece(
      q_block, kv_block,
      [&](const Band& piece, const Incidence& incidence, const RangeOfBlock&, bool whole) {
        const std::int64_t shift = incidence.row_shift;
        const std::int64_t keys = piece.k.size();
        out.push_back({{piece.q.begin - shift, piece.q.end - shift},
                       keys,
                       whole ? piece.q.size() * keys : num_pairs(piece)});
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
