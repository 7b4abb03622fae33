// The plan: per device and direction a program of five instructions. Made once per batch, shared by
// all layers with the same mask; verified, executed, serialized and drawn without looking at the
// strategy.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "contextile/arrangement.h"
#include "contextile/base.h"
#include "contextile/cluster.h"
#include "contextile/mask.h"
#include "contextile/workload.h"

namespace contextile {

// ------------------------------------------------------------------------------ instructions

// One tile of an attention instruction. Slots index the device's slot tables of their kinds.
// Forward uses q, kv, result (= o); backward q, d_o, kv, result (= dq), dkv.
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

// One fused attention call; tiles act in listed order.
struct AttentionOp {
  std::vector<TileOp> tiles;
  friend bool operator==(const AttentionOp&, const AttentionOp&) = default;
};

// dst := merge (o) or sum (dq, dkv) of srcs in the listed order; dst contributes only if listed.
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

// One end of a transfer. Elements travel as `wire`; LSE and delta always as f32.
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

// Receives of launch `id` are readable, its send slots writable.
struct WaitOp {
  std::int32_t id = 0;
  friend bool operator==(const WaitOp&, const WaitOp&) = default;
};

using Instruction = std::variant<AttentionOp, ReduceOp, CopyOp, LaunchOp, WaitOp>;
[[nodiscard]] std::string_view op_name(const Instruction& instruction);  // "attention", "reduce", …

// ---------------------------------------------------------------------------------- programs

// A place in the staging arena of one kind. Slot number = owned slots + index.
struct StagingSlot {
  std::int64_t offset_tokens = 0;
  std::int64_t capacity_tokens = 0;
  friend bool operator==(const StagingSlot&, const StagingSlot&) = default;
};

// Forward's staging slot survives into backward's staging slot.
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
  // Owned blocks in local order. Owned slot of a unit: position · head_groups + group, for every
  // kind.
  std::vector<BlockId> local_blocks;
  std::vector<ProgramPair> programs;  // one for each mask
  friend bool operator==(const DeviceProgram&, const DeviceProgram&) = default;
};

struct PlanRound {
  std::int32_t head_groups = 1;
  Blocking blocks;
  std::vector<Rank> owners;                        // of every block
  std::vector<NamedMask> masks;                    // bands on this round's tokens only
  std::optional<std::int64_t> token_limit;         // tokens a device may own
  std::optional<std::int64_t> memory_limit_bytes;  // of a device and direction
  std::vector<DeviceProgram> devices;              // by rank

  [[nodiscard]] std::int64_t owned_tokens(Rank rank) const;
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

  [[nodiscard]] std::int32_t num_devices() const { return nodes * devices_per_node; }
  [[nodiscard]] std::int32_t node_of(Rank rank) const { return rank.value / devices_per_node; }
  [[nodiscard]] std::int64_t num_tokens() const {
    return sequences.empty() ? 0 : sequences.back().end;
  }
};

// ----------------------------------------------------------------------------------- builder

struct BuildOptions {
  std::optional<std::int64_t> token_limit;         // recorded in the plan, proved by verify
  std::optional<std::int64_t> memory_limit_bytes;  // likewise
};

// Lowers an arrangement: buffers are placed and reused, relays and travelling results resolved,
// both directions emitted; the digest is set. Deterministic. Throws InvalidArgument naming round,
// mask, direction and unit when the arrangement contradicts itself (a tile whose input never
// arrives, a transfer whose source has nothing to send, …). O(tiles + transfers · log).
[[nodiscard]] Plan build_plan(const Workload& workload, const Cluster& cluster,
                              const Arrangement& arrangement, const BuildOptions& options = {});

// ------------------------------------------------------------------------------------ verify

struct DataMovement {  // of one direction, all rounds and masks together
  std::int64_t transfers = 0;
  std::int64_t redundant_transfers = 0;  // no attention reads the data there or further on
  std::int64_t redundant_bytes = 0;
  std::int64_t unused_by_receiver_transfers = 0;  // the receiver at most passes it on
  std::int64_t unused_by_receiver_bytes = 0;
};

struct VerifyReport {
  std::vector<std::string> violations;  // the first `max_shown`, causes before consequences
  std::int64_t num_violations = 0;
  std::vector<std::string> warnings;
  bool grouped_launches_ok = true;       // no deadlock when launches run strictly one after another
  std::array<DataMovement, 2> movement;  // by Direction; meaningful when ok()

  [[nodiscard]] bool ok() const { return num_violations == 0; }
};

struct VerifyOptions {
  std::int64_t max_shown = 50;
  // Report a deadlock of grouped launches as a violation (transports such as NCCL need its
  // absence).
  bool require_grouped_launches = true;
};

// Proves a plan: exactly once, data flow, linear partials, matching messages, no race, no deadlock,
// memory, ownership (docs/plan-format.md). Never throws on a broken plan; every violation is
// counted. Uses plan and mask types only. O(tiles + instructions · log).
[[nodiscard]] VerifyReport verify(const Plan& plan, const VerifyOptions& options = {});

// -------------------------------------------------------------------------------- statistics

// Bytes of one device and direction: what the executor allocates for the plan.
struct DeviceMemory {
  std::int64_t staging_bytes = 0;      // arenas
  std::int64_t accumulator_bytes = 0;  // owned o, dq, dkv in fp32 (o with its LSE)
  std::int64_t packing_bytes = 0;   // results converted to or from a narrower wire dtype in flight
  std::int64_t retained_bytes = 0;  // kept from forward to backward, one layer

  [[nodiscard]] std::int64_t total_bytes() const {
    return staging_bytes + accumulator_bytes + packing_bytes;
  }
};
[[nodiscard]] DeviceMemory device_memory(const Plan& plan, std::size_t round, std::size_t mask,
                                         Direction direction, Rank rank);

// Where converted transfers of each launch stand in the packing buffer: same order as sends then
// recvs. Offsets are bytes; -1: not packed (the slot itself is sent or received).
struct PackLayout {
  std::map<std::int32_t, std::vector<std::int64_t>> send_offset_bytes;  // by launch id
  std::map<std::int32_t, std::vector<std::int64_t>> recv_offset_bytes;
  std::int64_t size_bytes = 0;
};
[[nodiscard]] PackLayout pack_layout(const Plan& plan, const PlanRound& round,
                                     const Program& program);

struct DeviceStats {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  std::int64_t inter_sent_bytes = 0;  // to other nodes
  std::int64_t inter_received_bytes = 0;
  double flops = 0;
  std::int64_t memory_bytes = 0;  // peak over rounds and masks
};

// One layer of every mask, all rounds. Bytes are counted once per transfer (at the sender), LSE and
// delta included.
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
  double compute_imbalance = 0;  // (max - mean) / max of FLOPs; rounds have a barrier between
  double compute_overload = 0;   // max / mean - 1
  std::int64_t peak_memory_bytes = 0;
  std::int64_t retained_bytes = 0;  // largest device
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

// --------------------------------------------------------------------------------- plan files

// Bytes of a plan file (docs/plan-format.md). The digest in the file is plan.digest.
// Throws InvalidPlan when plan.digest is not compute_digest(plan), or ids do not fit the plan.
[[nodiscard]] std::vector<std::uint8_t> serialize(const Plan& plan);
// Throws InvalidPlan: wrong magic, version, truncation, corruption, sizes that do not fit. `where`
// names the source in messages.
[[nodiscard]] Plan deserialize(std::span<const std::uint8_t> bytes, std::string_view where);
// XXH3-64 of the canonical bytes with the digest zeroed.
[[nodiscard]] std::uint64_t compute_digest(const Plan& plan);
// "16 hex digits".
[[nodiscard]] std::string digest_text(std::uint64_t digest);

// Throws IoError (expected, found, where). Writing replaces the file atomically.
void save_plan(const Plan& plan, const std::string& path);
[[nodiscard]] Plan load_plan(const std::string& path);

// The stable JSON contract (docs/plan-format.md), streamed. With `only`, `devices` holds that rank
// alone.
void export_json(const Plan& plan, std::ostream& out, std::optional<Rank> only = std::nullopt);

}  // namespace contextile
