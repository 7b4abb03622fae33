#include "contextile/plan.h"

#include <algorithm>

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

std::int64_t PlanRound::owned_tokens(Rank rank) const {
  std::int64_t tokens = 0;
  for (std::int32_t b = 0; b < blocks.num_blocks(); ++b) {
    const BlockId block{b};
    if (owners[block.index()] == rank) tokens += blocks.num_tokens(block);
  }
  return tokens;
}

bool Plan::has_direction(Direction direction) const {
  const auto has = [&](const ProgramPair& pair) { return pair.of(direction).has_value(); };
  for (const PlanRound& round : rounds) {
    for (const DeviceProgram& device : round.devices) {
      if (std::ranges::any_of(device.programs, has)) return true;
    }
  }
  return false;
}

}  // namespace contextile
