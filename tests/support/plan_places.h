// Finding the parts of a plan that mutations change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "contextile/plan.h"
#include "support/plan_support.h"

namespace contextile {

inline constexpr auto kAny = [](const auto&) { return true; };

struct ProgramPlace {
  PlanRound* round;
  std::size_t rank;
  std::size_t mask;
  Direction direction;
  Program* program;
};

inline std::vector<ProgramPlace> programs_of(Plan& plan) {
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

inline std::vector<OpPlace<AttentionOp>> attentions_of(Plan& plan, std::size_t min_tiles = 1) {
  return ops_of<AttentionOp>(plan,
                             [&](const AttentionOp& op) { return op.tiles.size() >= min_tiles; });
}

// Lists of sends and of receives with at least `min_size` ends.
inline std::vector<std::vector<TransferEnd>*> ends_of(Plan& plan, std::size_t min_size = 1) {
  std::vector<std::vector<TransferEnd>*> lists;
  for (const auto& place : ops_of<LaunchOp>(plan, [](const LaunchOp&) { return true; })) {
    for (auto* ends : {&place.op->sends, &place.op->recvs}) {
      if (ends->size() >= min_size) lists.push_back(ends);
    }
  }
  return lists;
}

// Lists of staging slots, of every program and kind, that are not empty.
inline std::vector<std::vector<StagingSlot>*> stagings_of(Plan& plan) {
  std::vector<std::vector<StagingSlot>*> lists;
  for (const ProgramPlace& at : programs_of(plan)) {
    for (auto& slots : at.program->staging) {
      if (!slots.empty()) lists.push_back(&slots);
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

inline std::int32_t step(Chance& chance) { return chance.one_in(2) ? 1 : -1; }

}  // namespace contextile
