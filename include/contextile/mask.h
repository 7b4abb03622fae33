// Masks as lists of disjoint bands, token blocks, and the tiles in which the two meet.
//
//   const std::vector<Range> sequences = {{0, 500}, {500, 4096}};
//   const Mask mask = build_mask(parse_mask_spec("sliding_window:1024"), sequences);
//   const std::int64_t pairs = mask.num_pairs();
//
// Everything here costs O(bands), O(blocks) or O(tiles), never O(tokens²) and never O(blocks²).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// Stands for "no bound" on k - q. It is larger than any difference of token indices the library
// accepts.
inline constexpr std::int64_t kUnbounded = std::int64_t{1} << 40;
// Largest number of tokens in one batch; its square, the most pairs of a mask, fits in 64 bits.
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;

// A set of attended pairs: query q attends key k iff q in [q.begin, q.end), k in [k.begin, k.end)
// and lo <= k - q <= hi. Indices are global token indices. lo <= -kUnbounded and hi >= kUnbounded
// mean "no bound".
struct Band {
  Range q;
  Range k;
  std::int64_t lo = -kUnbounded;
  std::int64_t hi = kUnbounded;

  friend constexpr auto operator<=>(const Band&, const Band&) = default;
};

// Number of attended (q, k) pairs of a band whose ranges lie in [0, kMaxTokens). A closed form:
// O(1), exact.
[[nodiscard]] std::int64_t num_pairs(const Band& band);

// Returns the band restricted to q x k, with its ranges shrunk until every row and every column
// holds a pair. An empty result has empty ranges. lo and hi are kept. O(1).
[[nodiscard]] Band clip(const Band& band, Range q, Range k);

// A set of (query, key) pairs as pairwise disjoint bands. The struct does not enforce disjointness;
// builders return disjoint bands and `check_mask` proves it for anything that comes from outside.
struct Mask {
  std::vector<Band> bands;

  [[nodiscard]] std::int64_t num_pairs() const;  // sum over bands
};

// Returns the indices of two bands that share a (q, k) pair, the smaller first, or nothing. They
// are the two that a sweep over ascending queries meets first. O(B log B), however the bands lie.
[[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> find_overlap(
    std::span<const Band> bands);

// Throws InvalidArgument unless every band lies in [0, num_tokens)², and no two share a pair.
void check_mask(const Mask& mask, std::int64_t num_tokens);

// Returns the mask restricted to pairs whose query and key are both in `tokens` (sorted, disjoint
// ranges, otherwise throws InvalidArgument). It gives each round of a plan its own share.
// O(pieces).
[[nodiscard]] Mask restrict(const Mask& mask, std::span<const Range> tokens);

// ------------------------------------------------------------------------------------ builders

// Stand in place of the token that a position segment follows.
inline constexpr std::int64_t kFollowsNone = -1;  // the segment begins a sequence or a document
// Positions are those that were given; which token follows which is not known.
inline constexpr std::int64_t kOrderUnknown = -2;
// No mask tells positions either. The segment is a document in the order in which it is stored.
inline constexpr std::int64_t kPositionsUnknown = -3;

// The RoPE positions of a range of tokens: token t of `tokens` has position first_position + (t -
// tokens.begin). Tokens of a segment follow one another. The first token of a segment does not
// follow the one that is stored before it. It begins a sequence, a document inside a sequence, or a
// branch, such as an answer to a shared question.
struct PositionSegment {
  Range tokens;
  std::int64_t sequence = 0;        // index of the sequence
  std::int64_t first_position = 0;  // position in the sequence of tokens.begin
  // The earlier token of the sequence that a branch follows, whose position is one less; or one of
  // the numbers above.
  std::int64_t follows = kFollowsNone;

  friend constexpr auto operator<=>(const PositionSegment&, const PositionSegment&) = default;
};

// One mask rule with its parameters, applied to each sequence separately.
struct MaskSpec {
  enum class Rule : std::uint8_t {
    kFull,             // every token of the sequence
    kCausal,           // [0, i]
    kSlidingWindow,    // the last `window` keys including itself
    kLambda,           // the first `sink` and the last `window` keys (Lambda-shaped, StreamingLLM)
    kCausalBlockwise,  // DCP §7: sink blocks, window blocks, dense last block
    kSharedQuestion,   // DCP §7: a question all answers see; an answer sees itself causally
    kPrefixLm,         // every row sees the first `prefix` keys, then causal
    kChunked,          // causal inside chunks of `chunk` tokens
    kTree,             // segments of a tree see their ancestors, and themselves causally
  };
  Rule rule = Rule::kCausal;
  std::int64_t window = 4096;  // tokens (sliding_window, lambda) or blocks (causal_blockwise)
  std::int64_t sink = 64;      // tokens (lambda) or blocks (causal_blockwise)
  std::int64_t block = 256;    // tokens (causal_blockwise)
  double fraction = 0.2;       // question's share of the sequence (shared_question)
  std::int64_t answers = 4;    // number of answers (shared_question)
  // shared_question with given lengths: those of the question, then of every answer. They sum to
  // the length of the sequence. Empty: use fraction and answers.
  // tree: those of its segments, in the order in which they are stored. They sum to that length,
  // too.
  std::vector<std::int64_t> lengths{};
  std::int64_t prefix = 0;  // tokens (prefix_lm)
  std::int64_t chunk = 0;   // tokens (chunked)
  // tree: the index of the parent of every segment, which is stored before it; -1 for the root,
  // which is the first.
  std::vector<std::int64_t> parents{};
};

// Parses "causal", "lambda:64,4096", … (the program's --mask), "shared_question:[Q,A1,A2,…]" for
// given lengths, and "tree:[L0,L1,…],[-1,P1,…]". Throws InvalidArgument: for an unknown rule with
// the list of rules, for a parameter with its limits.
[[nodiscard]] MaskSpec parse_mask_spec(std::string_view text);
// The inverse: returns a text that parses to the same spec.
[[nodiscard]] std::string to_string(const MaskSpec& spec);
// Lists every rule with its parameters, one per line, for help texts.
[[nodiscard]] std::string mask_spec_help();

// Builds the mask of a rule applied to every sequence (non-empty ranges, ascending, disjoint).
// Bands come out disjoint, tight and ordered by their first query. There are a few bands per
// sequence, one per chunk for `chunked`, and for `tree` at most one per segment if segments are
// stored depth first, otherwise one per segment and ancestor. O(bands · log). The builders here
// throw InvalidArgument on bad parameters and bad sequences.
[[nodiscard]] Mask build_mask(const MaskSpec& spec, std::span<const Range> sequences);
// Returns true if the first `tokens` tokens of a longer sequence attend exactly what they would
// attend as a sequence of their own.
[[nodiscard]] bool stands_alone(const MaskSpec& spec, std::int64_t tokens);
// The same with a different rule for each sequence: specs.size() == sequences.size().
[[nodiscard]] Mask build_document_mask(std::span<const MaskSpec> specs,
                                       std::span<const Range> sequences);
// Returns the positions that the rule implies, one segment per sequence. A shared question has one
// segment for the question with its first answer, and one for every other answer. Each answer
// begins at the question's end. A tree has a segment for its root, and one for every other segment
// that is not stored right behind its parent. A token's position is its depth.
[[nodiscard]] std::vector<PositionSegment> build_positions(const MaskSpec& spec,
                                                           std::span<const Range> sequences);
// Returns the positions that masks without a rule imply, all of them masks of the same batch:
//  * A document begins at every token that no pair of any mask joins to the tokens before it.
//    Positions restart there.
//  * A document is a tree if, under one of the masks, each of its tokens attends itself and the
//    keys of the token that it follows. A branch begins at a token that no mask lets attend the
//    token stored before it. It follows the last key before it.
//  * All other tokens follow the token stored before them. A document in which some do not attend
//    it has kPositionsUnknown.
// O(T + B log B) for T tokens and B bands, plus the pairs of a branch and a band that meet.
[[nodiscard]] std::vector<PositionSegment> infer_positions(std::span<const Mask* const> masks,
                                                           std::span<const Range> sequences);

// Several token lists that share beginnings, as one sequence that stores shared tokens once.
struct TokenTree {
  std::vector<std::int64_t> tokens;  // of the sequence, depth first
  MaskSpec mask;                     // a tree, whose segments end where branches part or end
  std::vector<std::vector<Range>> branches;  // where each list's tokens are, in order
};
// Builds the tree of token lists, such as a prompt with each of its answers. Branches that part at
// a token are stored in the order of the lists. O(tokens of all lists · log). Throws
// InvalidArgument for an empty list, and for lists that do not begin with the same token: these are
// other sequences.
[[nodiscard]] TokenTree build_token_tree(std::span<const std::vector<std::int64_t>> branches);

// Builds a mask from rows: rows[q] holds the key ranges of query q, in any order, disjoint within a
// row. Consecutive rows whose edges stay or move by one share a band, so the rows of one band
// become one band again. O(R log R) for R ranges in all. Throws InvalidArgument naming the row of
// an empty range, of a range outside [0, kMaxTokens), or of two ranges that overlap.
[[nodiscard]] Mask mask_from_row_ranges(std::span<const std::vector<Range>> rows);
// Builds a mask from a dense array: dense[q * num_keys + k] != 0 iff q attends k. Throws
// InvalidArgument when the sizes do not fit.
[[nodiscard]] Mask mask_from_dense(std::span<const std::uint8_t> dense, std::int64_t num_queries,
                                   std::int64_t num_keys);

// MagiAttention's form of masks: a list of (q range, k range, type) whose pairs are disjoint.
enum class SliceType : std::uint8_t {
  kFull,
  kCausal,         // aligned bottom right: k - k.end <= q - q.end
  kInverseCausal,  // aligned top left: k - k.begin >= q - q.begin
  kBiCausal,       // both
};
struct Slice {
  Range q;
  Range k;
  SliceType type = SliceType::kFull;
};
// Throws InvalidArgument naming two slices that share a pair, or one slice outside [0, kMaxTokens).
[[nodiscard]] Mask mask_from_slices(std::span<const Slice> slices);

// ------------------------------------------------------------------------------------ blocks

// Says which tensors the tokens of a block have.
enum class Role : std::uint8_t {
  kBoth,
  kKvOnly,  // cached prefix: keys and values, no queries
  kQOnly,   // queries only
};

// Token blocks, the unit of ownership. Each block is an ordered list of disjoint ranges, and its
// rows are its ranges in listed order.
class Blocking {
 public:
  // Appends a block; ranges must be non-empty (throws InvalidArgument otherwise).
  BlockId add(std::span<const Range> ranges, Role role = Role::kBoth);
  BlockId add(Range range, Role role = Role::kBoth) { return add({&range, 1}, role); }

  [[nodiscard]] std::int32_t num_blocks() const { return static_cast<std::int32_t>(roles_.size()); }
  [[nodiscard]] std::span<const Range> ranges(BlockId block) const {
    const std::size_t first = first_[block.index()];
    return {ranges_.data() + first, first_[block.index() + 1] - first};
  }
  [[nodiscard]] std::int64_t num_tokens(BlockId block) const { return num_tokens_[block.index()]; }
  [[nodiscard]] Role role(BlockId block) const { return roles_[block.index()]; }
  [[nodiscard]] std::size_t num_ranges() const { return ranges_.size(); }
  [[nodiscard]] std::int64_t total_tokens() const;

  friend bool operator==(const Blocking&, const Blocking&) = default;

 private:
  std::vector<Range> ranges_;
  std::vector<std::size_t> first_{0};  // ranges of block b: [first_[b], first_[b + 1])
  std::vector<std::int64_t> num_tokens_;
  std::vector<Role> roles_;
};

// One range of a block, and the row where it begins.
struct RangeOfBlock {
  Range tokens;
  BlockId block;
  std::int64_t first_row = 0;  // row of tokens.begin inside the block
};
// Returns all ranges of a blocking, sorted by tokens.begin. Throws InvalidArgument naming two
// blocks that share a token.
[[nodiscard]] std::vector<RangeOfBlock> sorted_ranges(const Blocking& blocking);

// ------------------------------------------------------------------------------------ tiles

// A computation block: all attended pairs of q_block x kv_block.
struct Tile {
  BlockId q_block;
  BlockId kv_block;
  std::int64_t pairs = 0;  // attended (q, k) pairs, > 0

  friend auto operator<=>(const Tile&, const Tile&) = default;
};

// A band in the rows of a tile: query row r (0 … rows of q_block) attends key row c iff r in q, c
// in k and lo <= c - r <= hi.
using LocalBand = Band;

// The part of a tile that one band covers, as far as its cost depends on it.
struct TilePiece {
  Range q;                 // rows of q_block
  std::int64_t keys = 0;   // columns
  std::int64_t pairs = 0;  // attended pairs among q x keys
};

enum class TileCover : std::uint8_t { kEmpty, kPartial, kFull };

// The tiles in which one mask meets one blocking.
class TileIndex {
 public:
  // The blocking may cover only some of the mask's tokens; pairs outside are ignored. The bands of
  // the mask must be disjoint. Throws InvalidArgument when two blocks share a token, or when bands
  // meet more ranges of query blocks than memory would hold (2^26).
  TileIndex(const Mask& mask, const Blocking& blocking);

  // Returns every non-empty tile, ordered by (q_block, kv_block). O(tiles + bands + pieces).
  [[nodiscard]] std::vector<Tile> tiles() const;
  // The same, or nothing when there are more than `limit` tiles.
  [[nodiscard]] std::optional<std::vector<Tile>> tiles_up_to(std::int64_t limit) const;

  // Number of pieces that tiles() adds up, at least one per tile. A piece is a band cut to a range
  // of a query block and a range of a key block. Costs a binary search per band and range of a
  // query block.
  [[nodiscard]] std::int64_t num_pieces() const;

  // Appends mask ∩ (q_block x kv_block) as bands over local rows, ordered by (q range, k range),
  // and returns the number of their pairs.
  std::int64_t append_bands(BlockId q_block, BlockId kv_block, std::vector<LocalBand>& out) const;

  // Appends the pieces of the same bands, in no particular order; cheaper than append_bands.
  // Rectangles of the same queries may be merged into one piece of all their keys.
  void append_pieces(BlockId q_block, BlockId kv_block, std::vector<TilePiece>& out) const;

  // Returns kFull iff every query of q_block attends every key of kv_block. Costs as much as
  // append_bands.
  [[nodiscard]] TileCover cover(BlockId q_block, BlockId kv_block) const;

 private:
  // A range of tokens in half the bytes; kMaxTokens fit.
  struct ShortRange {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;

    static ShortRange of(Range tokens) {
      return {static_cast<std::uint32_t>(tokens.begin), static_cast<std::uint32_t>(tokens.end)};
    }
    [[nodiscard]] Range range() const { return {begin, end}; }
  };
  // A range of a block, and the row where it begins.
  struct KeyRange {
    ShortRange tokens;
    std::uint32_t first_row = 0;
  };
  // A tight band that meets a range of a query block, restricted to the range's queries.
  struct Incidence {
    ShortRange q;
    ShortRange k;
    ShortRange whole;             // keys that every query attends: none if it ends before it begins
    std::uint32_t first_row = 0;  // local row of q.begin
    std::uint32_t first_range = 0;  // index in by_token_ of the first range that meets k
    std::uint32_t last_range = 0;   // exclusive
    std::int64_t lo = 0;
    std::int64_t hi = 0;

    [[nodiscard]] Band band() const { return {q.range(), k.range(), lo, hi}; }
  };

  void add_incidences(std::span<const Band> bands);
  void add_incidences_of(const Band& tight, std::vector<std::size_t>& next);
  void order_incidences();
  void group_ranges_by_block();
  void check_block(BlockId block) const;
  template <typename Visit>
  void for_each_meeting(BlockId q_block, BlockId kv_block, Visit visit) const;
  template <typename Visit>
  void for_each_piece(BlockId q_block, BlockId kv_block, Visit visit) const;

  std::vector<RangeOfBlock> by_token_;             // sorted by first token
  std::vector<KeyRange> ranges_of_block_;          // grouped by block, ascending tokens
  std::vector<std::size_t> first_range_of_block_;  // into ranges_of_block_
  std::vector<std::uint32_t> tokens_of_range_;     // of by_token_: what tiles() reads of
  std::vector<BlockId> block_of_range_;            // every piece; kMaxTokens fit
  std::vector<Incidence> incidences_;              // grouped by q block, ascending k.begin
  std::vector<std::uint32_t> reach_;               // for each of incidences_, the largest k.end of
                                                   // it and the block's earlier ones
  std::vector<std::size_t> first_incidence_;       // of each q block
  std::vector<std::int64_t> num_tokens_;           // of each block
};

}  // namespace contextile
