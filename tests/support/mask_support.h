// Random masks and blockings, and a second implementation of the mask rules, row by row, for tests
// to compare with.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"
#include "contextile/mask.h"

namespace contextile {

// Uniform in [least, most].
inline std::int64_t random_between(Rng& rng, std::int64_t least, std::int64_t most) {
  return least +
         static_cast<std::int64_t>(rng.next() % static_cast<std::uint64_t>(most - least + 1));
}

inline bool random_chance(Rng& rng, double probability) { return rng.uniform() < probability; }

// 1 to `max_sequences` lengths of 1 to `max_length` tokens; short ones are common.
inline std::vector<std::int64_t> random_lengths(Rng& rng, std::int64_t max_sequences,
                                                std::int64_t max_length) {
  std::vector<std::int64_t> lengths(
      static_cast<std::size_t>(random_between(rng, 1, max_sequences)));
  for (std::int64_t& length : lengths) {
    length = random_between(
        rng, 1, random_chance(rng, 0.3) ? std::min<std::int64_t>(4, max_length) : max_length);
  }
  return lengths;
}

inline std::vector<Range> laid_end_to_end(std::span<const std::int64_t> lengths) {
  std::vector<Range> sequences;
  std::int64_t begin = 0;
  for (const std::int64_t length : lengths) {
    sequences.push_back({begin, begin + length});
    begin += length;
  }
  return sequences;
}

// The rules that fit sequences of any length: all but the tree, whose segments sum to the length.
inline constexpr MaskSpec::Rule kAllRules[] = {
    MaskSpec::Rule::kFull,     MaskSpec::Rule::kCausal,          MaskSpec::Rule::kSlidingWindow,
    MaskSpec::Rule::kLambda,   MaskSpec::Rule::kCausalBlockwise, MaskSpec::Rule::kSharedQuestion,
    MaskSpec::Rule::kPrefixLm, MaskSpec::Rule::kChunked};

// Parameters for sequences of up to `max_length` tokens, some of them longer than the sequence.
inline MaskSpec random_mask_spec(Rng& rng, MaskSpec::Rule rule, std::int64_t max_length) {
  MaskSpec spec;
  spec.rule = rule;
  const auto tokens = [&](std::int64_t least) {
    return random_between(rng, least,
                          random_chance(rng, 0.5) ? max_length + 3 : 1 + max_length / 4);
  };
  spec.window = rule == MaskSpec::Rule::kCausalBlockwise ? random_between(rng, 1, 4) : tokens(1);
  spec.sink = rule == MaskSpec::Rule::kCausalBlockwise ? random_between(rng, 0, 3) : tokens(0);
  spec.block = random_between(rng, 1, 1 + max_length / 4);
  spec.fraction = random_chance(rng, 0.2) ? std::round(rng.uniform()) : rng.uniform();
  spec.answers = random_between(rng, 1, 6);
  spec.prefix = tokens(0);
  spec.chunk = tokens(1);
  return spec;
}

inline MaskSpec random_mask_spec(Rng& rng, std::int64_t max_length) {
  const auto rule = static_cast<std::size_t>(random_between(rng, 0, std::ssize(kAllRules) - 1));
  return random_mask_spec(rng, kAllRules[rule], max_length);
}

// A tree of 1 to `max_segments` segments of 1 to `max_length` tokens, stored in any order in which
// parents come first.
inline MaskSpec random_tree(Rng& rng, std::int64_t max_segments, std::int64_t max_length) {
  MaskSpec spec{.rule = MaskSpec::Rule::kTree, .parents = {-1}};
  spec.lengths = random_lengths(rng, max_segments, max_length);
  while (spec.parents.size() < spec.lengths.size()) {
    const std::int64_t last = std::ssize(spec.parents) - 1;
    spec.parents.push_back(random_chance(rng, 0.3) ? last : random_between(rng, 0, last));
  }
  return spec;
}

// The segment that holds token i of a tree.
inline std::size_t segment_of(const MaskSpec& tree, std::int64_t i) {
  std::size_t segment = 0;
  for (; i >= tree.lengths[segment]; ++segment) i -= tree.lengths[segment];
  return segment;
}

// True if token i of a sequence of `length` tokens attends token j, by the rule's text.
inline bool rule_attends(const MaskSpec& spec, std::int64_t length, std::int64_t i,
                         std::int64_t j) {
  const auto in = [j](std::int64_t begin, std::int64_t end) { return begin <= j && j < end; };
  switch (spec.rule) {
    case MaskSpec::Rule::kFull:
      return true;
    case MaskSpec::Rule::kCausal:
      return in(0, i + 1);
    case MaskSpec::Rule::kSlidingWindow:
      return in(i - spec.window + 1, i + 1);
    case MaskSpec::Rule::kLambda:
      return in(0, std::min(spec.sink, i + 1)) || in(i - spec.window + 1, i + 1);
    case MaskSpec::Rule::kCausalBlockwise: {
      const std::int64_t block = i / spec.block;
      const std::int64_t num_blocks = (length + spec.block - 1) / spec.block;
      if (block == 0 || block == num_blocks - 1) return in(0, i + 1);
      const std::int64_t sink = spec.sink * spec.block;
      return in(0, std::min(sink, i + 1)) ||
             in(std::max(sink, i - spec.window * spec.block), i + 1);
    }
    case MaskSpec::Rule::kSharedQuestion: {
      std::vector<std::int64_t> parts = spec.lengths;
      if (parts.empty()) {
        parts.push_back(static_cast<std::int64_t>(spec.fraction * static_cast<double>(length)));
        const std::int64_t answer = (length - parts[0]) / spec.answers;
        for (std::int64_t a = 1; a < spec.answers; ++a) parts.push_back(answer);
        parts.push_back(length - parts[0] - answer * (spec.answers - 1));
      }
      std::int64_t begin = 0;
      for (const std::int64_t part : parts) {
        if (i < begin + part) return in(0, std::min(parts[0], i + 1)) || in(begin, i + 1);
        begin += part;
      }
      return false;
    }
    case MaskSpec::Rule::kPrefixLm:
      return in(0, spec.prefix) || in(0, i + 1);
    case MaskSpec::Rule::kChunked:
      return in(i - i % spec.chunk, i + 1);
    case MaskSpec::Rule::kTree: {
      if (j > i) return false;
      auto above = static_cast<std::int64_t>(segment_of(spec, i));
      const auto wanted = static_cast<std::int64_t>(segment_of(spec, j));
      while (above > wanted) above = spec.parents[static_cast<std::size_t>(above)];
      return above == wanted;
    }
  }
  return false;
}

// A matrix with a count for every (query, key): bands that overlap show as 2.
struct DenseMask {
  std::int64_t num_queries = 0;
  std::int64_t num_keys = 0;
  std::vector<std::uint8_t> counts;  // [num_queries, num_keys]

  DenseMask(std::int64_t queries, std::int64_t keys)
      : num_queries(queries), num_keys(keys), counts(static_cast<std::size_t>(queries * keys)) {}
  [[nodiscard]] std::uint8_t& at(std::int64_t q, std::int64_t k) {
    return counts[static_cast<std::size_t>(q * num_keys + k)];
  }
  [[nodiscard]] std::uint8_t at(std::int64_t q, std::int64_t k) const {
    return counts[static_cast<std::size_t>(q * num_keys + k)];
  }
  [[nodiscard]] std::int64_t num_pairs() const {
    return std::count_if(counts.begin(), counts.end(), [](std::uint8_t n) { return n != 0; });
  }
  friend bool operator==(const DenseMask&, const DenseMask&) = default;
};

inline void add_to_dense(const Band& band, DenseMask& dense) {
  for (std::int64_t q = band.q.begin; q < band.q.end; ++q) {
    for (std::int64_t k = band.k.begin; k < band.k.end; ++k) {
      if (band.lo <= k - q && k - q <= band.hi) ++dense.at(q, k);
    }
  }
}

inline DenseMask dense_of_bands(std::span<const Band> bands, std::int64_t num_queries,
                                std::int64_t num_keys) {
  DenseMask dense(num_queries, num_keys);
  for (const Band& band : bands) add_to_dense(band, dense);
  return dense;
}

inline DenseMask dense_of_rule(const MaskSpec& spec, std::span<const Range> sequences) {
  const std::int64_t num_tokens = sequences.empty() ? 0 : sequences.back().end;
  DenseMask dense(num_tokens, num_tokens);
  for (const Range tokens : sequences) {
    for (std::int64_t q = tokens.begin; q < tokens.end; ++q) {
      for (std::int64_t k = tokens.begin; k < tokens.end; ++k) {
        dense.at(q, k) =
            rule_attends(spec, tokens.size(), q - tokens.begin, k - tokens.begin) ? 1 : 0;
      }
    }
  }
  return dense;
}

// Any band inside [0, num_queries) x [0, num_keys), the odd ones too: empty, lo > hi, no bound.
inline Band random_band(Rng& rng, std::int64_t num_queries, std::int64_t num_keys) {
  const auto range = [&](std::int64_t size) {
    const std::int64_t a = random_between(rng, 0, size);
    const std::int64_t b = random_between(rng, 0, size);
    return Range{std::min(a, b), std::max(a, b)};
  };
  Band band{range(num_queries), range(num_keys)};
  if (random_chance(rng, 0.6)) band.lo = random_between(rng, -num_queries - 2, num_keys + 2);
  if (random_chance(rng, 0.6)) band.hi = random_between(rng, -num_queries - 2, num_keys + 2);
  return band;
}

// Blocks over [0, num_tokens): pieces of 1 to `max_piece` tokens dealt in random order to blocks of
// up to `max_ranges` ranges (1: no composite blocks, in ascending order); `coverage` of the pieces
// are kept.
inline Blocking random_blocking(Rng& rng, std::int64_t num_tokens, std::int64_t max_piece,
                                std::int64_t max_ranges, double coverage = 1) {
  std::vector<Range> pieces;
  for (std::int64_t begin = 0; begin < num_tokens;) {
    const std::int64_t end = std::min(num_tokens, begin + random_between(rng, 1, max_piece));
    if (random_chance(rng, coverage)) pieces.push_back({begin, end});
    begin = end;
  }
  if (max_ranges > 1) {
    for (std::size_t i = pieces.size(); i > 1; --i) {
      std::swap(pieces[i - 1], pieces[static_cast<std::size_t>(rng.next() % i)]);
    }
  }
  Blocking blocking;
  for (std::size_t first = 0; first < pieces.size();) {
    const auto count = std::min(static_cast<std::size_t>(random_between(rng, 1, max_ranges)),
                                pieces.size() - first);
    blocking.add(std::span<const Range>(pieces).subspan(first, count));
    first += count;
  }
  return blocking;
}

// Token of every row of a block.
inline std::vector<std::int64_t> tokens_of_rows(const Blocking& blocking, BlockId block) {
  std::vector<std::int64_t> tokens;
  for (const Range range : blocking.ranges(block)) {
    for (std::int64_t t = range.begin; t < range.end; ++t) tokens.push_back(t);
  }
  return tokens;
}

}  // namespace contextile
