#include "contextile/workload.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <set>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/quote.h"
#include "base/suggest.h"
#include "batch/mask/assemble_workload.h"
#include "batch/mask/mask_text.h"

namespace contextile {
namespace {

constexpr std::array kDtypes = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};

// Checks that sequences lie end to end from token 0.
void check_sequence_ranges(std::span<const Range> sequences) {
  CONTEXTILE_CHECK(!sequences.empty(), "workload: expected at least one sequence, found none");
  std::int64_t end = 0;
  for (std::size_t s = 0; s < sequences.size(); ++s) {
    const Range tokens = sequences[s];
    CONTEXTILE_CHECK(tokens.begin == end && !tokens.empty() && tokens.end <= kMaxTokens,
                     "workload: sequence {}: expected a non-empty range that begins at {} and ends "
                     "by {}, found [{}, {})",
                     s, end, kMaxTokens, tokens.begin, tokens.end);
    end = tokens.end;
  }
}

void check_roles(const Workload& workload) {
  std::int64_t end = 0;
  for (const auto& [tokens, role] : workload.roles) {
    CONTEXTILE_CHECK(end <= tokens.begin && !tokens.empty() && tokens.end <= workload.num_tokens(),
                     "workload: roles: expected ascending, disjoint, non-empty ranges inside [0, "
                     "{}), found [{}, {}) after token {}",
                     workload.num_tokens(), tokens.begin, tokens.end, end);
    end = tokens.end;
  }
}

// Checks that `ranges` cut [0, num_tokens) into consecutive non-empty pieces.
template <typename Pieces>
void check_partition(const Pieces& pieces, std::int64_t num_tokens, std::string_view what) {
  std::int64_t end = 0;
  for (const auto& piece : pieces) {
    CONTEXTILE_CHECK(piece.tokens.begin == end && !piece.tokens.empty(),
                     "workload: {}: expected a non-empty range that begins at {}, found [{}, {})",
                     what, end, piece.tokens.begin, piece.tokens.end);
    end = piece.tokens.end;
  }
  CONTEXTILE_CHECK(end == num_tokens, "workload: {}: expected to end at token {}, found {}", what,
                   num_tokens, end);
}

// Checks that segments partition the batch, that each lies in its sequence, and that a segment that
// follows a token continues with the next position.
void check_positions(const Workload& workload) {
  check_partition(workload.positions, workload.num_tokens(), "positions");
  for (const auto& [tokens, sequence, first_position, follows] : workload.positions) {
    CONTEXTILE_CHECK(0 <= sequence && sequence < std::ssize(workload.sequences),
                     "workload: positions of [{}, {}): expected a sequence below {}, found {}",
                     tokens.begin, tokens.end, workload.sequences.size(), sequence);
    const Range own = workload.sequences[static_cast<std::size_t>(sequence)];
    CONTEXTILE_CHECK(own.begin <= tokens.begin && tokens.end <= own.end,
                     "workload: positions of [{}, {}): expected tokens of sequence {} ([{}, {}))",
                     tokens.begin, tokens.end, sequence, own.begin, own.end);
    CONTEXTILE_CHECK(
        0 <= first_position && first_position <= kMaxTokens,
        "workload: positions of [{}, {}): expected a first position of 0 to {}, found {}",
        tokens.begin, tokens.end, kMaxTokens, first_position);
    CONTEXTILE_CHECK(kPositionsUnknown <= follows,
                     "workload: positions of [{}, {}): expected an earlier token that they follow, "
                     "or {} to {}, found {}",
                     tokens.begin, tokens.end, kPositionsUnknown, kFollowsNone, follows);
    // Negative numbers stand for segments without a known predecessor.
    if (follows < 0) continue;
    CONTEXTILE_CHECK(own.begin <= follows && follows < tokens.begin,
                     "workload: positions of [{}, {}): expected an earlier token of sequence {} "
                     "that they follow, found {}",
                     tokens.begin, tokens.end, sequence, follows);
    // Segments partition the batch and an earlier token is in an earlier segment, so the last
    // segment that begins at or before it holds it, and has been checked.
    const auto begin_of = [](const PositionSegment& segment) { return segment.tokens.begin; };
    const PositionSegment& holder =
        *(std::ranges::upper_bound(workload.positions, follows, {}, begin_of) - 1);
    const std::int64_t position = holder.first_position + follows - holder.tokens.begin;
    CONTEXTILE_CHECK(first_position == position + 1,
                     "workload: positions of [{}, {}): expected to begin at {}, behind token {}, "
                     "found {}",
                     tokens.begin, tokens.end, position + 1, follows, first_position);
  }
}

// Checks that the mask has no query where a token has none, and no key where it has none.
void check_roles_of_mask(const NamedMask& named, std::span<const RoleRange> roles) {
  std::vector<Range> no_queries;
  std::vector<Range> no_keys;
  for (const auto& [tokens, role] : roles) {
    if (role == Role::kKvOnly) no_queries.push_back(tokens);
    if (role == Role::kQOnly) no_keys.push_back(tokens);
  }
  // Lacking ranges ascend and are disjoint, so if any meets `tokens`, the first one that ends
  // behind their begin does.
  const auto check = [&](Range tokens, std::span<const Range> lacking, std::size_t band,
                         std::string_view what) {
    const auto met = std::ranges::upper_bound(lacking, tokens.begin, {}, &Range::end);
    CONTEXTILE_CHECK(met == lacking.end() || met->begin >= tokens.end,
                     "workload: mask {}: band {}: expected no {} in tokens [{}, {}) by their role, "
                     "found [{}, {})",
                     quote(named.name), band, what, met->begin, met->end, tokens.begin, tokens.end);
  };
  for (std::size_t b = 0; b < named.mask.bands.size(); ++b) {
    const Band& band = named.mask.bands[b];
    // Each row and column of a clipped band has a pair, so a band that meets a lacking range also
    // has a pair there.
    const Band tight = clip(band, band.q, band.k);
    if (tight.q.empty()) continue;
    check(tight.q, no_queries, b, "queries");
    check(tight.k, no_keys, b, "keys");
  }
}

// Roles are compared last, with bands that are known to lie in the batch.
void check_masks(const Workload& workload) {
  CONTEXTILE_CHECK(!workload.masks.empty(), "workload: expected at least one mask, found none");
  std::set<std::string_view> names;
  for (const NamedMask& named : workload.masks) {
    CONTEXTILE_CHECK(!named.name.empty(), "workload: expected every mask to have a name, found ''");
    CONTEXTILE_CHECK(names.insert(named.name).second,
                     "workload: expected masks with different names, found {} twice; name them: "
                     "NAME=SPEC",
                     quote(named.name));
    CONTEXTILE_CHECK(named.layers >= 1, "workload: mask {}: expected at least 1 layer, found {}",
                     quote(named.name), named.layers);
    try {
      check_mask(named.mask, workload.num_tokens());
    } catch (const InvalidArgument& error) {
      fail_argument("workload: mask {}: {}", quote(named.name), error.what());
    }
    check_roles_of_mask(named, workload.roles);
  }
}

void check_dim(std::string_view what, std::int32_t dim) {
  constexpr std::int32_t kMaxDim = 4096;
  CONTEXTILE_CHECK(1 <= dim && dim <= kMaxDim, "attention shape: {}: expected 1 to {}, found {}",
                   what, kMaxDim, dim);
}

// Names stand in options of the program, so they have no '=', '@', ',' or blanks.
bool is_name(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '_' ||
           c == '-' || c == '.';
  });
}

std::string_view name_of(const MaskUse& use) {
  return use.name.empty() ? rule_name(use.spec.rule) : std::string_view(use.name);
}

// BandCuts::kEdges: the edges of all masks' bands, of sequences that are long and have few of them.
void append_band_edges(const Workload& workload, std::int64_t block_size,
                       std::vector<std::int64_t>& cuts) {
  std::vector<std::int64_t> edges;
  for (const NamedMask& named : workload.masks) {
    for (const Band& band : named.mask.bands) {
      edges.insert(edges.end(), {band.q.begin, band.q.end, band.k.begin, band.k.end});
    }
  }
  // All masks share one sorted list of edges. Sequences ascend, so a cursor walks through it once.
  std::ranges::sort(edges);
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  constexpr std::int64_t kShortBlocks = 2;
  auto edge = edges.begin();
  for (const Range& sequence : workload.sequences) {
    // Only edges inside the sequence cut anything. If they are fewer than its blocks, cutting there
    // less than doubles the number of blocks.
    edge = std::upper_bound(edge, edges.end(), sequence.begin);
    const auto last = std::lower_bound(edge, edges.end(), sequence.end);
    const std::int64_t blocks = sequence.size() / block_size;
    if (blocks >= kShortBlocks && last - edge < blocks) cuts.insert(cuts.end(), edge, last);
    edge = last;
  }
}

}  // namespace

std::string_view to_string(Dtype dtype) {
  switch (dtype) {
    case Dtype::kF32:
      return "f32";
    case Dtype::kBf16:
      return "bf16";
    case Dtype::kF16:
      return "f16";
  }
  return "?";
}

Dtype parse_dtype(std::string_view text) {
  std::vector<std::string> names;
  for (const Dtype dtype : kDtypes) {
    if (to_string(dtype) == text) return dtype;
    names.emplace_back(to_string(dtype));
  }
  fail_argument("dtype: expected one of {}; found {}{}", fmt::join(names, ", "), quote(text),
                did_you_mean(text, names));
}

// The scale of "Attention Is All You Need", section 3.2.1, unless one is given.
double AttentionShape::effective_scale() const {
  return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim));
}

// KV heads are known to be positive before query heads are divided by them.
void check_shape(const AttentionShape& shape) {
  CONTEXTILE_CHECK(shape.q_heads >= 1, "attention shape: q_heads: expected at least 1, found {}",
                   shape.q_heads);
  CONTEXTILE_CHECK(shape.kv_heads >= 1, "attention shape: kv_heads: expected at least 1, found {}",
                   shape.kv_heads);
  CONTEXTILE_CHECK(shape.q_heads % shape.kv_heads == 0,
                   "attention shape: heads not divisible: expected kv_heads to divide the {} query "
                   "heads, found {} KV heads",
                   shape.q_heads, shape.kv_heads);
  check_dim("head_dim", shape.head_dim);
  check_dim("value_dim", shape.value_dim);
  CONTEXTILE_CHECK(std::ranges::find(kDtypes, shape.dtype) != kDtypes.end(),
                   "attention shape: dtype: expected f32, bf16 or f16, found number {}",
                   static_cast<int>(shape.dtype));
  CONTEXTILE_CHECK(std::isfinite(shape.scale),
                   "attention shape: scale: expected a finite number, found {}", shape.scale);
  CONTEXTILE_CHECK(std::isfinite(shape.softcap) && shape.softcap >= 0,
                   "attention shape: softcap: expected a finite number of at least 0, found {}",
                   shape.softcap);
}

std::vector<Range> sequences_from_lengths(std::span<const std::int64_t> lengths) {
  CONTEXTILE_CHECK(!lengths.empty(), "lengths: expected at least one sequence, found none");
  std::vector<Range> sequences;
  sequences.reserve(lengths.size());
  std::int64_t begin = 0;
  for (std::size_t s = 0; s < lengths.size(); ++s) {
    CONTEXTILE_CHECK(lengths[s] > 0, "lengths: index {}: expected at least 1 token, found {}", s,
                     lengths[s]);
    // The limit is compared by subtraction, because a sum of two lengths may overflow.
    CONTEXTILE_CHECK(lengths[s] <= kMaxTokens - begin,
                     "lengths: expected at most {} tokens in a batch, found more at index {} ({} "
                     "after {})",
                     kMaxTokens, s, lengths[s], begin);
    sequences.push_back({begin, begin + lengths[s]});
    begin += lengths[s];
  }
  return sequences;
}

// The name ends at the first '=', and the layers begin behind the last '@'. No rule's parameters
// contain either.
MaskUse parse_mask_use(std::string_view text) {
  MaskUse use;
  std::string_view spec = text;
  if (const std::size_t equals = spec.find('='); equals != std::string_view::npos) {
    const std::string_view name = spec.substr(0, equals);
    CONTEXTILE_CHECK(is_name(name),
                     "mask {}: expected a name of letters, digits, '_', '-' and '.' before '=', "
                     "found {}",
                     quote(text), quote(name));
    use.name = name;
    spec.remove_prefix(equals + 1);
  }
  if (const std::size_t at = spec.rfind('@'); at != std::string_view::npos) {
    const std::string_view layers = spec.substr(at + 1);
    const char* end = layers.data() + layers.size();
    const auto [stop, error] = std::from_chars(layers.data(), end, use.layers);
    CONTEXTILE_CHECK(error == std::errc() && stop == end && use.layers >= 1,
                     "mask {}: expected a number of layers of at least 1 after '@', found {}",
                     quote(text), quote(layers));
    spec = spec.substr(0, at);
  }
  use.spec = parse_mask_spec(spec);
  if (use.name.empty()) use.name = rule_name(use.spec.rule);
  return use;
}

Workload assemble_workload(std::span<const std::int64_t> lengths, const AttentionShape& shape,
                           std::span<const MaskUse> masks) {
  Workload workload;
  workload.sequences = sequences_from_lengths(lengths);
  workload.shape = shape;
  CONTEXTILE_CHECK(!masks.empty(), "workload: expected at least one mask, found none");
  // The first rule with branches sets the positions. Among rules without branches any one will do,
  // since all count positions from the begin of the sequence.
  const MaskSpec* positions = &masks.front().spec;
  for (const MaskUse& use : masks) {
    workload.masks.push_back(
        {std::string(name_of(use)), use.layers, build_mask(use.spec, workload.sequences)});
    if (!has_branches(positions->rule)) positions = &use.spec;
  }
  workload.positions = build_positions(*positions, workload.sequences);
  return workload;
}

Workload make_workload(std::span<const std::int64_t> lengths, const AttentionShape& shape,
                       std::span<const MaskUse> masks) {
  Workload workload = assemble_workload(lengths, shape, masks);
  check_workload(workload);
  return workload;
}

void drop_queries(Workload& workload, std::span<const Range> tokens) {
  CONTEXTILE_CHECK(workload.roles.empty(), "workload: expected no roles, found {}",
                   workload.roles.size());
  // The tokens that keep their queries are the gaps between those that lose them.
  std::vector<Range> kept;
  std::int64_t end = 0;
  for (const Range& range : tokens) {
    workload.roles.push_back({range, Role::kKvOnly});
    if (end < range.begin) kept.push_back({end, range.begin});
    end = range.end;
  }
  if (end < workload.num_tokens()) kept.push_back({end, workload.num_tokens()});
  // The gaps are right only if the ranges ascend, which this proves before they are used.
  check_roles(workload);
  for (NamedMask& named : workload.masks) {
    // Cuts each band to the gaps that it meets. Pieces of disjoint bands are disjoint, as are
    // pieces of one band at different queries.
    const std::vector<Band> all = std::exchange(named.mask.bands, {});
    for (const Band& band : all) {
      auto at = std::ranges::upper_bound(kept, band.q.begin, {}, &Range::end);
      for (; at != kept.end() && at->begin < band.q.end; ++at) {
        const Band seen = clip(band, *at, band.k);
        if (!seen.q.empty()) named.mask.bands.push_back(seen);
      }
    }
  }
}

// Checks in an order in which each check may rely on those before it: positions refer to sequences,
// and masks to roles.
void check_workload(const Workload& workload) {
  check_sequence_ranges(workload.sequences);
  check_shape(workload.shape);
  check_roles(workload);
  if (!workload.home.empty()) {
    check_partition(workload.home, workload.num_tokens(), "home");
    for (const auto& [tokens, owner] : workload.home) {
      CONTEXTILE_CHECK(owner.valid(),
                       "workload: home of [{}, {}): expected a rank of at least 0, found {}",
                       tokens.begin, tokens.end, owner.value);
    }
  }
  check_positions(workload);
  check_masks(workload);
}

// Q·Kᵀ takes D multiplications and as many additions per pair and query head, P·V takes Dv.
double forward_flops(std::int64_t pairs, std::int32_t q_heads, const AttentionShape& shape) {
  const double per_pair = 2.0 * q_heads * (shape.head_dim + shape.value_dim);
  return per_pair * static_cast<double>(pairs);
}

// Backward recomputes S (D), and computes dV = Pᵀ·dO and dP = dO·Vᵀ (Dv each), dQ = dS·K and dK =
// dSᵀ·Q (D each): FlashAttention-2 (arXiv 2307.08691), algorithm 2.
double backward_flops(std::int64_t pairs, std::int32_t q_heads, const AttentionShape& shape) {
  const double per_pair = 2.0 * q_heads * (3.0 * shape.head_dim + 2.0 * shape.value_dim);
  return per_pair * static_cast<double>(pairs);
}

// Blocks end on a grid that begins with the sequence, and at cuts. A cut ends a block early, but
// the next block ends at the same line of the grid as without the cut, so other blocks stay.
Blocking cut_sequences(const Workload& workload, std::int64_t block_size, BandCuts band_cuts) {
  CONTEXTILE_CHECK(block_size >= 1, "block size: expected at least 1 token, found {}", block_size);
  std::vector<std::int64_t> cuts;  // role and home boundaries, ascending
  for (const auto& [tokens, role] : workload.roles) {
    cuts.push_back(tokens.begin);
    cuts.push_back(tokens.end);
  }
  for (const HomeRange& home : workload.home) cuts.push_back(home.tokens.end);
  if (band_cuts == BandCuts::kEdges) append_band_edges(workload, block_size, cuts);
  std::ranges::sort(cuts);
  Blocking blocking;
  // Cuts and roles ascend as blocks do, so a cursor in each finds the next one.
  auto cut = cuts.begin();
  auto role = workload.roles.begin();
  for (const Range sequence : workload.sequences) {
    for (std::int64_t begin = sequence.begin; begin < sequence.end;) {
      const std::int64_t in_block = (begin - sequence.begin) % block_size;
      Range block{begin, begin + std::min(block_size - in_block, sequence.end - begin)};
      while (cut != cuts.end() && *cut <= begin) ++cut;
      if (cut != cuts.end()) block.end = std::min(block.end, *cut);
      while (role != workload.roles.end() && role->tokens.end <= begin) ++role;
      // Roles change at cuts only, so the role of the first token is that of the block.
      const bool listed = role != workload.roles.end() && role->tokens.contains(begin);
      blocking.add(block, listed ? role->role : Role::kBoth);
      begin = block.end;
    }
  }
  return blocking;
}

}  // namespace contextile
