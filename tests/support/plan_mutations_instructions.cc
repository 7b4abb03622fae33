// Mutations of the order of instructions, of reduce and copy, of staging slots and retained inputs.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "support/plan_mutations.h"
#include "support/plan_places.h"

namespace contextile {
namespace {

inline constexpr auto kWaits = [](const Instruction& i) {
  return std::holds_alternative<WaitOp>(i);
};

// ----------------------------------------------------------------------------- instructions

bool drop_instruction(Plan& plan, Chance& chance) {
  auto places = instructions_of(plan, kAny);
  if (places.empty()) return false;
  const InstructionPlace place = chance.pick(places);
  take(*place.list, place.index);
  return true;
}

bool drop_wait(Plan& plan, Chance& chance) {
  auto places = instructions_of(plan, kWaits);
  if (places.empty()) return false;
  const InstructionPlace place = chance.pick(places);
  take(*place.list, place.index);
  return true;
}

bool duplicate_instruction(Plan& plan, Chance& chance) {
  auto places = instructions_of(plan, kAny);
  if (places.empty()) return false;
  const InstructionPlace place = chance.pick(places);
  Instruction copy = (*place.list)[place.index];
  put(*place.list, chance.below(place.list->size() + 1), std::move(copy));
  return true;
}

bool swap_neighbours(Plan& plan, Chance& chance) {
  auto places = instructions_of(plan, kAny);
  if (places.empty()) return false;
  const InstructionPlace place = chance.pick(places);
  if (place.index == 0) return false;
  std::swap((*place.list)[place.index], (*place.list)[place.index - 1]);
  return true;
}

bool move_instruction(Plan& plan, Chance& chance) {
  auto places = instructions_of(plan, kAny);
  if (places.empty()) return false;
  const InstructionPlace place = chance.pick(places);
  Instruction moved = take(*place.list, place.index);
  const std::size_t to = chance.below(place.list->size() + 1);
  put(*place.list, to, std::move(moved));
  return to != place.index;
}

bool wait_late(Plan& plan, Chance& chance) {
  auto places = instructions_of(plan, kWaits);
  if (places.empty()) return false;
  const InstructionPlace place = chance.pick(places);
  if (place.index + 1 == place.list->size()) return false;
  place.list->push_back(take(*place.list, place.index));
  return true;
}

// Moves an instruction to another rank's program of the same direction.
bool move_instruction_to_rank(Plan& plan, Chance& chance) {
  auto places = programs_of(plan);
  if (places.empty()) return false;
  const ProgramPlace from = chance.pick(places);
  std::erase_if(places, [&](const ProgramPlace& at) {
    return at.round != from.round || at.mask != from.mask || at.direction != from.direction ||
           at.rank == from.rank;
  });
  if (places.empty() || from.program->instructions.empty()) return false;
  auto& to = chance.pick(places).program->instructions;
  put(to, chance.below(to.size() + 1),
      take(from.program->instructions, chance.below(from.program->instructions.size())));
  return true;
}

// -------------------------------------------------------------------------- reduce and copy

template <typename Change>
bool change_reduce(Plan& plan, Chance& chance, Change change) {
  auto places = ops_of<ReduceOp>(plan, kAny);
  return !places.empty() && change(*chance.pick(places).op);
}

bool drop_source(Plan& plan, Chance& chance) {
  return change_reduce(plan, chance, [&](ReduceOp& op) {
    take(op.srcs, chance.below(op.srcs.size()));
    return true;
  });
}
bool duplicate_source(Plan& plan, Chance& chance) {
  return change_reduce(plan, chance, [&](ReduceOp& op) {
    const SlotId copy = chance.pick(op.srcs);
    op.srcs.push_back(copy);
    return true;
  });
}
bool reverse_sources(Plan& plan, Chance& chance) {
  return change_reduce(plan, chance, [&](ReduceOp& op) {
    std::ranges::reverse(op.srcs);
    return op.srcs.size() > 1;
  });
}
bool retarget_source(Plan& plan, Chance& chance) {
  return change_reduce(plan, chance, [&](ReduceOp& op) {
    chance.pick(op.srcs).value += step(chance);
    return true;
  });
}
bool retarget_reduce(Plan& plan, Chance& chance) {
  return change_reduce(plan, chance, [&](ReduceOp& op) {
    std::array members = {&op.block.value, &op.group.value, &op.dst.value};
    *members[chance.below(members.size())] += step(chance);
    return true;
  });
}
bool change_reduce_kind(Plan& plan, Chance& chance) {
  return change_reduce(plan, chance, [&](ReduceOp& op) {
    const auto shift = chance.between(1, kNumKinds - 1);
    op.kind = static_cast<Kind>((static_cast<int>(op.kind) + shift) % kNumKinds);
    return true;
  });
}

// A result moves to another slot for no reason.
bool insert_copy(Plan& plan, Chance& chance) {
  auto places = attentions_of(plan);
  if (places.empty()) return false;
  const auto& place = chance.pick(places);
  const TileOp tile = chance.pick(place.op->tiles);
  CopyOp copy;
  const bool forward = place.at.direction == Direction::kForward;
  copy.kind = forward ? Kind::kO : Kind::kDkv;
  copy.block = forward ? tile.q_block : tile.kv_block;
  copy.group = tile.group;
  copy.src = forward ? tile.result : tile.dkv;
  copy.dst = SlotId{copy.src.value + step(chance)};
  auto& instructions = place.at.program->instructions;
  const std::size_t first = place.index + 1;
  put(instructions, first + chance.below(instructions.size() - first + 1), Instruction(copy));
  return true;
}

// An input is copied over another slot.
bool insert_input_copy(Plan& plan, Chance& chance) {
  auto places = attentions_of(plan);
  if (places.empty()) return false;
  const auto& place = chance.pick(places);
  const TileOp tile = chance.pick(place.op->tiles);
  const CopyOp copy{Kind::kKv, tile.kv_block, tile.group, SlotId{tile.kv.value + step(chance)},
                    tile.kv};
  auto& instructions = place.at.program->instructions;
  put(instructions, chance.below(instructions.size() + 1), Instruction(copy));
  return true;
}

// --------------------------------------------------------------------------- staging, retain

bool shrink_slot(Plan& plan, Chance& chance) {
  auto lists = stagings_of(plan);
  if (lists.empty()) return false;
  chance.pick(*chance.pick(lists)).capacity_tokens -= chance.between(1, 3);
  return true;
}
bool shift_slot(Plan& plan, Chance& chance) {
  auto lists = stagings_of(plan);
  if (lists.empty()) return false;
  chance.pick(*chance.pick(lists)).offset_tokens += chance.between(1, 6) * step(chance);
  return true;
}
bool drop_slot(Plan& plan, Chance& chance) {
  auto lists = stagings_of(plan);
  if (lists.empty()) return false;
  auto& slots = *chance.pick(lists);
  take(slots, chance.below(slots.size()));
  return true;
}
bool swap_slots(Plan& plan, Chance& chance) {
  auto lists = stagings_of(plan);
  return !lists.empty() && swap_two(*chance.pick(lists), chance);
}
// Puts all slots of a kind on one place.
bool stack_slots(Plan& plan, Chance& chance) {
  auto lists = stagings_of(plan);
  std::erase_if(lists, [](const auto* slots) { return slots->size() < 2; });
  if (lists.empty()) return false;
  for (StagingSlot& slot : *chance.pick(lists)) slot.offset_tokens = 0;
  return true;
}

std::vector<std::vector<Retain>*> retains_of(Plan& plan) {
  std::vector<std::vector<Retain>*> lists;
  for (const ProgramPlace& at : programs_of(plan)) {
    if (!at.program->retain.empty()) lists.push_back(&at.program->retain);
  }
  return lists;
}

bool change_retain(Plan& plan, Chance& chance) {
  auto lists = retains_of(plan);
  if (lists.empty()) return false;
  Retain& retain = chance.pick(*chance.pick(lists));
  switch (chance.below(3)) {
    case 0:
      retain.kind = retain.kind == Kind::kQ ? Kind::kKv : Kind::kQ;
      break;
    case 1:
      retain.slot.value += step(chance);
      break;
    default:
      retain.backward_slot.value += step(chance);
  }
  return true;
}
bool drop_retain(Plan& plan, Chance& chance) {
  auto lists = retains_of(plan);
  if (lists.empty()) return false;
  auto& retains = *chance.pick(lists);
  take(retains, chance.below(retains.size()));
  return true;
}
bool duplicate_retain(Plan& plan, Chance& chance) {
  auto lists = retains_of(plan);
  if (lists.empty()) return false;
  auto& retains = *chance.pick(lists);
  Retain copy = chance.pick(retains);
  copy.backward_slot = chance.pick(retains).backward_slot;
  retains.push_back(copy);
  return true;
}
// Retains an owned input, which needs no retaining, or retains where there is nothing to keep.
bool add_retain(Plan& plan, Chance& chance) {
  auto places = programs_of(plan);
  if (places.empty()) return false;
  const ProgramPlace at = chance.pick(places);
  at.program->retain.push_back({chance.one_in(2) ? Kind::kKv : Kind::kQ,
                                SlotId{static_cast<std::int32_t>(chance.between(0, 3))},
                                SlotId{static_cast<std::int32_t>(chance.between(0, 3))}});
  return true;
}

constexpr PlanMutation kMutations[] = {
    {"drop_instruction", drop_instruction},
    {"drop_wait", drop_wait},
    {"duplicate_instruction", duplicate_instruction},
    {"swap_neighbours", swap_neighbours},
    {"move_instruction", move_instruction},
    {"wait_late", wait_late},
    {"move_instruction_to_rank", move_instruction_to_rank},
    {"drop_source", drop_source},
    {"duplicate_source", duplicate_source},
    {"reverse_sources", reverse_sources},
    {"retarget_source", retarget_source},
    {"retarget_reduce", retarget_reduce},
    {"change_reduce_kind", change_reduce_kind},
    {"insert_copy", insert_copy},
    {"insert_input_copy", insert_input_copy},
    {"shrink_slot", shrink_slot},
    {"shift_slot", shift_slot},
    {"drop_slot", drop_slot},
    {"swap_slots", swap_slots},
    {"stack_slots", stack_slots},
    {"change_retain", change_retain},
    {"drop_retain", drop_retain},
    {"duplicate_retain", duplicate_retain},
    {"add_retain", add_retain},
};

}  // namespace

std::span<const PlanMutation> instruction_mutations() { return kMutations; }

}  // namespace contextile
