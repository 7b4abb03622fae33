// Short names for the parts of example_plan(), for tests that change one of them.
#pragma once

#include <cstddef>
#include <variant>
#include <vector>

#include "contextile/plan.h"

namespace contextile {

inline PlanRound& round_of(Plan& plan) { return plan.rounds.front(); }
inline Program& forward(Plan& plan, std::size_t rank) {
  return *round_of(plan).devices[rank].programs.front().forward;
}
inline Program& backward(Plan& plan, std::size_t rank) {
  return *round_of(plan).devices[rank].programs.front().backward;
}
template <typename Op>
Op& op(Program& program, std::size_t index) {
  return std::get<Op>(program.instructions[index]);
}
inline TileOp& tile(Program& program, std::size_t instruction, std::size_t index = 0) {
  return op<AttentionOp>(program, instruction).tiles[index];
}
inline std::vector<StagingSlot>& staging(Program& program, Kind kind) {
  return program.staging[static_cast<std::size_t>(kind)];
}
inline void erase(Program& program, std::ptrdiff_t index) {
  program.instructions.erase(program.instructions.begin() + index);
}

}  // namespace contextile
