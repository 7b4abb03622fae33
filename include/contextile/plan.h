// The plan: for every device and direction, a program of five instructions.
//
//   const Plan plan = load_plan("batch.plan");
//   const PlanStats stats = statistics(plan);
//   if (stats.forward) std::printf("%.3f\n", stats.forward->compute_imbalance);
//
// It is made once per batch and shared by all layers with the same mask. It is verified, executed,
// serialized and drawn without looking at the strategy. extend/plan_build.h makes plans, verify.h
// proves them, this header counts what they cost, and plan_file.h stores them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "contextile/base.h"
#include "contextile/cluster.h"
#include "contextile/mask.h"
#include "contextile/workload.h"

namespace contextile {

// ------------------------------------------------------------------------------ instructions

// One tile of an attention instruction. Slots index the device's slot tables of their kinds.
// Forward uses q, kv and result (= o); backward uses q, d_o, kv, result (= dq) and dkv.
struct TileOp {
  BlockId q_block;
  BlockId kv_block;
  GroupId group;
  SlotId q;
  SlotId kv;
  SlotId d_o;                // backward only
  SlotId result;             // o forward, dq backward
  SlotId dkv;                // backward only
  bool init_result = false;  // overwrite the whole slot instead of accumulating
  bool init_dkv = false;     // backward only
  std::int64_t pairs = 0;    // attended (q, k) pairs, counted once, not per head

  friend bool operator==(const TileOp&, const TileOp&) = default;
};

// One fused attention call. Its tiles act in listed order.
struct AttentionOp {
  std::vector<TileOp> tiles;
  friend bool operator==(const AttentionOp&, const AttentionOp&) = default;
};

// dst := merge (o) or sum (dq, dkv) of srcs in the listed order. dst contributes only if it is
// listed.
struct ReduceOp {
  Kind kind = Kind::kO;
  BlockId block;
  GroupId group;
  SlotId dst;
  std::vector<SlotId> srcs;
  friend bool operator==(const ReduceOp&, const ReduceOp&) = default;
};

struct CopyOp {
  Kind kind = Kind::kO;
  BlockId block;
  GroupId group;
  SlotId dst;
  SlotId src;
  friend bool operator==(const CopyOp&, const CopyOp&) = default;
};

// One end of a transfer. Elements travel as `wire`; LSE and delta always travel as f32.
struct TransferEnd {
  Kind kind = Kind::kKv;
  BlockId block;
  GroupId group;
  SlotId slot;
  Rank peer;
  Dtype wire = Dtype::kBf16;
  friend bool operator==(const TransferEnd&, const TransferEnd&) = default;
};

// Starts a group of transfers and returns. Units for one peer travel as one message, in listed
// order.
struct LaunchOp {
  std::int32_t id = 0;
  std::vector<TransferEnd> sends;
  std::vector<TransferEnd> recvs;
  friend bool operator==(const LaunchOp&, const LaunchOp&) = default;
};

// After it, the receives of launch `id` are readable and its send slots writable.
struct WaitOp {
  std::int32_t id = 0;
  friend bool operator==(const WaitOp&, const WaitOp&) = default;
};

using Instruction = std::variant<AttentionOp, ReduceOp, CopyOp, LaunchOp, WaitOp>;
[[nodiscard]] std::string_view op_name(const Instruction& instruction);  // "attention", "reduce", …

// ---------------------------------------------------------------------------------- programs

// A place in the staging arena of one kind. A row of the arena holds a token's heads of one of the
// PlanRound::head_groups. The slot number is the number of owned slots + the index.
struct StagingSlot {
  std::int64_t offset_tokens = 0;
  std::int64_t capacity_tokens = 0;
  friend bool operator==(const StagingSlot&, const StagingSlot&) = default;
};

// A unit that backward keeps from forward: the content of forward's staging slot moves to
// backward's staging slot.
struct Retain {
  Kind kind = Kind::kKv;
  SlotId slot;
  SlotId backward_slot;
  friend bool operator==(const Retain&, const Retain&) = default;
};

struct Program {
  std::array<std::vector<StagingSlot>, kNumKinds> staging;  // by kind
  std::vector<Retain> retain;                               // forward only
  std::vector<Instruction> instructions;

  [[nodiscard]] std::int64_t arena_tokens(Kind kind) const;  // largest offset + capacity
  // Returns the unit that was last received or copied into each slot.
  [[nodiscard]] std::map<std::pair<Kind, SlotId>, std::pair<BlockId, GroupId>> last_brought() const;
  friend bool operator==(const Program&, const Program&) = default;
};

struct ProgramPair {
  std::optional<Program> forward;
  std::optional<Program> backward;

  [[nodiscard]] const std::optional<Program>& of(Direction direction) const {
    return direction == Direction::kForward ? forward : backward;
  }
  friend bool operator==(const ProgramPair&, const ProgramPair&) = default;
};

struct DeviceProgram {
  // Owned blocks in local order. The owned slot of a unit is position · head_groups + group, for
  // every kind. If a block has fewer groups, its other slots do not exist.
  std::vector<BlockId> local_blocks;
  std::vector<ProgramPair> programs;  // one for each mask
  friend bool operator==(const DeviceProgram&, const DeviceProgram&) = default;
};

struct PlanRound {
  std::int32_t head_groups = 1;
  Blocking blocks;
  std::vector<Rank> owners;  // owner of every block
  // Number of head groups of every block where blocks differ, each a divisor of head_groups. Empty:
  // every block has head_groups.
  std::vector<std::int32_t> block_head_groups;
  std::vector<NamedMask> masks;        // bands on this round's tokens only
  DeviceLimits limits;                 // limits that the round claims to keep
  std::vector<DeviceProgram> devices;  // by rank

  [[nodiscard]] std::int32_t groups_of(BlockId block) const {
    return head_groups_of(head_groups, block_head_groups, block);
  }
  // Number of the round's head groups that one head group of the block spans.
  [[nodiscard]] std::int32_t parts_of(BlockId block) const {
    return head_groups / groups_of(block);
  }
  // Tokens that a unit of the block takes in a staging arena.
  [[nodiscard]] std::int64_t staged_tokens(BlockId block) const {
    return blocks.num_tokens(block) * parts_of(block);
  }
  [[nodiscard]] std::int64_t owned_tokens(Rank rank) const;
  // Returns true if any device has a program of that mask and direction.
  [[nodiscard]] bool has_direction(std::size_t mask, Direction direction) const;
  // Number of tiles, of all head groups, that the devices' programs of that mask and direction
  // list.
  [[nodiscard]] std::int64_t num_tiles(std::size_t mask, Direction direction) const;
  // The same for the direction that lists more.
  [[nodiscard]] std::int64_t most_tiles(std::size_t mask) const;
};

struct Plan {
  std::string strategy;
  std::map<std::string, std::string> options;
  AttentionShape shape;
  Dtype partial_wire = Dtype::kF32;
  std::string cluster_name;
  std::int32_t nodes = 1;
  std::int32_t devices_per_node = 1;
  std::vector<Range> sequences;
  std::vector<HomeRange> home;             // as in the workload
  std::vector<PositionSegment> positions;  // as in the workload
  std::vector<PlanRound> rounds;
  double padded_bytes_factor = 1;  // as in the arrangement
  double padded_pairs_factor = 1;
  std::uint64_t digest = 0;  // XXH3 of the canonical bytes with this field zero
  // The one rank whose local blocks and programs the plan has; those of all others are empty. Valid
  // only in plans that deserialize_slice returns. Operations that need the whole plan refuse a
  // slice (check_whole).
  Rank slice_of;

  [[nodiscard]] std::int32_t num_devices() const { return nodes * devices_per_node; }
  [[nodiscard]] std::int32_t node_of(Rank rank) const { return rank.value / devices_per_node; }
  [[nodiscard]] std::int64_t num_tokens() const {
    return sequences.empty() ? 0 : sequences.back().end;
  }
  // Returns true if any device has a program of that direction.
  [[nodiscard]] bool has_direction(Direction direction) const;
};

// Returns true if blocks of a round differ in their number of head groups.
[[nodiscard]] bool has_block_head_groups(const Plan& plan);

// Throws InvalidPlan when the plan is a slice: "simulate: expected a whole plan, found …".
void check_whole(const Plan& plan, std::string_view operation);
// Throws InvalidPlan when the plan is a slice of another rank.
void check_has_rank(const Plan& plan, Rank rank, std::string_view operation);

// -------------------------------------------------------------------------------------- plan stats
//
// Bytes moved, work and memory of a plan, counted from the plan alone.

// Memory that the executor allocates for the plan, on one device and in one direction.
struct DeviceMemory {
  std::int64_t staging_bytes = 0;      // arenas
  std::int64_t accumulator_bytes = 0;  // owned o, dq, dkv in fp32 (o with its LSE)
  std::int64_t conversion_bytes =
      0;                            // results in flight, converted to or from a narrower wire dtype
  std::int64_t retained_bytes = 0;  // kept from forward to backward, one layer

  [[nodiscard]] std::int64_t total_bytes() const {
    return staging_bytes + accumulator_bytes + conversion_bytes;
  }
};
[[nodiscard]] DeviceMemory device_memory(const Plan& plan, std::size_t round, std::size_t mask,
                                         Direction direction, Rank rank);

// Offsets of the converted transfers of each launch in the conversion buffer, in the order of its
// sends and of its recvs. Offsets are bytes; -1: not packed (the slot itself is sent or received).
struct ConversionLayout {
  std::map<std::int32_t, std::vector<std::int64_t>> send_offset_bytes;  // by launch id
  std::map<std::int32_t, std::vector<std::int64_t>> recv_offset_bytes;
  std::int64_t size_bytes = 0;
};
[[nodiscard]] ConversionLayout conversion_layout(const Plan& plan, const PlanRound& round,
                                                 const Program& program);

struct DeviceStats {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  std::int64_t inter_sent_bytes = 0;  // bytes sent to other nodes
  std::int64_t inter_received_bytes = 0;
  double flops = 0;
  std::int64_t memory_bytes = 0;  // peak memory over rounds and masks
};

// Totals of one layer of every mask, over all rounds. Bytes are counted once per transfer (at the
// sender), LSE and delta included.
struct DirectionStats {
  std::int64_t tiles = 0;
  std::int64_t pairs = 0;  // per group, summed over tiles of group 0
  std::int64_t transfers = 0;
  std::int64_t messages = 0;
  std::int64_t launches = 0;
  std::int64_t inter_bytes = 0;
  std::int64_t intra_bytes = 0;
  std::array<std::int64_t, kNumKinds> bytes_by_kind{};
  std::int64_t max_device_bytes = 0;       // largest max(sent, received)
  std::int64_t max_node_uplink_bytes = 0;  // largest max(sent, received) across node boundaries
  double flops = 0;
  double compute_imbalance = 0;  // (max - mean) / max of FLOPs, with a barrier between rounds
  double compute_overload = 0;   // max / mean - 1
  std::int64_t peak_memory_bytes = 0;
  std::int64_t retained_bytes = 0;  // of the device with the most
  std::vector<DeviceStats> devices;

  [[nodiscard]] std::int64_t total_bytes() const { return inter_bytes + intra_bytes; }
};

struct PlanStats {
  std::int64_t tokens = 0;
  double token_imbalance = 0;  // (max - mean) / max of owned tokens
  double token_overload = 0;   // max / mean - 1
  std::optional<DirectionStats> forward;
  std::optional<DirectionStats> backward;
};
[[nodiscard]] PlanStats statistics(const Plan& plan);

// Returns the FLOPs of one attention instruction of the round.
[[nodiscard]] double attention_flops(const AttentionOp& op, Direction direction,
                                     const AttentionShape& shape, const PlanRound& round);

// ------------------------------------------------------------------------------------ token layout
//
// The tokens that a rank holds, their order, and their positions in their sequences.

// Returns the token ranges of a rank's local rows, in local order, over all rounds. Throws
// InvalidArgument when the plan has no such rank.
[[nodiscard]] std::vector<Range> local_ranges(const Plan& plan, Rank rank);
// Number of those rows.
[[nodiscard]] std::int64_t num_local_tokens(const Plan& plan, Rank rank);
// Returns the global token index of every local row of a rank, in local order, over all rounds.
[[nodiscard]] std::vector<std::int64_t> local_tokens(const Plan& plan, Rank rank);

// Throw InvalidArgument, which begins with `where`, unless the plan knows positions of tokens, or
// which token follows which.
void check_knows_positions(const Plan& plan, std::string_view where);
void check_knows_order(const Plan& plan, std::string_view where);

struct TokenPosition {
  std::int64_t sequence = 0;
  std::int64_t position = 0;  // in the sequence, for RoPE
  std::int64_t token = 0;     // global index
};
// Returns the position of every local row.
[[nodiscard]] std::vector<TokenPosition> positions(const Plan& plan, Rank rank);

// Returns, for every local row, the global index of the token that it predicts: the next one of its
// position segment, or -1 for the last token of a segment. If branches part behind a row, this
// is one of several tokens; `next_tokens` has all. Throws unless the plan knows the order.
[[nodiscard]] std::vector<std::int64_t> rolled_tokens(const Plan& plan, Rank rank);

// A token that a local row predicts.
struct NextToken {
  std::int64_t row = 0;    // local
  std::int64_t token = 0;  // global index

  friend constexpr auto operator<=>(const NextToken&, const NextToken&) = default;
};
// Returns every token that a local row predicts: the next one of its position segment, and the
// first of every segment that follows it. Ascending by row, then by token. Over all ranks, these
// are all tokens but those that follow none. Throws unless the plan knows the order. O(local tokens
// + segments · log).
[[nodiscard]] std::vector<NextToken> next_tokens(const Plan& plan, Rank rank);

}  // namespace contextile
