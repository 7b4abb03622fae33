// A batch: its sequences, attention shape and masks. It is the input of every strategy. Also the
// kinds of data that attention moves, and the directions.
//
//   const std::vector<std::int64_t> lengths = {500, 90'000, 40'572};  // tokens of each document
//   const Workload batch = make_workload(lengths, AttentionShape{}, parse_mask_use("causal"));
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contextile/base.h"
#include "contextile/mask.h"

namespace contextile {

enum class Dtype : std::uint8_t { kF32, kBf16, kF16 };

[[nodiscard]] constexpr std::int64_t bytes_per_element(Dtype dtype) {
  return dtype == Dtype::kF32 ? 4 : 2;
}
[[nodiscard]] std::string_view to_string(Dtype dtype);   // "f32", "bf16", "f16"
[[nodiscard]] Dtype parse_dtype(std::string_view text);  // throws InvalidArgument

// The shape of one attention layer. Query head h reads KV head h / (q_heads / kv_heads).
struct AttentionShape {
  std::int32_t q_heads = 32;
  std::int32_t kv_heads = 8;     // divides q_heads
  std::int32_t head_dim = 128;   // of Q and K
  std::int32_t value_dim = 128;  // of V and O
  Dtype dtype = Dtype::kBf16;    // of Q, K, V, O, dO and the returned gradients
  double scale = 0;              // factor of the scores; 0: 1/sqrt(head_dim)
  double softcap = 0;            // c in c·tanh(s/c); 0: none
  bool sink = false;             // a learnable sink logit per query head

  [[nodiscard]] double effective_scale() const;  // scale, or 1/sqrt(head_dim)
  friend bool operator==(const AttentionShape&, const AttentionShape&) = default;
};
void check_shape(const AttentionShape& shape);  // throws InvalidArgument

// A mask and the number of layers of the model that use it.
struct NamedMask {
  std::string name = "mask";
  std::int32_t layers = 1;
  Mask mask;
};

// A range of tokens that lack queries or keys. Tokens not listed have both.
struct RoleRange {
  Range tokens;
  Role role = Role::kBoth;
};

// A range of tokens and the device that already holds it. The ranges of a workload partition the
// batch, in ascending order.
struct HomeRange {
  Range tokens;
  Rank owner;
};

// One batch. Tokens are 0 … T-1; sequences are laid end to end in input order.
struct Workload {
  std::vector<Range> sequences;  // non-empty, sequences[i].end == sequences[i + 1].begin
  AttentionShape shape;
  std::vector<NamedMask> masks;            // at least one; names differ
  std::vector<RoleRange> roles;            // ascending, disjoint; usually empty
  std::vector<HomeRange> home;             // empty: the plan chooses owners
  std::vector<PositionSegment> positions;  // ascending, partition the batch

  [[nodiscard]] std::int64_t num_tokens() const {
    return sequences.empty() ? 0 : sequences.back().end;
  }
};

// Returns the ranges of sequences that are laid end to end. Throws InvalidArgument on an empty
// list, a length that is not positive (naming its index), or more than kMaxTokens tokens.
[[nodiscard]] std::vector<Range> sequences_from_lengths(std::span<const std::int64_t> lengths);

// One mask of a workload that is to be built: a rule applied to every sequence.
struct MaskUse {
  std::string name;  // empty: the rule's own name
  std::int32_t layers = 1;
  MaskSpec spec;
};
// Parses the program's "--mask [NAME=]SPEC[@LAYERS]".
[[nodiscard]] MaskUse parse_mask_use(std::string_view text);

// Makes a workload of one or more rules over a packed batch: the usual case. Positions are those of
// the first mask whose rule sets any (shared_question, tree), else the position in the sequence.
[[nodiscard]] Workload make_workload(std::span<const std::int64_t> lengths,
                                     const AttentionShape& shape, std::span<const MaskUse> masks);
// The same with one rule, by default causal.
[[nodiscard]] inline Workload make_workload(std::span<const std::int64_t> lengths,
                                            const AttentionShape& shape, const MaskUse& mask = {}) {
  return make_workload(lengths, shape, std::span(&mask, 1));
}

// Removes the queries of tokens that are cached, or that another part of the batch computes. They
// get the role kKvOnly, and every mask loses their rows. `tokens` must be ascending and disjoint,
// and the workload must have no roles yet; throws InvalidArgument otherwise. O(bands · log + bands
// that remain).
void drop_queries(Workload& workload, std::span<const Range> tokens);

// Gives the tokens of a batch positions of their own, one each. A sequence keeps its order if these
// are the positions that its rules set, and is in the order in which it is stored if they count
// from 0. In other sequences which token follows which is not known (kOrderUnknown). Throws
// InvalidArgument for another number of positions, or one outside 0 … kMaxTokens. O(T).
void set_positions(Workload& workload, std::span<const std::int64_t> positions_T);

// Proves every invariant stated above, disjointness of bands included. Throws InvalidArgument.
void check_workload(const Workload& workload);

// The kind of data that a slot holds and a transfer moves, for one token block and head group.
enum class Kind : std::uint8_t {
  kQ,    // queries
  kKv,   // keys and values
  kO,    // output rows and LSE (natural log, -inf on an empty row)
  kDo,   // dO, final LSE, delta
  kDq,   // gradient of queries
  kDkv,  // gradients of keys and values
};
inline constexpr int kNumKinds = 6;

enum class Direction : std::uint8_t { kForward, kBackward };
inline constexpr std::array<Direction, 2> kDirections = {Direction::kForward, Direction::kBackward};

[[nodiscard]] std::string_view to_string(Kind kind);            // "q", "kv", "o", "do", "dq", "dkv"
[[nodiscard]] std::string_view to_string(Direction direction);  // "forward", "backward"

// Returns true for results (o, dq, dkv), which are partial until they hold all tiles of their unit.
// Inputs are read only.
[[nodiscard]] constexpr bool is_result(Kind kind) {
  return kind == Kind::kO || kind == Kind::kDq || kind == Kind::kDkv;
}
// Returns true for kv and dkv, which belong to a tile's kv block; all others belong to its query
// block.
[[nodiscard]] constexpr bool is_of_kv(Kind kind) { return kind == Kind::kKv || kind == Kind::kDkv; }
// Returns true if the kind occurs in the direction: q, kv, o in forward; q, kv, do, dq, dkv in
// backward.
[[nodiscard]] constexpr bool occurs_in(Kind kind, Direction direction) {
  return kind == Kind::kQ || kind == Kind::kKv ||
         (kind == Kind::kO) == (direction == Direction::kForward);
}
// Returns true if tokens of this role have the kind at all.
[[nodiscard]] constexpr bool role_has(Role role, Kind kind) {
  return role == Role::kBoth || (role == Role::kKvOnly) == is_of_kv(kind);
}

// Returns the bytes of one unit of `tokens` tokens when a group has q_heads/G and kv_heads/G heads
// and elements travel as `wire`. LSE and delta are 4 bytes each, whatever the wire.
[[nodiscard]] std::int64_t unit_bytes(Kind kind, std::int64_t tokens, const AttentionShape& shape,
                                      std::int32_t head_groups, Dtype wire);

// Number of head groups that a block is split into: the entry of `of_block`, or `head_groups` if
// `of_block` is empty.
[[nodiscard]] inline std::int32_t head_groups_of(std::int32_t head_groups,
                                                 std::span<const std::int32_t> of_block,
                                                 BlockId block) {
  return block.index() < of_block.size() ? of_block[block.index()] : head_groups;
}

// Forward FLOPs of `pairs` attended pairs over `q_heads` heads: 2·pairs·q_heads·(D + Dv).
[[nodiscard]] double forward_flops(std::int64_t pairs, std::int32_t q_heads,
                                   const AttentionShape& shape);
// Backward FLOPs: 2·pairs·q_heads·(3D + 2Dv), which is 2.5 x forward when D = Dv.
[[nodiscard]] double backward_flops(std::int64_t pairs, std::int32_t q_heads,
                                    const AttentionShape& shape);

// Controls whether blocks also end where bands of the masks end.
enum class BandCuts : std::uint8_t {
  kNone,
  // Blocks end there in sequences of two whole blocks and more whose masks have fewer such places
  // than the sequence has whole blocks. A block then holds no rows or keys that most of its tiles
  // do not touch: 64 sink tokens, the last rows of causal_blockwise and a shared question travel
  // without their neighbours.
  kEdges,
};

// Cuts every sequence into ceil(L / block_size) blocks, the last one short. Blocks also end at role
// and home boundaries and, if requested, at band edges. This is the plain blocking for strategies
// that need no other. O(blocks + bands · log).
[[nodiscard]] Blocking cut_sequences(const Workload& workload, std::int64_t block_size,
                                     BandCuts band_cuts = BandCuts::kNone);

}  // namespace contextile
