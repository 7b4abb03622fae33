#include "contextile/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "plan/size_text.h"

namespace contextile {

std::string_view op_name(const Instruction& instruction) {
  constexpr std::string_view kNames[] = {"attention", "reduce", "copy", "launch", "wait"};
  return kNames[instruction.index()];
}

std::int64_t Program::arena_tokens(Kind kind) const {
  std::int64_t end = 0;
  for (const StagingSlot& slot : staging[static_cast<std::size_t>(kind)]) {
    end = std::max(end, slot.offset_tokens + slot.capacity_tokens);
  }
  return end;
}

std::map<std::pair<Kind, SlotId>, std::pair<BlockId, GroupId>> Program::last_brought() const {
  std::map<std::pair<Kind, SlotId>, std::pair<BlockId, GroupId>> last;
  for (const Instruction& instruction : instructions) {
    if (const auto* launch = std::get_if<LaunchOp>(&instruction)) {
      for (const TransferEnd& recv : launch->recvs) {
        last[{recv.kind, recv.slot}] = {recv.block, recv.group};
      }
    } else if (const auto* copy = std::get_if<CopyOp>(&instruction)) {
      last[{copy->kind, copy->dst}] = {copy->block, copy->group};
    }
  }
  return last;
}

std::int64_t PlanRound::owned_tokens(Rank rank) const {
  std::int64_t tokens = 0;
  for (std::int32_t b = 0; b < blocks.num_blocks(); ++b) {
    const BlockId block{b};
    if (owners[block.index()] == rank) tokens += blocks.num_tokens(block);
  }
  return tokens;
}

bool PlanRound::has_direction(std::size_t mask, Direction direction) const {
  return std::ranges::any_of(devices, [&](const DeviceProgram& device) {
    return mask < device.programs.size() && device.programs[mask].of(direction).has_value();
  });
}

std::int64_t PlanRound::num_tiles(std::size_t mask, Direction direction) const {
  std::int64_t tiles = 0;
  for (const DeviceProgram& device : devices) {
    if (mask >= device.programs.size()) continue;
    const std::optional<Program>& program = device.programs[mask].of(direction);
    if (!program) continue;
    for (const Instruction& instruction : program->instructions) {
      if (const auto* op = std::get_if<AttentionOp>(&instruction)) tiles += std::ssize(op->tiles);
    }
  }
  return tiles;
}

std::int64_t PlanRound::most_tiles(std::size_t mask) const {
  return std::max(num_tiles(mask, Direction::kForward), num_tiles(mask, Direction::kBackward));
}

bool has_block_head_groups(const Plan& plan) {
  return std::ranges::any_of(
      plan.rounds, [](const PlanRound& round) { return !round.block_head_groups.empty(); });
}

std::string size_text(const Plan& plan) {
  std::int64_t tiles = 0;
  for (const PlanRound& round : plan.rounds) {
    for (std::size_t mask = 0; mask < round.masks.size(); ++mask) {
      for (const Direction direction : kDirections) tiles += round.num_tiles(mask, direction);
    }
  }
  return fmt::format("a plan of {} tiles on {} devices", tiles, plan.num_devices());
}

bool Plan::has_direction(Direction direction) const {
  return std::ranges::any_of(rounds, [&](const PlanRound& round) {
    for (std::size_t mask = 0; mask < round.masks.size(); ++mask) {
      if (round.has_direction(mask, direction)) return true;
    }
    return false;
  });
}

void check_whole(const Plan& plan, std::string_view operation) {
  if (!plan.slice_of.valid()) return;
  fail_plan("{}: expected a whole plan, found the slice of rank {}", operation,
            plan.slice_of.value);
}

void check_has_rank(const Plan& plan, Rank rank, std::string_view operation) {
  if (!plan.slice_of.valid() || plan.slice_of == rank) return;
  fail_plan("{}: expected a plan with rank {}, found the slice of rank {}", operation, rank.value,
            plan.slice_of.value);
}

}  // namespace contextile
