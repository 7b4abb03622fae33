// Masks as lists of disjoint bands, token blocks, and the tiles where the two meet.
//
// Everything here costs O(bands), O(blocks) or O(tiles), never O(tokens²) and never O(blocks²).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/base.h"

namespace contextile {

// No bound on k - q. Larger than any difference of token indices the library accepts.
inline constexpr std::int64_t kUnbounded = std::int64_t{1} << 40;
// Largest number of tokens in one batch; its square, the most pairs of a mask, fits in 64 bits.
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 31;

// Query q attends key k iff q in [q.begin, q.end), k in [k.begin, k.end) and lo <= k - q <= hi.
// Global token indices. lo <= -kUnbounded and hi >= kUnbounded mean "no bound".
struct Band {
  Range q;
  Range k;
  std::int64_t lo = -kUnbounded;
  std::int64_t hi = kUnbounded;

  friend constexpr auto operator<=>(const Band&, const Band&) = default;
};

// Attended (q, k) pairs of a band whose ranges lie in [0, kMaxTokens), in closed form: O(1), exact.
[[nodiscard]] std::int64_t num_pairs(const Band& band);

// The band restricted to q x k, its ranges shrunk until every row and every column holds a pair.
// An empty result has empty ranges. lo and hi are kept. O(1).
[[nodiscard]] Band clip(const Band& band, Range q, Range k);

// A set of (query, key) pairs as pairwise disjoint bands. The struct does not enforce disjointness;
// builders return disjoint bands and `check_mask` proves it for anything that comes from outside.
struct Mask {
  std::vector<Band> bands;

  [[nodiscard]] std::int64_t num_pairs() const;  // sum over bands
};

// Two bands (indices, the smaller first) that share a (q, k) pair, or nothing: the two that a sweep
// over ascending queries meets first. O(B log B), however the bands lie.
[[nodiscard]] std::optional<std::pair<std::size_t, std::size_t>> find_overlap(
    std::span<const Band> bands);

// Throws InvalidArgument unless every band lies in [0, num_tokens)², and no two share a pair.
void check_mask(const Mask& mask, std::int64_t num_tokens);

// The mask restricted to pairs whose query and key are both in `tokens` (sorted, disjoint ranges,
// else InvalidArgument). Used to give each round of a plan its own share. O(pieces).
[[nodiscard]] Mask restrict(const Mask& mask, std::span<const Range> tokens);

// ------------------------------------------------------------------------------------ builders

// RoPE position of tokens: token t of `tokens` sits at first_position + (t - tokens.begin).
struct PositionSegment {
  Range tokens;
  std::int64_t sequence = 0;        // index of the sequence
  std::int64_t first_position = 0;  // position in the sequence of tokens.begin

  friend constexpr auto operator<=>(const PositionSegment&, const PositionSegment&) = default;
};

// One mask rule with its parameters, applied to each sequence on its own.
struct MaskSpec {
  enum class Rule : std::uint8_t {
    kFull,           // every token of the sequence
    kCausal,         // [0, i]
    kSlidingWindow,  // the last `window` keys including itself
    kLambda,  // the first `sink` keys and the last `window` keys (Lambda-shaped, StreamingLLM)
    kCausalBlockwise,  // DCP §7: sink blocks, window blocks, dense last block
    kSharedQuestion,   // DCP §7: a question all answers see; an answer sees itself causally
    kPrefixLm,         // every row sees the first `prefix` keys, then causal
    kChunked,          // causal inside chunks of `chunk` tokens
  };
  Rule rule = Rule::kCausal;
  std::int64_t window = 4096;  // tokens (sliding_window, lambda) or blocks (causal_blockwise)
  std::int64_t sink = 64;      // tokens (lambda) or blocks (causal_blockwise)
  std::int64_t block = 256;    // tokens (causal_blockwise)
  double fraction = 0.2;       // question's share of the sequence (shared_question)
  std::int64_t answers = 4;    // number of answers (shared_question)
  // shared_question with given lengths: question first, then every answer; they sum to the
  // sequence's length. Empty: use fraction and answers.
  std::vector<std::int64_t> lengths{};
  std::int64_t prefix = 0;  // tokens (prefix_lm)
  std::int64_t chunk = 0;   // tokens (chunked)
};

// Parses "causal", "lambda:64,4096", … (the CLI's --mask); also "shared_question:[Q,A1,A2,…]" for
// given lengths. Throws InvalidArgument: an unknown rule with the list of rules, a parameter with
// its limits.
[[nodiscard]] MaskSpec parse_mask_spec(std::string_view text);
// The inverse: a text that parses to the same spec.
[[nodiscard]] std::string to_string(const MaskSpec& spec);
// Every rule with its parameters, one per line, for help texts.
[[nodiscard]] std::string mask_spec_help();

// The rule applied to every sequence (non-empty ranges, ascending, disjoint). Bands come out
// disjoint, tight, ordered by their first query. A few bands a sequence, one a chunk for `chunked`;
// O(bands). The builders here throw InvalidArgument on bad parameters and bad sequences.
[[nodiscard]] Mask build_mask(const MaskSpec& spec, std::span<const Range> sequences);
// Whether the first `tokens` tokens of a longer sequence attend just what they would attend as a
// sequence of their own.
[[nodiscard]] bool stands_alone(const MaskSpec& spec, std::int64_t tokens);
// A different rule for each sequence: specs.size() == sequences.size().
[[nodiscard]] Mask build_document_mask(std::span<const MaskSpec> specs,
                                       std::span<const Range> sequences);
// Positions the rule implies: one segment per sequence; of a shared question one for the question
// and one for every answer, and each answer restarts at the question's end.
[[nodiscard]] std::vector<PositionSegment> build_positions(const MaskSpec& spec,
                                                           std::span<const Range> sequences);

// rows[q] = key ranges of query q, in any order, disjoint in a row. Consecutive rows whose edges
// stay or move by one share a band: a band comes back as one. O(R log R) for R ranges in all.
// Throws InvalidArgument naming the row of an empty range, one outside [0, kMaxTokens), or two that
// overlap.
[[nodiscard]] Mask mask_from_row_ranges(std::span<const std::vector<Range>> rows);
// dense[q * num_keys + k] != 0 iff q attends k. Throws InvalidArgument when the sizes do not fit.
[[nodiscard]] Mask mask_from_dense(std::span<const std::uint8_t> dense, std::int64_t num_queries,
                                   std::int64_t num_keys);

// MagiAttention's form: a list of (q range, k range, type) whose pairs are disjoint.
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
// Throws InvalidArgument naming two slices that share a pair, or one outside [0, kMaxTokens).
[[nodiscard]] Mask mask_from_slices(std::span<const Slice> slices);

// ------------------------------------------------------------------------------------ blocks

// Which tensors a block's tokens have.
enum class Role : std::uint8_t {
  kBoth,
  kKvOnly,  // cached prefix: keys and values, no queries
  kQOnly,   // queries only
};

// Token blocks: each an ordered list of disjoint ranges; the unit of ownership. A block's rows are
// its ranges in listed order.
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

// One range of a block, and where its rows begin.
struct RangeOfBlock {
  Range tokens;
  BlockId block;
  std::int64_t first_row = 0;  // row of tokens.begin inside the block
};
// All ranges of a blocking, sorted by tokens.begin. Throws InvalidArgument naming two blocks that
// share a token.
[[nodiscard]] std::vector<RangeOfBlock> sorted_ranges(const Blocking& blocking);

// ------------------------------------------------------------------------------------ tiles

// A computation block: every attended pair of q_block x kv_block.
struct Tile {
  BlockId q_block;
  BlockId kv_block;
  std::int64_t pairs = 0;  // attended (q, k) pairs, > 0

  friend auto operator<=>(const Tile&, const Tile&) = default;
};

// A band in a tile's own rows: query row q (0 … rows of q_block) attends key row k iff q in q, k in
// k and lo <= k - q <= hi.
using LocalBand = Band;

// What a band of a tile costs to compute by.
struct TilePiece {
  Range q;                 // rows of q_block
  std::int64_t keys = 0;   // columns
  std::int64_t pairs = 0;  // attended of them
};

enum class TileCover : std::uint8_t { kEmpty, kPartial, kFull };

// Where one mask meets one blocking.
class TileIndex {
 public:
  // The blocking may cover only some of the mask's tokens; pairs outside are ignored. The mask's
  // bands are disjoint. Throws InvalidArgument when two blocks share a token, or when bands meet
  // more ranges of query blocks than memory would hold (2^26).
  TileIndex(const Mask& mask, const Blocking& blocking);

  // Every non-empty tile, ordered by (q_block, kv_block). O(tiles + bands + pieces).
  [[nodiscard]] std::vector<Tile> tiles() const;
  // The same, or nothing when they are more than `limit`.
  [[nodiscard]] std::optional<std::vector<Tile>> tiles_up_to(std::int64_t limit) const;

  // How many pieces tiles() adds up, at least one a tile: a band cut to a range of a query block
  // and one of a key block. Costs a binary search per band and range of a query block.
  [[nodiscard]] std::int64_t num_pieces() const;

  // Appends mask ∩ (q_block x kv_block) as bands over local rows, ordered by (q range, k range);
  // returns their pairs.
  std::int64_t append_bands(BlockId q_block, BlockId kv_block, std::vector<LocalBand>& out) const;

  // Appends what the same bands are made of, in no order: cheaper than the bands. Rectangles of the
  // same queries may be one piece of all their keys.
  void append_pieces(BlockId q_block, BlockId kv_block, std::vector<TilePiece>& out) const;

  // kFull iff every query of q_block attends every key of kv_block. Costs what append_bands does.
  [[nodiscard]] TileCover cover(BlockId q_block, BlockId kv_block) const;

 private:
  struct Incidence {                // a band that meets a range of a query block
    Band band;                      // restricted to the range's queries
    std::int64_t row_shift = 0;     // local row = token - row_shift
    std::uint32_t first_range = 0;  // of by_token_: those that meet band.k
    std::uint32_t last_range = 0;   // exclusive
  };

  void add_incidences(std::span<const Band> bands);
  void add_incidences_of(const Band& tight, std::vector<std::size_t>& next);
  void order_incidences();
  void group_ranges_by_block();
  void check_block(BlockId block) const;
  // Calls visit(piece, incidence, range of kv_block) for every non-empty band ∩ range.
  template <typename Visit>
  void for_each_piece(BlockId q_block, BlockId kv_block, Visit visit) const;

  std::vector<RangeOfBlock> by_token_;             // sorted by first token
  std::vector<RangeOfBlock> ranges_of_block_;      // grouped by block, ascending tokens
  std::vector<std::size_t> first_range_of_block_;  // into ranges_of_block_
  std::vector<std::uint32_t> tokens_of_range_;     // beside by_token_, as the next: what tiles()
  std::vector<BlockId> block_of_range_;            // reads of every piece; kMaxTokens fit
  std::vector<Incidence> incidences_;              // grouped by q block, ascending band.k.begin
  std::vector<std::int64_t> reach_;                // beside incidences_: the largest band.k.end of
                                                   // this and the block's earlier ones
  std::vector<std::size_t> first_incidence_;       // of each q block
  std::vector<std::int64_t> num_tokens_;           // of each block
};

}  // namespace contextile
