// Branches and exits (section 9.7.12 of the PTX manual), and the table of all handlers.
#include <string>

#include "gpu/emulated/handlers.h"

namespace contextile::ptx {
namespace {

void jump(Block&, Warp& warp, const Instruction&, LaneMask mask) { warp.jumping = mask; }

void leave(Block&, Warp& warp, const Instruction&, LaneMask mask) { warp.alive &= ~mask; }

const Handlers& handlers() {
  static const Handlers kAll = [] {
    Handlers all;
    add_integer_handlers(all);
    add_float_handlers(all);
    add_move_handlers(all);
    add_control_handlers(all);
    add_memory_handlers(all);
    add_barrier_handlers(all);
    add_tensor_handlers(all);
    add_product_handlers(all);
    return all;
  }();
  return kAll;
}

}  // namespace

void add_control_handlers(Handlers& all) {
  all["bra"] = jump;
  all["bra.uni"] = jump;
  all["ret"] = leave;
  all["exit"] = leave;
}

void resolve(Instruction& in) {
  if (resolve_product(in)) return;
  set_memory_form(in);
  const auto found = handlers().find(in.opcode);
  if (found == handlers().end()) fault("unknown instruction {}", in.text);
  in.run = found->second;
  in.form.is_arrival = in.opcode == "bar.arrive";
  in.form.is_transposed = in.opcode.find(".trans.") != std::string::npos;
  in.form.is_bf16 = in.opcode.find("bf16") != std::string::npos;
}

}  // namespace contextile::ptx
