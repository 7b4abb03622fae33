#include "support/plan_mutations.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <variant>
#include <vector>

namespace contextile {
namespace {

// ---------------------------------------------------------------------------------- places

struct ProgramPlace {
  PlanRound* round;
  std::size_t rank;
  std::size_t mask;
  Direction direction;
  Program* program;
};

std::vector<ProgramPlace> programs_of(Plan& plan) {
  std::vector<ProgramPlace> places;
  for (PlanRound& round : plan.rounds) {
    for (std::size_t r = 0; r < round.devices.size(); ++r) {
      for (std::size_t m = 0; m < round.devices[r].programs.size(); ++m) {
        ProgramPair& pair = round.devices[r].programs[m];
        if (pair.forward) places.push_back({&round, r, m, Direction::kForward, &*pair.forward});
        if (pair.backward) places.push_back({&round, r, m, Direction::kBackward, &*pair.backward});
      }
    }
  }
  return places;
}

template <typename Op>
struct OpPlace {
  ProgramPlace at;
  std::size_t index;
  Op* op;
};

// Every instruction of a kind for which `keep(op)` holds.
template <typename Op, typename Keep>
std::vector<OpPlace<Op>> ops_of(Plan& plan, Keep keep) {
  std::vector<OpPlace<Op>> places;
  for (const ProgramPlace& at : programs_of(plan)) {
    auto& instructions = at.program->instructions;
    for (std::size_t n = 0; n < instructions.size(); ++n) {
      Op* op = std::get_if<Op>(&instructions[n]);
      if (op != nullptr && keep(*op)) places.push_back({at, n, op});
    }
  }
  return places;
}

std::vector<OpPlace<AttentionOp>> attentions_of(Plan& plan, std::size_t min_tiles = 1) {
  return ops_of<AttentionOp>(plan,
                             [&](const AttentionOp& op) { return op.tiles.size() >= min_tiles; });
}

// Lists of sends and of receives with at least `min_size` ends.
std::vector<std::vector<TransferEnd>*> ends_of(Plan& plan, std::size_t min_size = 1) {
  std::vector<std::vector<TransferEnd>*> lists;
  for (const auto& place : ops_of<LaunchOp>(plan, [](const LaunchOp&) { return true; })) {
    for (auto* ends : {&place.op->sends, &place.op->recvs}) {
      if (ends->size() >= min_size) lists.push_back(ends);
    }
  }
  return lists;
}

struct InstructionPlace {
  std::vector<Instruction>* list;
  std::size_t index;
};
template <typename Keep>
std::vector<InstructionPlace> instructions_of(Plan& plan, Keep keep) {
  std::vector<InstructionPlace> places;
  for (const ProgramPlace& at : programs_of(plan)) {
    for (std::size_t n = 0; n < at.program->instructions.size(); ++n) {
      if (keep(at.program->instructions[n])) places.push_back({&at.program->instructions, n});
    }
  }
  return places;
}
constexpr auto kAny = [](const auto&) { return true; };
constexpr auto kWaits = [](const Instruction& i) { return std::holds_alternative<WaitOp>(i); };

template <typename Items>
bool none(const Items& items) {
  return items.empty();
}

template <typename Item>
Item take(std::vector<Item>& items, std::size_t index) {
  Item item = std::move(items[index]);
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(index));
  return item;
}
template <typename Item>
void put(std::vector<Item>& items, std::size_t index, Item item) {
  items.insert(items.begin() + static_cast<std::ptrdiff_t>(index), std::move(item));
}

// Swaps two different elements; false if they are equal.
template <typename Item>
bool swap_two(std::vector<Item>& items, Chance& chance) {
  const std::size_t a = chance.below(items.size());
  const std::size_t b = chance.below(items.size());
  if (items[a] == items[b]) return false;
  std::swap(items[a], items[b]);
  return true;
}

std::int32_t step(Chance& chance) { return chance.one_in(2) ? 1 : -1; }

// ----------------------------------------------------------------------------------- tiles

bool drop_tile(Plan& plan, Chance& chance) {
  auto places = attentions_of(plan);
  if (none(places)) return false;
  auto& tiles = chance.pick(places).op->tiles;
  take(tiles, chance.below(tiles.size()));
  return true;
}

// Another attention call of the same direction and mask.
AttentionOp* other_call(const std::vector<OpPlace<AttentionOp>>& places,
                        const OpPlace<AttentionOp>& from, Chance& chance) {
  std::vector<AttentionOp*> others;
  for (const auto& place : places) {
    if (place.at.direction == from.at.direction && place.at.round == from.at.round &&
        place.op != from.op) {
      others.push_back(place.op);
    }
  }
  return others.empty() ? nullptr : chance.pick(others);
}

bool duplicate_tile(Plan& plan, Chance& chance) {
  auto places = attentions_of(plan);
  if (none(places)) return false;
  const auto& from = chance.pick(places);
  const TileOp tile = chance.pick(from.op->tiles);
  AttentionOp* to = chance.one_in(2) ? from.op : other_call(places, from, chance);
  if (to == nullptr) return false;
  put(to->tiles, chance.below(to->tiles.size() + 1), tile);
  return true;
}

bool move_tile(Plan& plan, Chance& chance) {
  auto places = attentions_of(plan);
  if (none(places)) return false;
  const auto& from = chance.pick(places);
  AttentionOp* to = other_call(places, from, chance);
  if (to == nullptr) return false;
  to->tiles.push_back(take(from.op->tiles, chance.below(from.op->tiles.size())));
  return true;
}

bool reorder_tiles(Plan& plan, Chance& chance) {
  auto places = attentions_of(plan, 2);
  return !none(places) && swap_two(chance.pick(places).op->tiles, chance);
}

// Changes one tile chosen at random.
template <typename Change>
bool change_tile(Plan& plan, Chance& chance, Change change) {
  auto places = attentions_of(plan);
  if (none(places)) return false;
  const auto& place = chance.pick(places);
  return change(chance.pick(place.op->tiles), place.at);
}

bool retarget_tile_block(Plan& plan, Chance& chance) {
  return change_tile(plan, chance, [&](TileOp& tile, const ProgramPlace&) {
    (chance.one_in(2) ? tile.q_block : tile.kv_block).value += step(chance);
    return true;
  });
}

bool retarget_tile_group(Plan& plan, Chance& chance) {
  return change_tile(plan, chance, [&](TileOp& tile, const ProgramPlace&) {
    tile.group.value += step(chance);
    return true;
  });
}

bool retarget_tile_input(Plan& plan, Chance& chance) {
  return change_tile(plan, chance, [&](TileOp& tile, const ProgramPlace& at) {
    std::array slots = {&tile.q, &tile.kv, &tile.d_o};
    const std::size_t n = at.direction == Direction::kForward ? 2 : 3;
    slots[chance.below(n)]->value += step(chance);
    return true;
  });
}

bool retarget_tile_result(Plan& plan, Chance& chance) {
  return change_tile(plan, chance, [&](TileOp& tile, const ProgramPlace& at) {
    const bool dkv = at.direction == Direction::kBackward && chance.one_in(2);
    (dkv ? tile.dkv : tile.result).value += step(chance);
    return true;
  });
}

bool flip_init(Plan& plan, Chance& chance) {
  return change_tile(plan, chance, [&](TileOp& tile, const ProgramPlace& at) {
    const bool dkv = at.direction == Direction::kBackward && chance.one_in(2);
    bool& init = dkv ? tile.init_dkv : tile.init_result;
    init = !init;
    return true;
  });
}

bool change_pairs(Plan& plan, Chance& chance) {
  return change_tile(plan, chance, [&](TileOp& tile, const ProgramPlace&) {
    tile.pairs += step(chance);
    return true;
  });
}

bool swap_tile_slots(Plan& plan, Chance& chance) {
  auto places = attentions_of(plan, 2);
  if (none(places)) return false;
  const auto& place = chance.pick(places);
  TileOp& a = chance.pick(place.op->tiles);
  TileOp& b = chance.pick(place.op->tiles);
  const std::array members = {&TileOp::q, &TileOp::kv, &TileOp::result, &TileOp::d_o, &TileOp::dkv};
  const auto member = members[chance.below(place.at.direction == Direction::kForward ? 3 : 5)];
  if (a.*member == b.*member) return false;
  std::swap(a.*member, b.*member);
  return true;
}

// ------------------------------------------------------------------------------- transfers

// Changes one end of one transfer chosen at random.
template <typename Change>
bool change_end(Plan& plan, Chance& chance, Change change) {
  auto lists = ends_of(plan);
  if (none(lists)) return false;
  change(chance.pick(*chance.pick(lists)));
  return true;
}

bool retarget_transfer_unit(Plan& plan, Chance& chance) {
  return change_end(plan, chance, [&](TransferEnd& end) {
    (chance.one_in(2) ? end.block.value : end.group.value) += step(chance);
  });
}

bool retarget_transfer_slot(Plan& plan, Chance& chance) {
  return change_end(plan, chance, [&](TransferEnd& end) { end.slot.value += step(chance); });
}

bool retarget_transfer_peer(Plan& plan, Chance& chance) {
  return change_end(plan, chance, [&](TransferEnd& end) { end.peer.value += step(chance); });
}

bool change_transfer_kind(Plan& plan, Chance& chance) {
  return change_end(plan, chance, [&](TransferEnd& end) {
    const auto shift = chance.between(1, kNumKinds - 1);
    end.kind = static_cast<Kind>((static_cast<int>(end.kind) + shift) % kNumKinds);
  });
}

bool change_wire(Plan& plan, Chance& chance) {
  return change_end(plan, chance, [&](TransferEnd& end) {
    end.wire = end.wire == Dtype::kF32 ? Dtype::kBf16 : Dtype::kF32;
  });
}

// On both ends of everything in a direction: the ends agree, the dtype may be wrong.
bool change_wire_of_kind(Plan& plan, Chance& chance) {
  auto lists = ends_of(plan);
  if (none(lists)) return false;
  const Kind kind = chance.pick(*chance.pick(lists)).kind;
  for (auto* ends : lists) {
    for (TransferEnd& end : *ends) {
      if (end.kind == kind) end.wire = end.wire == Dtype::kF32 ? Dtype::kBf16 : Dtype::kF32;
    }
  }
  return true;
}

bool swap_transfers(Plan& plan, Chance& chance) {
  auto lists = ends_of(plan, 2);
  return !none(lists) && swap_two(*chance.pick(lists), chance);
}

bool swap_transfer_slots(Plan& plan, Chance& chance) {
  auto lists = ends_of(plan, 2);
  if (none(lists)) return false;
  auto& ends = *chance.pick(lists);
  TransferEnd& a = chance.pick(ends);
  TransferEnd& b = chance.pick(ends);
  if (a.slot == b.slot) return false;
  std::swap(a.slot, b.slot);
  return true;
}

bool drop_transfer_end(Plan& plan, Chance& chance) {
  auto lists = ends_of(plan);
  if (none(lists)) return false;
  auto& ends = *chance.pick(lists);
  take(ends, chance.below(ends.size()));
  return true;
}

bool duplicate_transfer_end(Plan& plan, Chance& chance) {
  auto lists = ends_of(plan);
  if (none(lists)) return false;
  auto& ends = *chance.pick(lists);
  const TransferEnd copy = chance.pick(ends);
  ends.push_back(copy);
  return true;
}

// Both ends of every transfer of one unit from one rank to another.
bool drop_transfer(Plan& plan, Chance& chance) {
  auto launches = ops_of<LaunchOp>(plan, [](const LaunchOp& op) { return !op.sends.empty(); });
  if (none(launches)) return false;
  const auto& place = chance.pick(launches);
  const TransferEnd gone = chance.pick(place.op->sends);
  const auto src = static_cast<std::int32_t>(place.at.rank);
  const auto matches = [&](const TransferEnd& end, Rank peer) {
    return end.kind == gone.kind && end.block == gone.block && end.group == gone.group &&
           end.peer == peer;
  };
  const ProgramPlace at = place.at;
  for (const auto& other : ops_of<LaunchOp>(plan, kAny)) {
    if (other.at.round != at.round || other.at.mask != at.mask ||
        other.at.direction != at.direction) {
      continue;
    }
    if (other.at.rank == at.rank) {
      std::erase_if(other.op->sends, [&](const auto& end) { return matches(end, gone.peer); });
    } else if (other.at.rank == gone.peer.index()) {
      std::erase_if(other.op->recvs, [&](const auto& end) { return matches(end, Rank{src}); });
    }
  }
  return true;
}

bool split_launch(Plan& plan, Chance& chance) {
  auto launches = ops_of<LaunchOp>(
      plan, [](const LaunchOp& op) { return op.sends.size() + op.recvs.size() > 1; });
  if (none(launches)) return false;
  const auto& place = chance.pick(launches);
  LaunchOp second{999, {}, {}};
  for (auto member : {&LaunchOp::sends, &LaunchOp::recvs}) {
    auto& ends = place.op->*member;
    const auto cut = static_cast<std::ptrdiff_t>(chance.below(ends.size() + 1));
    (second.*member).assign(ends.begin() + cut, ends.end());
    ends.erase(ends.begin() + cut, ends.end());
  }
  auto& instructions = place.at.program->instructions;
  const std::size_t index = place.index;
  put(instructions, index + 1, Instruction(WaitOp{999}));
  put(instructions, index + 1, Instruction(std::move(second)));
  return true;
}

bool change_launch_id(Plan& plan, Chance& chance) {
  auto places = instructions_of(plan, [](const Instruction& i) {
    return std::holds_alternative<LaunchOp>(i) || std::holds_alternative<WaitOp>(i);
  });
  if (none(places)) return false;
  const InstructionPlace place = chance.pick(places);
  Instruction& instruction = (*place.list)[place.index];
  if (auto* launch = std::get_if<LaunchOp>(&instruction)) {
    launch->id += step(chance);
  } else {
    std::get<WaitOp>(instruction).id += step(chance);
  }
  return true;
}

// ----------------------------------------------------------------------------- instructions

bool drop_instruction(Plan& plan, Chance& chance) {
  auto places = instructions_of(plan, kAny);
  if (none(places)) return false;
  const InstructionPlace place = chance.pick(places);
  take(*place.list, place.index);
  return true;
}

bool drop_wait(Plan& plan, Chance& chance) {
  auto places = instructions_of(plan, kWaits);
  if (none(places)) return false;
  const InstructionPlace place = chance.pick(places);
  take(*place.list, place.index);
  return true;
}

bool duplicate_instruction(Plan& plan, Chance& chance) {
  auto places = instructions_of(plan, kAny);
  if (none(places)) return false;
  const InstructionPlace place = chance.pick(places);
  Instruction copy = (*place.list)[place.index];
  put(*place.list, chance.below(place.list->size() + 1), std::move(copy));
  return true;
}

bool swap_neighbours(Plan& plan, Chance& chance) {
  auto places = instructions_of(plan, kAny);
  if (none(places)) return false;
  const InstructionPlace place = chance.pick(places);
  if (place.index == 0) return false;
  std::swap((*place.list)[place.index], (*place.list)[place.index - 1]);
  return true;
}

bool move_instruction(Plan& plan, Chance& chance) {
  auto places = instructions_of(plan, kAny);
  if (none(places)) return false;
  const InstructionPlace place = chance.pick(places);
  Instruction moved = take(*place.list, place.index);
  const std::size_t to = chance.below(place.list->size() + 1);
  put(*place.list, to, std::move(moved));
  return to != place.index;
}

bool wait_late(Plan& plan, Chance& chance) {
  auto places = instructions_of(plan, kWaits);
  if (none(places)) return false;
  const InstructionPlace place = chance.pick(places);
  if (place.index + 1 == place.list->size()) return false;
  place.list->push_back(take(*place.list, place.index));
  return true;
}

// To another rank's program of the same direction.
bool move_instruction_to_rank(Plan& plan, Chance& chance) {
  auto places = programs_of(plan);
  if (none(places)) return false;
  const ProgramPlace from = chance.pick(places);
  std::erase_if(places, [&](const ProgramPlace& at) {
    return at.round != from.round || at.mask != from.mask || at.direction != from.direction ||
           at.rank == from.rank;
  });
  if (none(places) || from.program->instructions.empty()) return false;
  auto& to = chance.pick(places).program->instructions;
  put(to, chance.below(to.size() + 1),
      take(from.program->instructions, chance.below(from.program->instructions.size())));
  return true;
}

// -------------------------------------------------------------------------- reduce and copy

template <typename Change>
bool change_reduce(Plan& plan, Chance& chance, Change change) {
  auto places = ops_of<ReduceOp>(plan, kAny);
  return !none(places) && change(*chance.pick(places).op);
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
  if (none(places)) return false;
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
  if (none(places)) return false;
  const auto& place = chance.pick(places);
  const TileOp tile = chance.pick(place.op->tiles);
  const CopyOp copy{Kind::kKv, tile.kv_block, tile.group, SlotId{tile.kv.value + step(chance)},
                    tile.kv};
  auto& instructions = place.at.program->instructions;
  put(instructions, chance.below(instructions.size() + 1), Instruction(copy));
  return true;
}

// --------------------------------------------------------------------------- staging, retain

std::vector<std::vector<StagingSlot>*> stagings_of(Plan& plan) {
  std::vector<std::vector<StagingSlot>*> lists;
  for (const ProgramPlace& at : programs_of(plan)) {
    for (auto& slots : at.program->staging) {
      if (!slots.empty()) lists.push_back(&slots);
    }
  }
  return lists;
}

bool shrink_slot(Plan& plan, Chance& chance) {
  auto lists = stagings_of(plan);
  if (none(lists)) return false;
  chance.pick(*chance.pick(lists)).capacity_tokens -= chance.between(1, 3);
  return true;
}
bool shift_slot(Plan& plan, Chance& chance) {
  auto lists = stagings_of(plan);
  if (none(lists)) return false;
  chance.pick(*chance.pick(lists)).offset_tokens += chance.between(1, 6) * step(chance);
  return true;
}
bool drop_slot(Plan& plan, Chance& chance) {
  auto lists = stagings_of(plan);
  if (none(lists)) return false;
  auto& slots = *chance.pick(lists);
  take(slots, chance.below(slots.size()));
  return true;
}
bool swap_slots(Plan& plan, Chance& chance) {
  auto lists = stagings_of(plan);
  return !none(lists) && swap_two(*chance.pick(lists), chance);
}
// All slots of a kind on one place.
bool stack_slots(Plan& plan, Chance& chance) {
  auto lists = stagings_of(plan);
  std::erase_if(lists, [](const auto* slots) { return slots->size() < 2; });
  if (none(lists)) return false;
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
  if (none(lists)) return false;
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
  if (none(lists)) return false;
  auto& retains = *chance.pick(lists);
  take(retains, chance.below(retains.size()));
  return true;
}
bool duplicate_retain(Plan& plan, Chance& chance) {
  auto lists = retains_of(plan);
  if (none(lists)) return false;
  auto& retains = *chance.pick(lists);
  Retain copy = chance.pick(retains);
  copy.backward_slot = chance.pick(retains).backward_slot;
  retains.push_back(copy);
  return true;
}
// An owned input, which needs no retaining, or a retain where there is none to keep.
bool add_retain(Plan& plan, Chance& chance) {
  auto places = programs_of(plan);
  if (none(places)) return false;
  const ProgramPlace at = chance.pick(places);
  at.program->retain.push_back({chance.one_in(2) ? Kind::kKv : Kind::kQ,
                                SlotId{static_cast<std::int32_t>(chance.between(0, 3))},
                                SlotId{static_cast<std::int32_t>(chance.between(0, 3))}});
  return true;
}

constexpr PlanMutation kMutations[] = {
    {"drop_tile", drop_tile},
    {"duplicate_tile", duplicate_tile},
    {"move_tile", move_tile},
    {"reorder_tiles", reorder_tiles},
    {"retarget_tile_block", retarget_tile_block},
    {"retarget_tile_group", retarget_tile_group},
    {"retarget_tile_input", retarget_tile_input},
    {"retarget_tile_result", retarget_tile_result},
    {"flip_init", flip_init},
    {"change_pairs", change_pairs},
    {"swap_tile_slots", swap_tile_slots},
    {"retarget_transfer_unit", retarget_transfer_unit},
    {"retarget_transfer_slot", retarget_transfer_slot},
    {"retarget_transfer_peer", retarget_transfer_peer},
    {"change_transfer_kind", change_transfer_kind},
    {"change_wire", change_wire},
    {"change_wire_of_kind", change_wire_of_kind},
    {"swap_transfers", swap_transfers},
    {"swap_transfer_slots", swap_transfer_slots},
    {"drop_transfer_end", drop_transfer_end},
    {"duplicate_transfer_end", duplicate_transfer_end},
    {"drop_transfer", drop_transfer},
    {"split_launch", split_launch},
    {"change_launch_id", change_launch_id},
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

std::span<const PlanMutation> program_mutations() { return kMutations; }

}  // namespace contextile
