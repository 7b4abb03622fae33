// Plans whose blocks have head groups of their own, as plans whose blocks all have the round's.
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "base/check.h"
#include "contextile/plan.h"
#include "contextile/plan_file.h"

namespace contextile {
namespace {

// A unit's slot becomes one for each of the round's head groups in the unit, side by side where the
// unit was.
class EvenProgram {
 public:
  EvenProgram(const PlanRound& round, const DeviceProgram& device, const Program& program)
      : round_(round),
        num_owned_(static_cast<std::int32_t>(device.local_blocks.size()) * round.head_groups),
        program_(program) {
    for (const Instruction& instruction : program.instructions) {
      std::visit([this](const auto& op) { add(op); }, instruction);
    }
  }

  void retain(const Retain& kept, EvenProgram& backward) {
    const auto at = last_block_.find({kept.kind, kept.slot});
    if (at == last_block_.end()) return;  // a broken plan
    for (std::int32_t i = 0; i < parts(at->second); ++i) {
      out_.retain.push_back({kept.kind, slot(kept.kind, at->second, kept.slot, i),
                             backward.slot(kept.kind, at->second, kept.backward_slot, i)});
    }
  }
  [[nodiscard]] Program take() { return std::move(out_); }

 private:
  // How many of the round's groups one of the block's has.
  [[nodiscard]] std::int32_t parts(BlockId block) const {
    return round_.head_groups / round_.groups_of(block);
  }
  [[nodiscard]] GroupId group(BlockId block, GroupId whole, std::int32_t part) const {
    return GroupId{whole.value * parts(block) + part};
  }

  [[nodiscard]] SlotId slot(Kind kind, BlockId block, SlotId whole, std::int32_t part) {
    const std::int32_t n = parts(block);
    if (whole.value < num_owned_) {
      const std::int32_t position = whole.value / round_.head_groups;
      const std::int32_t of_block = whole.value % round_.head_groups;
      return SlotId{position * round_.head_groups + of_block * n + part};
    }
    const auto k = static_cast<std::size_t>(kind);
    check_staged(kind, whole);
    StagingSlot place = program_.staging[k][static_cast<std::size_t>(whole.value - num_owned_)];
    if (n > 1) {
      const std::int64_t tokens = round_.blocks.num_tokens(block);
      place = {place.offset_tokens + part * tokens, tokens};
    }
    std::vector<StagingSlot>& slots = out_.staging[k];
    const auto [at, is_new] = number_of_[k].try_emplace(
        {place.offset_tokens, place.capacity_tokens}, static_cast<std::int32_t>(slots.size()));
    if (is_new) slots.push_back(place);
    return SlotId{num_owned_ + at->second};
  }

  void check_staged(Kind kind, SlotId slot) const {
    const auto end = num_owned_ + std::ssize(program_.staging[static_cast<std::size_t>(kind)]);
    if (slot.value >= end) {
      fail_plan("even head groups: expected a slot of {} among 0 … {}, found {}", to_string(kind),
                end - 1, slot.value);
    }
  }

  void add(const AttentionOp& op) {
    AttentionOp even;
    for (const TileOp& tile : op.tiles) {
      const std::int32_t n = parts(tile.q_block);
      for (std::int32_t i = 0; i < n; ++i) {
        TileOp& part = even.tiles.emplace_back(tile);
        part.group = group(tile.q_block, tile.group, i);
        part.q = slot(Kind::kQ, tile.q_block, tile.q, i);
        part.kv = slot(Kind::kKv, tile.kv_block, tile.kv, i);
        const bool forward = !tile.d_o.valid();
        part.result = slot(forward ? Kind::kO : Kind::kDq, tile.q_block, tile.result, i);
        if (forward) continue;
        part.d_o = slot(Kind::kDo, tile.q_block, tile.d_o, i);
        part.dkv = slot(Kind::kDkv, tile.kv_block, tile.dkv, i);
      }
    }
    out_.instructions.emplace_back(std::move(even));
  }

  void add(const ReduceOp& op) {
    for (std::int32_t i = 0; i < parts(op.block); ++i) {
      ReduceOp part{
          op.kind, op.block, group(op.block, op.group, i), slot(op.kind, op.block, op.dst, i), {}};
      for (const SlotId src : op.srcs) part.srcs.push_back(slot(op.kind, op.block, src, i));
      out_.instructions.emplace_back(std::move(part));
    }
  }

  void add(const CopyOp& op) {
    last_block_[{op.kind, op.dst}] = op.block;
    for (std::int32_t i = 0; i < parts(op.block); ++i) {
      out_.instructions.emplace_back(CopyOp{op.kind, op.block, group(op.block, op.group, i),
                                            slot(op.kind, op.block, op.dst, i),
                                            slot(op.kind, op.block, op.src, i)});
    }
  }

  void add(const LaunchOp& op) {
    for (const TransferEnd& recv : op.recvs) last_block_[{recv.kind, recv.slot}] = recv.block;
    out_.instructions.emplace_back(LaunchOp{op.id, even(op.sends), even(op.recvs)});
  }
  void add(const WaitOp& op) { out_.instructions.emplace_back(op); }

  [[nodiscard]] std::vector<TransferEnd> even(const std::vector<TransferEnd>& ends) {
    std::vector<TransferEnd> all;
    for (const TransferEnd& end : ends) {
      for (std::int32_t i = 0; i < parts(end.block); ++i) {
        TransferEnd& part = all.emplace_back(end);
        part.group = group(end.block, end.group, i);
        part.slot = slot(end.kind, end.block, end.slot, i);
      }
    }
    return all;
  }

  const PlanRound& round_;
  const std::int32_t num_owned_;
  const Program& program_;
  Program out_;
  std::array<std::map<std::pair<std::int64_t, std::int64_t>, std::int32_t>, kNumKinds> number_of_;
  std::map<std::pair<Kind, SlotId>, BlockId> last_block_;  // of what came into a slot
};

ProgramPair even_pair(const PlanRound& round, const DeviceProgram& device,
                      const ProgramPair& pair) {
  std::optional<EvenProgram> forward;
  std::optional<EvenProgram> backward;
  if (pair.forward) forward.emplace(round, device, *pair.forward);
  if (pair.backward) backward.emplace(round, device, *pair.backward);
  if (forward && backward) {
    for (const Retain& kept : pair.forward->retain) forward->retain(kept, *backward);
  }
  ProgramPair even;
  if (forward) even.forward = forward->take();
  if (backward) even.backward = backward->take();
  return even;
}

}  // namespace

Plan with_even_head_groups(Plan plan) {
  if (!has_block_head_groups(plan)) return plan;
  for (const PlanRound& round : plan.rounds) {
    for (const std::int32_t groups : round.block_head_groups) {
      if (groups >= 1 && round.head_groups % groups == 0) continue;
      fail_plan("even head groups: expected divisors of {} head groups, found {}",
                round.head_groups, groups);
    }
  }
  for (PlanRound& round : plan.rounds) {
    if (round.block_head_groups.empty()) continue;
    for (DeviceProgram& device : round.devices) {
      for (ProgramPair& pair : device.programs) pair = even_pair(round, device, pair);
    }
    round.block_head_groups.clear();
  }
  if (!plan.slice_of.valid()) plan.digest = compute_digest(plan);
  return plan;
}

}  // namespace contextile
