#include "runtime/executor/check_program.h"

#include <map>
#include <string>

#include "base/check.h"
#include "runtime/executor/prepared_plan.h"

namespace contextile {
namespace {

// The access of an instruction to a slot. Owned inputs are the caller's tensors and are read only.
enum class Access : std::uint8_t { kRead, kWrite };

// Checks one program of one rank in program order. It holds every index against its table and every
// unit against its slot, and it follows launches to their waits. It does not follow the contents of
// slots, so a program that passes may still compute nonsense.
class ProgramCheck {
 public:
  ProgramCheck(const Plan& plan, const PlanRound& round, const Program& program,
               Direction direction, Rank rank, std::string_view where)
      : plan_(plan),
        round_(round),
        program_(program),
        direction_(direction),
        rank_(rank),
        blocks_(round.devices[rank.index()].local_blocks),
        where_(where) {}

  void run() {
    // Staging comes first, because the checks of units compare with the capacities of its slots.
    check_staging();
    for (at_ = 0; at_ < program_.instructions.size(); ++at_) {
      std::visit([this](const auto& op) { check(op); }, program_.instructions[at_]);
    }
    // A launch without a wait would leave messages under way after the program has ended.
    for (const auto& [id, waited] : launches_) {
      if (!waited) fail_plan("{}: expected a wait for launch {}, found none", where_, id);
    }
  }

  // Checks a unit and its slot. The block is checked before the tables that it indexes are read:
  // its head groups, its role, its tokens.
  void check_unit(Kind kind, BlockId block, GroupId group, SlotId slot, Access access) const {
    if (!occurs_in(kind, direction_)) {
      fail_plan("{}: expected a kind that occurs {}, found {}", here(), to_string(direction_),
                to_string(kind));
    }
    if (!block.valid() || block.value >= round_.blocks.num_blocks()) {
      fail_plan("{}: expected a block among 0 … {}, found {}", here(),
                round_.blocks.num_blocks() - 1, block.value);
    }
    const std::int32_t groups = round_.groups_of(block);
    if (!group.valid() || group.value >= groups) {
      fail_plan("{}: expected a head group among 0 … {}, found {}", here(), groups - 1,
                group.value);
    }
    if (!role_has(round_.blocks.role(block), kind)) {
      fail_plan("{}: expected a block whose role has {}, found block {}", here(), to_string(kind),
                block.value);
    }
    check_slot(kind, block, group, slot, access);
  }

 private:
  [[nodiscard]] std::string here() const {
    if (at_ >= program_.instructions.size()) return std::string(where_);
    return fmt::format("{} instruction {} ({})", where_, at_, op_name(program_.instructions[at_]));
  }
  // Owned slots come before staging slots. They are numbered as if every block had all kinds and
  // all head groups of the round.
  [[nodiscard]] std::size_t num_owned() const {
    return blocks_.size() * static_cast<std::size_t>(round_.head_groups);
  }

  // Bounds offsets and capacities so that their sums fit. Slots may overlap, since units that are
  // never in use together share memory; `verify` proves that they are not.
  void check_staging() {
    for (int k = 0; k < kNumKinds; ++k) {
      for (const StagingSlot& slot : program_.staging[static_cast<std::size_t>(k)]) {
        if (slot.offset_tokens >= 0 && slot.offset_tokens <= kMaxTokens &&
            slot.capacity_tokens >= 0 && slot.capacity_tokens <= kMaxTokens) {
          continue;
        }
        fail_plan("{}: expected a staging slot of {} inside {} tokens, found offset {} capacity {}",
                  where_, to_string(static_cast<Kind>(k)), kMaxTokens, slot.offset_tokens,
                  slot.capacity_tokens);
      }
    }
  }

  void check_slot(Kind kind, BlockId block, GroupId group, SlotId slot, Access access) const {
    const std::vector<StagingSlot>& staging = program_.staging[static_cast<std::size_t>(kind)];
    const std::size_t owned = num_owned();
    if (!slot.valid() || slot.index() >= owned + staging.size()) {
      fail_plan("{}: expected a slot of {} among 0 … {}, found {}", here(), to_string(kind),
                static_cast<std::int64_t>(owned + staging.size()) - 1, slot.value);
    }
    // A row of an arena has the heads of one of the round's groups. A unit of a block with fewer,
    // wider groups takes several rows per token, which `staged_tokens` counts.
    if (slot.index() >= owned) {
      const std::int64_t capacity = staging[slot.index() - owned].capacity_tokens;
      if (round_.staged_tokens(block) > capacity) {
        fail_plan("{}: expected a unit of at most {} tokens in {}[{}], found block {} of {} tokens",
                  here(), capacity, to_string(kind), slot.value, block.value,
                  round_.staged_tokens(block));
      }
      return;
    }
    // An owned slot has one unit, the same for every kind: position · head_groups + group.
    const std::int32_t groups = round_.head_groups;
    const BlockId owner = blocks_[static_cast<std::size_t>(slot.value / groups)];
    if (owner != block || slot.value % groups != group.value) {
      fail_plan("{}: expected block {} group {} in {}[{}], found block {} group {}", here(),
                owner.value, slot.value % groups, to_string(kind), slot.value, block.value,
                group.value);
    }
    // Results have accumulators of the call's own, but an owned input is the caller's tensor.
    if (access == Access::kWrite && !is_result(kind)) {
      fail_plan("{}: expected a staging slot to write, found the caller's input {}[{}]", here(),
                to_string(kind), slot.value);
    }
  }

  void check(const AttentionOp& op) const {
    // The number of groups must agree first: a tile has one group number for both of its blocks.
    for (const TileOp& tile : op.tiles) {
      check_groups(tile);
      check_unit(Kind::kQ, tile.q_block, tile.group, tile.q, Access::kRead);
      check_unit(Kind::kKv, tile.kv_block, tile.group, tile.kv, Access::kRead);
      if (direction_ == Direction::kForward) {
        check_unit(Kind::kO, tile.q_block, tile.group, tile.result, Access::kWrite);
        continue;
      }
      // Backward needs dO with the final LSE and delta, and adds to dQ and dKV.
      check_unit(Kind::kDo, tile.q_block, tile.group, tile.d_o, Access::kRead);
      check_unit(Kind::kDq, tile.q_block, tile.group, tile.result, Access::kWrite);
      check_unit(Kind::kDkv, tile.kv_block, tile.group, tile.dkv, Access::kWrite);
    }
  }

  // Invalid blocks are reported by the checks of units.
  void check_groups(const TileOp& tile) const {
    if (!tile.q_block.valid() || !tile.kv_block.valid()) return;
    const std::int32_t of_queries = round_.groups_of(tile.q_block);
    const std::int32_t of_keys = round_.groups_of(tile.kv_block);
    if (of_queries == of_keys) return;
    fail_plan("{}: expected blocks of equally many head groups in a tile, found {} and {}", here(),
              of_queries, of_keys);
  }

  // A result is merged from its sources alone: the target counts only if it is one of them. Without
  // sources it would be undefined.
  void check(const ReduceOp& op) const {
    if (!is_result(op.kind) || op.srcs.empty()) {
      fail_plan("{}: expected a result and at least one source, found {} and {}", here(),
                to_string(op.kind), op.srcs.size());
    }
    check_unit(op.kind, op.block, op.group, op.dst, Access::kWrite);
    for (const SlotId src : op.srcs) {
      check_unit(op.kind, op.block, op.group, src, Access::kRead);
    }
  }

  void check(const CopyOp& op) const {
    check_unit(op.kind, op.block, op.group, op.dst, Access::kWrite);
    check_unit(op.kind, op.block, op.group, op.src, Access::kRead);
  }

  void check(const LaunchOp& op) {
    // An id is not used again even after its wait, because the layout of conversions is kept by id.
    if (!launches_.emplace(op.id, false).second) {
      fail_plan("{}: expected a launch id of its own, found {} again", here(), op.id);
    }
    for (const TransferEnd& send : op.sends) check_end(send, Access::kRead);
    for (const TransferEnd& recv : op.recvs) check_end(recv, Access::kWrite);
  }

  // Checks one end of a transfer. The program of one rank does not show the other end; `verify`
  // proves that it is there and fits. Inputs travel as they lie in memory, and only results may be
  // narrowed on the wire.
  void check_end(const TransferEnd& end, Access access) const {
    check_unit(end.kind, end.block, end.group, end.slot, access);
    if (!end.peer.valid() || end.peer.value >= plan_.num_devices() || end.peer == rank_) {
      fail_plan("{}: expected a peer among 0 … {} other than {}, found {}", here(),
                plan_.num_devices() - 1, rank_.value, end.peer.value);
    }
    if (!is_result(end.kind) && end.wire != plan_.shape.dtype) {
      fail_plan("{}: expected {} to travel as {}, found {}", here(), to_string(end.kind),
                to_string(plan_.shape.dtype), to_string(end.wire));
    }
  }

  // A transport accepts each ticket once, so a launch has exactly one wait, and that comes later.
  void check(const WaitOp& op) {
    const auto found = launches_.find(op.id);
    if (found == launches_.end() || found->second) {
      fail_plan("{}: expected a launch under way, found {}", here(), op.id);
    }
    found->second = true;
  }

  const Plan& plan_;
  const PlanRound& round_;
  const Program& program_;
  const Direction direction_;
  const Rank rank_;
  const std::vector<BlockId>& blocks_;
  const std::string_view where_;
  std::size_t at_ = 0;                     // instruction
  std::map<std::int32_t, bool> launches_;  // id → waited
};

// Checks the tables of a round that the programs of all ranks index.
void check_round(const Plan& plan, const PlanRound& round, const std::string& where) {
  const auto num_devices = static_cast<std::size_t>(plan.num_devices());
  const std::int32_t num_blocks = round.blocks.num_blocks();
  if (round.head_groups < 1 || plan.shape.kv_heads % round.head_groups != 0) {
    fail_plan("{}: expected head groups that divide {} kv heads, found {}", where,
              plan.shape.kv_heads, round.head_groups);
  }
  // Group counts divide each other: KV heads, the round's groups, a block's groups. A wide group of
  // a block then spans whole groups of the round.
  const std::vector<std::int32_t>& groups = round.block_head_groups;
  if (!groups.empty() && std::ssize(groups) != num_blocks) {
    fail_plan("{}: expected head groups of all or none of {} blocks, found {}", where, num_blocks,
              groups.size());
  }
  for (std::size_t b = 0; b < groups.size(); ++b) {
    if (groups[b] >= 1 && round.head_groups % groups[b] == 0) continue;
    fail_plan("{} block {}: expected head groups that divide {}, found {}", where, b,
              round.head_groups, groups[b]);
  }
  if (round.devices.size() != num_devices) {
    fail_plan("{}: expected {} devices, found {}", where, num_devices, round.devices.size());
  }
  // Tokens must lie in the batch. Blocks that share a token are refused where tiles are indexed.
  for (std::int32_t b = 0; b < num_blocks; ++b) {
    for (const Range& range : round.blocks.ranges(BlockId{b})) {
      if (range.begin >= 0 && range.end <= plan.num_tokens()) continue;
      fail_plan("{} block {}: expected tokens among 0 … {}, found [{}, {})", where, b,
                plan.num_tokens() - 1, range.begin, range.end);
    }
  }
  for (std::size_t r = 0; r < num_devices; ++r) {
    const DeviceProgram& device = round.devices[r];
    if (plan.slice_of.valid() && plan.slice_of.index() != r) continue;  // a slice lacks other ranks
    if (device.programs.size() != round.masks.size()) {
      fail_plan("{} rank {}: expected a program for each of {} masks, found {}", where, r,
                round.masks.size(), device.programs.size());
    }
    for (const BlockId block : device.local_blocks) {
      if (!block.valid() || block.value >= num_blocks) {
        fail_plan("{} rank {}: expected local blocks among 0 … {}, found {}", where, r,
                  num_blocks - 1, block.value);
      }
    }
    // A direction that only some ranks have would leave the others waiting for messages.
    for (std::size_t m = 0; m < round.masks.size(); ++m) {
      const std::size_t any = plan.slice_of.valid() ? r : 0;
      const ProgramPair& first = round.devices[any].programs[m];
      if (device.programs[m].forward.has_value() != first.forward.has_value() ||
          device.programs[m].backward.has_value() != first.backward.has_value()) {
        fail_plan("{} rank {} mask {}: expected the directions rank 0 has, found others", where, r,
                  m);
      }
    }
  }
}

}  // namespace

// Checks from the outside in: the shape, then each round. All rounds have equally many masks,
// because a call names its mask by one index.
void check_structure(const Plan& plan) {
  try {
    check_shape(plan.shape);
  } catch (const InvalidArgument& error) {
    fail_plan("plan: {}", error.what());
  }
  for (std::size_t r = 0; r < plan.rounds.size(); ++r) {
    if (plan.rounds[r].masks.size() != plan.rounds[0].masks.size()) {
      fail_plan("round {}: expected {} masks as in round 0, found {}", r,
                plan.rounds[0].masks.size(), plan.rounds[r].masks.size());
    }
    check_round(plan, plan.rounds[r], fmt::format("round {}", r));
  }
}

void check_program(const Plan& plan, const PlanRound& round, const Program& program,
                   Direction direction, Rank rank, std::string_view where) {
  ProgramCheck(plan, round, program, direction, rank, where).run();
}

void check_retained(const Plan& plan, const PlanRound& round,
                    std::span<const RetainedSlot> retained, const std::optional<Program>& backward,
                    Rank rank, std::string_view where) {
  if (!backward) return;
  // Backward's instructions are checked with its own program. Here the units that forward leaves in
  // its staging slots are held against those slots, so a program without instructions is enough.
  // Forward fills the slots, hence the write access.
  const Program slots_only{backward->staging, {}, {}};
  const ProgramCheck check(plan, round, slots_only, Direction::kBackward, rank, where);
  for (const RetainedSlot& unit : retained) {
    check.check_unit(unit.kind, unit.block, unit.group, unit.backward_slot, Access::kWrite);
  }
}

}  // namespace contextile
