// Places of a program's units in memory: in the caller's tensors, accumulators and arenas.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/kernel.h"
#include "contextile/plan.h"
#include "runtime/executor/prepared_plan.h"
#include "runtime/executor/unit_view.h"

namespace contextile {

// The caller's tensors of a round's rows, all heads, by kind and part: the owned q and kv, and in
// backward do (dO, final LSE, delta).
using OwnedInputs = ByKindAndPart<TensorView>;

class ProgramViews {
 public:
  // `buffer` holds program.total_bytes bytes. Arguments passed by reference must outlive the views;
  // the inputs are copied.
  ProgramViews(const AttentionShape& shape, const LocalRound& round, const LocalProgram& program,
               Direction direction, const OwnedInputs& inputs, std::byte* buffer);

  // The unit's parts in their place.
  [[nodiscard]] UnitView unit(Kind kind, BlockId block, GroupId group, SlotId slot) const;
  // All heads of an owned result.
  [[nodiscard]] UnitView owned_result(Kind kind, std::size_t position) const;
  // Everything that units are rows of, in one order for all calls of the program.
  [[nodiscard]] std::vector<TensorView> arrays() const;

  // The tiles of an instruction, whose first is number `first_tile` of the program: one for each
  // of the round's head groups, of which a tile may have several.
  [[nodiscard]] std::vector<ForwardTile> forward_tiles(const AttentionOp& op, const LocalMask& mask,
                                                       std::size_t first_tile) const;
  [[nodiscard]] std::vector<BackwardTile> backward_tiles(const AttentionOp& op,
                                                         const LocalMask& mask,
                                                         std::size_t first_tile) const;

 private:
  const AttentionShape& shape_;
  const LocalRound& round_;
  const LocalProgram& program_;
  const OwnedInputs inputs_;
  ByKindAndPart<TensorView>
      accumulators_{};                  // all heads, the rows of blocks whose role has the kind
  ByKindAndPart<TensorView> arenas_{};  // the heads of one of the round's groups
};

// Tensors of a program's calls at addresses that hold nothing, each in a part of the address space
// of its own: lists are made of them before the first call.
struct StandIns {
  OwnedInputs inputs{};
  std::byte* buffer = nullptr;
};
[[nodiscard]] StandIns stand_ins(const AttentionShape& shape, const LocalRound& round,
                                 Direction direction);

}  // namespace contextile
