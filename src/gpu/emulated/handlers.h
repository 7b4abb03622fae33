// Handlers of instructions by opcode, one function for each family of the PTX manual.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>

#include "gpu/emulated/state.h"

namespace contextile::ptx {

using Handlers = std::unordered_map<std::string, Handler>;

void add_integer_handlers(Handlers& all);
void add_float_handlers(Handlers& all);
void add_move_handlers(Handlers& all);
void add_control_handlers(Handlers& all);
void add_memory_handlers(Handlers& all);
void add_barrier_handlers(Handlers& all);
void add_tensor_handlers(Handlers& all);
void add_product_handlers(Handlers& all);

// Sets the form of a load or a store.
void set_memory_form(Instruction& in);
// Sets the handler and the form of an asynchronous product; false for any other instruction.
[[nodiscard]] bool resolve_product(Instruction& in);

// Sets the handler and the form of any instruction. Throws Fault, which names the instruction, if
// there is none.
void resolve(Instruction& in);

// Completes the TMA copies that an mbarrier waits for.
void finish_box_copies(Block& block, std::uint32_t barrier);
// Removes bytes that a copy wrote from those that an mbarrier waits for.
void complete_bytes(Block& block, std::uint32_t barrier, std::int64_t bytes);
[[nodiscard]] PhaseBarrier& phase_barrier_at(Block& block, std::uint32_t address);
void start_box_copy(Block& block, Warp& warp, const Instruction& in, LaneMask mask);

}  // namespace contextile::ptx
