// Loads and stores (section 9.7.9 of the PTX manual) and cp.async (9.7.9.25).
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "support/ptx/handlers.h"
#include "support/ptx/operands.h"

namespace contextile::ptx {
namespace {

// Signed elements are extended by their sign to the register's size.
std::uint64_t loaded(const std::uint8_t* from, const Form& form) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, from, static_cast<std::size_t>(form.bytes));
  const int unused = 64 - 8 * form.bytes;
  if (!form.is_signed || unused == 0) return bits;
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(bits << unused) >> unused);
}

void load(Warp& warp, const Operand& to, const std::uint8_t* from, const Form& form, int lane) {
  const std::uint64_t bits = loaded(from, form);
  if (to.kind == Operand::Kind::kWide) {
    write_wide(warp, to, lane, bits);
  } else if (to.kind != Operand::Kind::kNone) {
    write_word(warp, to, lane, static_cast<std::uint32_t>(bits));
  }
}

void store(const Block& block, const Warp& warp, const Operand& from, std::uint8_t* to, int bytes,
           int lane) {
  std::uint64_t bits = 0;
  if (bytes == 8) {
    bits = Wides(block, warp, from)[lane];
  } else {
    bits = Words(block, warp, from)[lane];
  }
  std::memcpy(to, &bits, static_cast<std::size_t>(bytes));
}

// Moves one element, or all of a vector, for each lane. `place` finds the bytes of a lane.
template <typename Place>
void load_or_store(Block& block, Warp& warp, const Instruction& in, LaneMask mask,
                   const Place& place) {
  const Operand& value = in.operands[in.form.is_store ? 1 : 0];
  const bool is_vector = value.kind == Operand::Kind::kVector;
  const std::size_t count = is_vector ? value.parts.size() : 1;
  const int bytes = in.form.bytes;
  each_lane(mask, [&](int lane) {
    std::uint8_t* at = place(lane, static_cast<std::uint32_t>(count) * bytes);
    for (std::size_t i = 0; i < count; ++i, at += bytes) {
      const Operand& element = is_vector ? value.parts[i] : value;
      if (in.form.is_store) {
        store(block, warp, element, at, bytes, lane);
      } else {
        load(warp, element, at, in.form, lane);
      }
    }
  });
}

const Operand& address_in(const Instruction& in) { return in.operands[in.form.is_store ? 0 : 1]; }

// Global memory and parameters.
void access_memory(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  load_or_store(block, warp, in, mask, [&](int lane, std::uint32_t bytes) {
    const std::uint64_t address = address_of(block, warp, address_in(in), lane);
    if (address % (bytes > 16 ? 16 : bytes) != 0) {
      fault("{}: expected an aligned address, found {} bytes at {:#x}", in.text, bytes, address);
    }
    block.require_memory(address, bytes, in);
    return reinterpret_cast<std::uint8_t*>(address);
  });
}

void access_shared(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  load_or_store(block, warp, in, mask, [&](int lane, std::uint32_t bytes) {
    const auto address = static_cast<std::uint32_t>(address_of(block, warp, address_in(in), lane));
    std::uint8_t* at = block.at(address, bytes);
    if (in.form.is_store) {
      block.note_write(address, bytes, warp);
    } else {
      block.note_read(address, bytes, warp);
    }
    return at;
  });
}

void finish_copies(Block& block, Warp& warp) {
  for (const PendingCopy& copy : warp.copies) {
    std::uint8_t* to = block.at(copy.to, 16);
    std::memset(to, 0, 16);
    if (copy.bytes > 0) std::memcpy(to, reinterpret_cast<const void*>(copy.from), copy.bytes);
  }
  warp.copies.clear();
}

// cp.async: 16 bytes, of which the first come from global memory and the rest are zeros. The
// destination holds NaN until a wait.
void copy_async(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  each_lane(mask, [&](int lane) {
    const auto to = static_cast<std::uint32_t>(address_of(block, warp, in.operands[0], lane));
    const std::uint64_t from = address_of(block, warp, in.operands[1], lane);
    const std::uint32_t bytes =
        in.operands.size() > 3 ? Words(block, warp, in.operands[3])[lane] : 16;
    if (bytes > 16) fault("{}: expected at most 16 bytes, found {}", in.text, bytes);
    if (bytes > 0) {
      if (from % 16 != 0) fault("{}: expected an aligned source, found {:#x}", in.text, from);
      block.require_memory(from, bytes, in);
    }
    std::memset(block.at(to, 16), 0xff, 16);
    block.note_write(to, 16, warp);
    warp.copies.push_back({to, from, bytes});
  });
  if (!block.is_late()) finish_copies(block, warp);
}

void wait_for_copies(Block& block, Warp& warp, const Instruction&, LaneMask) {
  finish_copies(block, warp);
}

int bytes_of_type(std::string_view type) {
  if (type == "u8" || type == "s8" || type == "b8") return 1;
  if (type.ends_with("16")) return 2;
  return type.ends_with("64") ? 8 : 4;
}

}  // namespace

bool resolve_memory(Instruction& in) {
  const std::string_view opcode = in.opcode;
  if (!opcode.starts_with("ld.") && !opcode.starts_with("st.")) return false;
  const std::string_view type = opcode.substr(opcode.rfind('.') + 1);
  in.form.is_store = opcode.starts_with("st.");
  in.form.bytes = bytes_of_type(type);
  in.form.is_signed = type.starts_with("s");
  const bool is_shared = opcode.find(".shared") != std::string_view::npos;
  in.run = is_shared ? access_shared : access_memory;
  return true;
}

void add_memory_handlers(Handlers& all) {
  all["cp.async.cg.shared.global"] = copy_async;
  all["cp.async.wait_all"] = wait_for_copies;
}

}  // namespace contextile::ptx
