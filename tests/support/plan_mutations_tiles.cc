// Mutations of tiles and of transfers.
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

// ----------------------------------------------------------------------------------- tiles

bool drop_tile(Plan& plan, Chance& chance) {
  auto places = attentions_of(plan);
  if (places.empty()) return false;
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
  if (places.empty()) return false;
  const auto& from = chance.pick(places);
  const TileOp tile = chance.pick(from.op->tiles);
  AttentionOp* to = chance.one_in(2) ? from.op : other_call(places, from, chance);
  if (to == nullptr) return false;
  put(to->tiles, chance.below(to->tiles.size() + 1), tile);
  return true;
}

bool move_tile(Plan& plan, Chance& chance) {
  auto places = attentions_of(plan);
  if (places.empty()) return false;
  const auto& from = chance.pick(places);
  AttentionOp* to = other_call(places, from, chance);
  if (to == nullptr) return false;
  to->tiles.push_back(take(from.op->tiles, chance.below(from.op->tiles.size())));
  return true;
}

bool reorder_tiles(Plan& plan, Chance& chance) {
  auto places = attentions_of(plan, 2);
  return !places.empty() && swap_two(chance.pick(places).op->tiles, chance);
}

// Changes one tile chosen at random.
template <typename Change>
bool change_tile(Plan& plan, Chance& chance, Change change) {
  auto places = attentions_of(plan);
  if (places.empty()) return false;
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

// Gives a forward tile what only backward ones have.
bool mix_directions(Plan& plan, Chance& chance) {
  return change_tile(plan, chance, [&](TileOp& tile, const ProgramPlace& at) {
    if (at.direction != Direction::kForward) return false;
    switch (chance.below(3)) {
      case 0:
        tile.init_dkv = true;
        break;
      case 1:
        tile.d_o = tile.q;
        break;
      default:
        tile.dkv = tile.kv;
    }
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
  if (places.empty()) return false;
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
  if (lists.empty()) return false;
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

// Changes both ends of everything in a direction: the ends agree, the dtype may be wrong.
bool change_wire_of_kind(Plan& plan, Chance& chance) {
  auto lists = ends_of(plan);
  if (lists.empty()) return false;
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
  return !lists.empty() && swap_two(*chance.pick(lists), chance);
}

bool swap_transfer_slots(Plan& plan, Chance& chance) {
  auto lists = ends_of(plan, 2);
  if (lists.empty()) return false;
  auto& ends = *chance.pick(lists);
  TransferEnd& a = chance.pick(ends);
  TransferEnd& b = chance.pick(ends);
  if (a.slot == b.slot) return false;
  std::swap(a.slot, b.slot);
  return true;
}

bool drop_transfer_end(Plan& plan, Chance& chance) {
  auto lists = ends_of(plan);
  if (lists.empty()) return false;
  auto& ends = *chance.pick(lists);
  take(ends, chance.below(ends.size()));
  return true;
}

bool duplicate_transfer_end(Plan& plan, Chance& chance) {
  auto lists = ends_of(plan);
  if (lists.empty()) return false;
  auto& ends = *chance.pick(lists);
  const TransferEnd copy = chance.pick(ends);
  ends.push_back(copy);
  return true;
}

// Both ends of every transfer of one unit from one rank to another.
bool drop_transfer(Plan& plan, Chance& chance) {
  auto launches = ops_of<LaunchOp>(plan, [](const LaunchOp& op) { return !op.sends.empty(); });
  if (launches.empty()) return false;
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
  if (launches.empty()) return false;
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
  if (places.empty()) return false;
  const InstructionPlace place = chance.pick(places);
  Instruction& instruction = (*place.list)[place.index];
  if (auto* launch = std::get_if<LaunchOp>(&instruction)) {
    launch->id += step(chance);
  } else {
    std::get<WaitOp>(instruction).id += step(chance);
  }
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
    {"mix_directions", mix_directions},
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
};

}  // namespace

std::span<const PlanMutation> tile_mutations() { return kMutations; }

}  // namespace contextile
