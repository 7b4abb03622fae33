// Loads and stores (section 9.7.9 of the PTX manual) and cp.async (9.7.9.25).
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "gpu/emulated/handlers.h"
#include "gpu/emulated/operands.h"

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
  if (count < 1 || count > 4) fault("{}: expected 1 to 4 elements, found {}", in.text, count);
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
  constexpr std::size_t kMostCopies = std::size_t{1} << 20;
  if (warp.copies.size() >= kMostCopies) fault("{}: expected a wait for earlier ones", in.text);
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

// The elements of loads and stores and their bytes.
constexpr std::pair<const char*, int> kTypes[] = {
    {"b8", 1},  {"u8", 1},  {"s8", 1},  {"b16", 2}, {"u16", 2}, {"s16", 2}, {"b32", 4},
    {"u32", 4}, {"s32", 4}, {"f32", 4}, {"b64", 8}, {"u64", 8}, {"s64", 8}, {"f64", 8}};

// ld.global.v2.u32 and its like. Without a space addresses are generic, which are those of global
// memory here.
bool is_load_or_store(std::string_view opcode) {
  return opcode.starts_with("ld.") || opcode.starts_with("st.");
}

}  // namespace

void set_memory_form(Instruction& in) {
  const std::string_view opcode = in.opcode;
  if (!is_load_or_store(opcode)) return;
  const std::string_view type = opcode.substr(opcode.rfind('.') + 1);
  for (const auto& [name, bytes] : kTypes) {
    if (type == name) in.form.bytes = bytes;
  }
  in.form.is_store = opcode.starts_with("st.");
  in.form.is_signed = type.starts_with("s");
}

void add_memory_handlers(Handlers& all) {
  for (const auto& [type, bytes] : kTypes) {
    for (const char* vector : {"", ".v2", ".v4"}) {
      const std::string rest = std::string(vector) + "." + type;
      for (const std::string operation : {"ld", "st"}) {
        for (const char* space : {"", ".global"}) all[operation + space + rest] = access_memory;
        all[operation + ".shared" + rest] = access_shared;
      }
      all["ld.param" + rest] = access_memory;
    }
  }
  all["cp.async.cg.shared.global"] = copy_async;
  all["cp.async.wait_all"] = wait_for_copies;
}

}  // namespace contextile::ptx
