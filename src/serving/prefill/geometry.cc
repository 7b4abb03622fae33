#include "serving/prefill/geometry.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "contextile/serving/decode.h"

namespace contextile {
namespace {

constexpr std::array<std::pair<PrefillChunks, std::string_view>, 2> kChunks = {
    {{PrefillChunks::kEven, "even"}, {PrefillChunks::kCeil, "ceil"}}};

void check_batch(const PrefillBatch& batch) {
  check_kv_layout(batch.layout);
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const auto& [cached, fresh, table] = batch.sequences[i];
    CONTEXTILE_CHECK(cached >= 0 && fresh >= 0 && cached < kMaxTokens && fresh < kMaxTokens &&
                         cached + fresh < kMaxTokens,
                     "sequence {}: expected 0 to {} cached and new tokens, found {} and {}", i,
                     kMaxTokens - 1, cached, fresh);
  }
}

// The mask of a sequence, for the queries of new tokens only.
std::vector<Band> bands_of(const MaskSpec& spec, std::int64_t cached, std::int64_t fresh) {
  if (fresh == 0) return {};
  const Range all = {0, cached + fresh};
  std::vector<Band> bands;
  for (const Band& band : build_mask(spec, {&all, 1}).bands) {
    const Band seen = clip(band, {cached, all.end}, all);
    if (!seen.q.empty()) bands.push_back(seen);
  }
  return bands;
}

// The keys of the bands that lie below `end`, as disjoint ranges.
std::vector<Range> keys_below(std::span<const Band> bands, std::int64_t end) {
  std::vector<Range> keys;
  for (const Band& band : bands) {
    const Range below = clip(band, band.q, {0, end}).k;
    if (!below.empty()) keys.push_back(below);
  }
  std::ranges::sort(keys);
  std::vector<Range> merged;
  for (const Range& range : keys) {
    if (!merged.empty() && range.begin <= merged.back().end) {
      merged.back().end = std::max(merged.back().end, range.end);
    } else {
      merged.push_back(range);
    }
  }
  return merged;
}

bool is_full(const Band& tight) {
  return tight.lo <= tight.k.begin - (tight.q.end - 1) &&
         tight.hi >= tight.k.end - 1 - tight.q.begin;
}

// A tight band moved by `rows` rows and `keys` keys.
LocalBand moved(const Band& tight, std::int64_t rows, std::int64_t keys) {
  LocalBand local;
  local.q = {tight.q.begin + rows, tight.q.end + rows};
  local.k = {tight.k.begin + keys, tight.k.end + keys};
  if (!is_full(tight)) {
    local.lo = tight.lo <= -kUnbounded ? tight.lo : tight.lo + keys - rows;
    local.hi = tight.hi >= kUnbounded ? tight.hi : tight.hi + keys - rows;
  }
  return local;
}

// New tokens of a rank's earlier (0) or later chunk.
Range chunk_of_rank(PrefillChunks rule, std::int64_t tokens, std::int32_t ranks, Rank rank,
                    std::size_t chunk) {
  return prefill_chunk(rule, tokens, 2 * ranks,
                       chunk == 0 ? rank.value : 2 * ranks - 1 - rank.value);
}

// (sequence, chunk) of a rank's rows in their order.
std::vector<std::pair<std::size_t, std::size_t>> chunk_order(PrefillChunks rule,
                                                             std::size_t num_sequences) {
  std::vector<std::pair<std::size_t, std::size_t>> order;
  for (std::size_t n = 0; n < 2 * num_sequences; ++n) {
    if (rule == PrefillChunks::kEven) {
      order.emplace_back(n % num_sequences, n / num_sequences);
    } else {
      order.emplace_back(n / 2, n % 2);
    }
  }
  return order;
}

}  // namespace

std::string_view to_string(PrefillChunks chunks) {
  return std::ranges::find(kChunks, chunks, [](const auto& entry) { return entry.first; })->second;
}

PrefillChunks parse_prefill_chunks(std::string_view text) {
  for (const auto& [chunks, name] : kChunks) {
    if (name == text) return chunks;
  }
  fail_argument("chunks: expected even or ceil, found {}", quote(text));
}

Range prefill_chunk(PrefillChunks rule, std::int64_t tokens, std::int32_t num_chunks,
                    std::int32_t index) {
  if (rule == PrefillChunks::kCeil) {
    const std::int64_t size = (tokens + num_chunks - 1) / num_chunks;
    return {std::min(tokens, index * size), std::min(tokens, (index + 1) * size)};
  }
  const std::int64_t size = tokens / num_chunks;
  const std::int64_t longer = tokens % num_chunks;
  const auto begin = [&](std::int64_t i) { return i * size + std::min(i, longer); };
  return {begin(index), begin(index + 1)};
}

std::int64_t PrefillRows::num_rows() const {
  return std::accumulate(
      segments.begin(), segments.end(), std::int64_t{0},
      [](std::int64_t sum, const PrefillSegment& segment) { return sum + segment.tokens.size(); });
}

std::vector<std::int64_t> PrefillRows::positions(std::span<const PrefillSequence> sequences) const {
  std::vector<std::int64_t> positions;
  for (const PrefillSegment& segment : segments) {
    const std::int64_t cached = sequences[static_cast<std::size_t>(segment.sequence)].cached_tokens;
    for (std::int64_t t = segment.tokens.begin; t < segment.tokens.end; ++t) {
      positions.push_back(cached + t);
    }
  }
  return positions;
}

std::vector<std::int64_t> PrefillRows::tokens(std::span<const PrefillSequence> sequences) const {
  std::vector<std::int64_t> first = {0};
  for (const PrefillSequence& sequence : sequences) {
    first.push_back(first.back() + sequence.new_tokens);
  }
  std::vector<std::int64_t> tokens;
  for (const PrefillSegment& segment : segments) {
    for (std::int64_t t = segment.tokens.begin; t < segment.tokens.end; ++t) {
      tokens.push_back(first[static_cast<std::size_t>(segment.sequence)] + t);
    }
  }
  return tokens;
}

std::vector<PrefillRows> prefill_rows(const PrefillBatch& batch) {
  check_batch(batch);
  std::vector<PrefillRows> rows(static_cast<std::size_t>(batch.layout.num_ranks));
  for (std::int32_t r = 0; r < batch.layout.num_ranks; ++r) {
    for (const auto& [sequence, chunk] : chunk_order(batch.chunks, batch.sequences.size())) {
      const Range tokens = chunk_of_rank(batch.chunks, batch.sequences[sequence].new_tokens,
                                         batch.layout.num_ranks, Rank(r), chunk);
      if (tokens.empty()) continue;
      rows[static_cast<std::size_t>(r)].segments.push_back(
          {checked_cast<std::int32_t>(sequence, "sequences"), tokens});
    }
  }
  return rows;
}

PrefillWork prefill_work(const PrefillBatch& batch) {
  const PrefillGeometry geometry(batch);
  const std::int32_t ranks = geometry.num_ranks();
  PrefillWork work;
  work.num_ranks = ranks;
  for (std::int32_t a = 0; a < ranks; ++a) {
    work.q_rows.push_back(geometry.num_q_rows(Rank(a)));
    work.kv_rows.push_back(geometry.num_kv_rows(Rank(a)));
    for (std::int32_t b = 0; b < ranks; ++b) {
      std::int64_t& pairs = work.pairs.emplace_back(0);
      for (std::size_t i = 0; i < geometry.num_sequences(); ++i) {
        for (const std::size_t chunk : {0, 1}) {
          for (const LocalBand& band : geometry.bands(Rank(a), chunk, Rank(b), i)) {
            pairs += num_pairs(band);
          }
        }
      }
    }
  }
  return work;
}

PrefillGeometry::PrefillGeometry(const PrefillBatch& batch)
    : layout_(batch.layout), chunks_(batch.chunks) {
  check_batch(batch);
  for (const PrefillSequence& sequence : batch.sequences) {
    std::vector<Band> bands = bands_of(batch.mask, sequence.cached_tokens, sequence.new_tokens);
    std::vector<Range> cached = keys_below(bands, sequence.cached_tokens);
    sequences_.push_back(
        {sequence.cached_tokens, sequence.new_tokens, std::move(bands), std::move(cached)});
  }
  for (std::int32_t r = 0; r < layout_.num_ranks; ++r) deal_rows(Rank(r));
}

void PrefillGeometry::deal_rows(Rank rank) {
  const std::size_t first = rows_.size();
  rows_.resize(first + num_sequences());
  std::int64_t row = 0;
  for (const auto& [sequence, chunk] : chunk_order(chunks_, num_sequences())) {
    const std::int64_t tokens = new_positions(rank, sequence)[chunk].size();
    rows_[first + sequence].q[chunk] = {row, row + tokens};
    row += tokens;
  }
  std::int64_t key = 0;
  for (std::size_t i = 0; i < num_sequences(); ++i) {
    auto& [q, kv] = rows_[first + i];
    const std::int64_t keys =
        keys_before(rank, sequences_[i], sequences_[i].cached_tokens) + q[0].size() + q[1].size();
    kv = {key, key + keys};
    key += keys;
  }
}

std::int64_t PrefillGeometry::num_q_rows(Rank rank) const {
  // The last sequence's later chunk is last in any order.
  return sequences_.empty() ? 0 : rows(rank, num_sequences() - 1).q[1].end;
}
std::int64_t PrefillGeometry::num_kv_rows(Rank rank) const {
  return sequences_.empty() ? 0 : rows(rank, num_sequences() - 1).kv.end;
}
Range PrefillGeometry::q_rows(Rank rank, std::size_t sequence, std::size_t chunk) const {
  return rows(rank, sequence).q[chunk];
}
Range PrefillGeometry::kv_rows(Rank rank, std::size_t sequence) const {
  return rows(rank, sequence).kv;
}

std::array<Range, 2> PrefillGeometry::new_positions(Rank rank, std::size_t sequence) const {
  const auto& [cached, fresh, bands, seen] = sequences_[sequence];
  std::array<Range, 2> positions;
  for (const std::size_t chunk : {0, 1}) {
    const Range tokens = chunk_of_rank(chunks_, fresh, layout_.num_ranks, rank, chunk);
    positions[chunk] = {cached + tokens.begin, cached + tokens.end};
  }
  return positions;
}

std::vector<Range> PrefillGeometry::cached_keys(Rank rank, std::size_t sequence) const {
  return local_keys(layout_, rank, sequences_[sequence].cached);
}

std::int64_t PrefillGeometry::keys_before(Rank rank, const Sequence& sequence,
                                          std::int64_t position) const {
  std::int64_t keys = 0;
  for (const Range& range : sequence.cached) {
    if (range.begin >= position) break;
    keys += layout_.local_length(rank, intersect(range, {0, position}));
  }
  return keys;
}

std::vector<LocalBand> PrefillGeometry::bands(Rank q_rank, std::size_t chunk, Rank kv_rank,
                                              std::size_t sequence) const {
  const Sequence& of = sequences_[sequence];
  const Range queries = new_positions(q_rank, sequence)[chunk];
  const std::int64_t cached = keys_before(kv_rank, of, of.cached_tokens);
  std::vector<LocalBand> out;
  for (const Band& band : of.bands) {
    append_cached(band, queries, kv_rank, of, out);
    std::int64_t key = cached;
    for (const Range& keys : new_positions(kv_rank, sequence)) {
      const Band seen = clip(band, queries, keys);
      if (!seen.q.empty()) out.push_back(moved(seen, -queries.begin, key - keys.begin));
      key += keys.size();
    }
  }
  return out;
}

// A rank has cached positions interleaved with those of others, so the part of a slanted edge that
// falls on them is no band of its keys. There every row is treated on its own.
void PrefillGeometry::append_cached(const Band& band, Range queries, Rank kv_rank,
                                    const Sequence& sequence, std::vector<LocalBand>& out) const {
  const Band seen = clip(band, queries, {0, sequence.cached_tokens});
  if (seen.q.empty()) return;
  const auto keys_of = [&](std::int64_t begin, std::int64_t end) {
    return Range{keys_before(kv_rank, sequence, begin), keys_before(kv_rank, sequence, end)};
  };
  if (is_full(seen)) {
    const Range keys = keys_of(seen.k.begin, seen.k.end);
    if (!keys.empty())
      out.push_back({{seen.q.begin - queries.begin, seen.q.end - queries.begin}, keys});
    return;
  }
  std::vector<std::vector<Range>> rows;
  for (std::int64_t q = seen.q.begin; q < seen.q.end; ++q) {
    const Range keys =
        keys_of(std::max(seen.k.begin, q + seen.lo), std::min(seen.k.end, q + seen.hi + 1));
    rows.emplace_back();
    if (!keys.empty()) rows.back().push_back(keys);
  }
  for (const Band& part : mask_from_row_ranges(rows).bands) {
    out.push_back(moved(part, seen.q.begin - queries.begin, 0));
  }
}

}  // namespace contextile
