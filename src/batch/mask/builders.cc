#include <algorithm>

#include "base/check.h"
#include "batch/mask/mask_text.h"
#include "batch/mask/tree.h"
#include "contextile/mask.h"

namespace contextile {
namespace {

using Rule = MaskSpec::Rule;

void check_sequences(std::span<const Range> sequences) {
  std::int64_t end = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const Range tokens = sequences[s];
    CONTEXTILE_CHECK(end <= tokens.begin && !tokens.empty() && tokens.end <= kMaxTokens,
                     "sequence {}: expected a non-empty range inside [{}, {}), found [{}, {})", s,
                     end, kMaxTokens, tokens.begin, tokens.end);
    end = tokens.end;
  }
}

constexpr std::size_t kMaxBands = std::size_t{1} << 23;  // planning takes some 300 bytes of each

// Appends bands, leaving out those without a row or a column.
class BandWriter {
 public:
  explicit BandWriter(std::vector<Band>& bands) : bands_(bands) {}

  void rectangle(Range q, Range k) { add({q, k, -kUnbounded, kUnbounded}); }
  void causal(Range q, Range k) { add({q, k, -kUnbounded, 0}); }
  void window(Range q, Range k, std::int64_t back) { add({q, k, -std::min(back, kUnbounded), 0}); }
  void add(const Band& band) {
    const Band tight = clip(band, band.q, band.k);
    if (tight.q.empty()) return;
    CONTEXTILE_CHECK(
        bands_.size() < kMaxBands,
        "mask: expected at most {} bands, found more: a rule of larger blocks, or fewer "
        "tokens",
        kMaxBands);
    bands_.push_back(tight);
  }

 private:
  std::vector<Band>& bands_;
};

// Adds the sink keys as one causal band and the window as another one over the keys behind them:
// they are disjoint where the rule's two ranges overlap.
void add_lambda(const MaskSpec& spec, Range tokens, BandWriter& out) {
  const std::int64_t split = tokens.begin + std::min(spec.sink, tokens.size());
  out.causal(tokens, {tokens.begin, split});
  out.window(tokens, {split, tokens.end}, spec.window - 1);
}

// The rows before the last block see the sink blocks and `window` blocks back; so does the first
// block, whose rows reach neither limit. The last block is causal.
void add_causal_blockwise(const MaskSpec& spec, Range tokens, BandWriter& out) {
  const std::int64_t num_blocks = (tokens.size() + spec.block - 1) / spec.block;
  const std::int64_t last = tokens.begin + (num_blocks - 1) * spec.block;
  const std::int64_t split = tokens.begin + std::min(spec.sink * spec.block, tokens.size());
  out.causal({tokens.begin, last}, {tokens.begin, split});
  out.window({tokens.begin, last}, {split, tokens.end}, spec.window * spec.block);
  out.causal({last, tokens.end}, tokens);
}

// Adds one causal band for the question's keys, which every row sees, and one per answer.
void add_shared_question(const MaskSpec& spec, Range tokens, BandWriter& out) {
  const std::vector<std::int64_t> lengths = shared_question_lengths(spec, tokens.size());
  std::int64_t begin = tokens.begin + lengths.front();
  out.causal(tokens, {tokens.begin, begin});
  for (std::size_t answer = 1; answer < lengths.size(); ++answer) {
    const Range own = {begin, begin + lengths[answer]};
    out.causal(own, own);
    begin = own.end;
  }
}

void add_prefix_lm(const MaskSpec& spec, Range tokens, BandWriter& out) {
  const std::int64_t split = tokens.begin + std::min(spec.prefix, tokens.size());
  out.rectangle(tokens, {tokens.begin, split});
  out.causal(tokens, {split, tokens.end});
}

void add_chunked(const MaskSpec& spec, Range tokens, BandWriter& out) {
  for (std::int64_t begin = tokens.begin; begin < tokens.end; begin += spec.chunk) {
    const Range chunk = {begin, std::min(begin + spec.chunk, tokens.end)};
    out.causal(chunk, chunk);
  }
}

void add_sequence(const MaskSpec& spec, Range tokens, BandWriter& out) {
  switch (spec.rule) {
    case Rule::kFull:
      return out.rectangle(tokens, tokens);
    case Rule::kCausal:
      return out.causal(tokens, tokens);
    case Rule::kSlidingWindow:
      return out.window(tokens, tokens, spec.window - 1);
    case Rule::kLambda:
      return add_lambda(spec, tokens, out);
    case Rule::kCausalBlockwise:
      return add_causal_blockwise(spec, tokens, out);
    case Rule::kSharedQuestion:
      return add_shared_question(spec, tokens, out);
    case Rule::kPrefixLm:
      return add_prefix_lm(spec, tokens, out);
    case Rule::kChunked:
      return add_chunked(spec, tokens, out);
    case Rule::kTree:
      for (const Band& band : tree_bands(spec, tokens, kMaxBands + 1)) out.add(band);
      return;
  }
}

void append_question_positions(const MaskSpec& spec, Range tokens, std::int64_t sequence,
                               std::vector<PositionSegment>& segments) {
  const std::vector<std::int64_t> lengths = shared_question_lengths(spec, tokens.size());
  const std::int64_t question = lengths.front();
  // The first answer that has tokens follows the question.
  PositionSegment segment = {{tokens.begin, tokens.begin + question}, sequence, 0};
  bool is_answered = false;
  for (std::size_t part = 1; part < lengths.size(); ++part) {
    if (lengths[part] == 0) continue;
    if (is_answered) {
      segments.push_back(segment);
      segment = {{segment.tokens.end, segment.tokens.end},
                 sequence,
                 question,
                 question > 0 ? tokens.begin + question - 1 : -1};
    }
    segment.tokens.end += lengths[part];
    is_answered = true;
  }
  segments.push_back(segment);
}

}  // namespace

Mask build_mask(const MaskSpec& spec, std::span<const Range> sequences) {
  check_mask_spec(spec);
  check_sequences(sequences);
  Mask mask;
  BandWriter out(mask.bands);
  for (const Range tokens : sequences) add_sequence(spec, tokens, out);
  return mask;
}

bool stands_alone(const MaskSpec& spec, std::int64_t tokens) {
  switch (spec.rule) {
    case Rule::kCausal:
    case Rule::kSlidingWindow:
    case Rule::kLambda:
    case Rule::kChunked:
      return true;
    case Rule::kPrefixLm:
      return tokens >= spec.prefix;
    case Rule::kFull:
    case Rule::kCausalBlockwise:  // the last block attends all before it
    case Rule::kSharedQuestion:   // parts are shares of the length
    case Rule::kTree:             // segments sum to the length
      return false;
  }
  return false;
}

Mask build_document_mask(std::span<const MaskSpec> specs, std::span<const Range> sequences) {
  CONTEXTILE_CHECK(specs.size() == sequences.size(),
                   "document mask: expected a rule for each of {} sequences, found {} rules",
                   sequences.size(), specs.size());
  check_sequences(sequences);
  Mask mask;
  BandWriter out(mask.bands);
  for (std::size_t s = 0; s < specs.size(); ++s) {
    check_mask_spec(specs[s]);
    add_sequence(specs[s], sequences[s], out);
  }
  return mask;
}

std::vector<PositionSegment> build_positions(const MaskSpec& spec,
                                             std::span<const Range> sequences) {
  check_mask_spec(spec);
  check_sequences(sequences);
  std::vector<PositionSegment> segments;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const Range tokens = sequences[s];
    const auto sequence = static_cast<std::int64_t>(s);
    if (spec.rule == Rule::kSharedQuestion) {
      append_question_positions(spec, tokens, sequence, segments);
    } else if (spec.rule == Rule::kTree) {
      append_tree_positions(spec, tokens, sequence, segments);
    } else {
      segments.push_back({tokens, sequence, 0});
    }
  }
  return segments;
}

Mask mask_from_slices(std::span<const Slice> slices) {
  std::vector<Band> bands;
  for (std::size_t s = 0; s < slices.size(); ++s) {
    const auto& [q, k, type] = slices[s];
    for (const Range range : {q, k}) {
      CONTEXTILE_CHECK(0 <= range.begin && range.begin <= range.end && range.end <= kMaxTokens,
                       "slice {}: expected ranges inside [0, {}), found [{}, {})", s, kMaxTokens,
                       range.begin, range.end);
    }
    Band band{q, k, -kUnbounded, kUnbounded};
    if (type == SliceType::kCausal || type == SliceType::kBiCausal) band.hi = k.end - q.end;
    if (type == SliceType::kInverseCausal || type == SliceType::kBiCausal) {
      band.lo = k.begin - q.begin;
    }
    bands.push_back(clip(band, q, k));
  }
  if (const auto overlap = find_overlap(bands)) {
    fail_argument("slices: expected disjoint slices, found slices {} and {} sharing pairs",
                  overlap->first, overlap->second);
  }
  std::erase_if(bands, [](const Band& band) { return band.q.empty(); });
  return {std::move(bands)};
}

}  // namespace contextile
