// Operands of instructions, read for all lanes at once.
#pragma once

#include <bit>
#include <cstdint>

#include "gpu/emulated/state.h"

namespace contextile::ptx {

// The lower 32 bits of an operand. Registers may be wider than the instruction's type (section
// 9.4.1 of the manual).
class Words {
 public:
  Words(const Block& block, const Warp& warp, const Operand& operand);
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  std::uint32_t operator[](int lane) const { return (*at_)[static_cast<std::size_t>(lane)]; }

 private:
  const Lanes32* at_;
  Lanes32 own_;
};

// All 64 bits of an operand.
class Wides {
 public:
  Wides(const Block& block, const Warp& warp, const Operand& operand);
  Wides(const Wides&) = delete;
  Wides& operator=(const Wides&) = delete;
  std::uint64_t operator[](int lane) const { return (*at_)[static_cast<std::size_t>(lane)]; }

 private:
  const Lanes64* at_;
  Lanes64 own_;
};

[[nodiscard]] LaneMask read_predicate(const Block& block, const Warp& warp, const Operand& operand);

// The address that one lane uses.
[[nodiscard]] std::uint64_t address_of(const Block& block, const Warp& warp, const Operand& operand,
                                       int lane);

[[nodiscard]] inline bool has(LaneMask mask, int lane) { return (mask >> lane & 1) != 0; }

template <typename Work>
void each_lane(LaneMask mask, const Work& work) {
  for (int lane = 0; lane < kLanes; ++lane) {
    if (has(mask, lane)) work(lane);
  }
}

// The lanes of a register that an instruction writes. Throws Fault if it is of another kind.
[[nodiscard]] inline Lanes32& words_of(Warp& warp, const Operand& to) {
  if (to.kind != Operand::Kind::kWord) fault("expected a register of 32 bits, found {}", to.text);
  return warp.words[to.index];
}
[[nodiscard]] inline Lanes64& wides_of(Warp& warp, const Operand& to) {
  if (to.kind != Operand::Kind::kWide) fault("expected a register of 64 bits, found {}", to.text);
  return warp.wides[to.index];
}
// "_" drops a predicate.
inline void write_predicate(Warp& warp, const Operand& to, LaneMask mask, LaneMask value) {
  if (to.kind == Operand::Kind::kNone) return;
  if (to.kind != Operand::Kind::kPredicate) fault("expected a predicate, found {}", to.text);
  LaneMask& all = warp.predicates[to.index];
  all = (all & ~mask) | (value & mask);
}
inline void write_word(Warp& warp, const Operand& to, int lane, std::uint32_t value) {
  words_of(warp, to)[static_cast<std::size_t>(lane)] = value;
}
inline void write_wide(Warp& warp, const Operand& to, int lane, std::uint64_t value) {
  wides_of(warp, to)[static_cast<std::size_t>(lane)] = value;
}

}  // namespace contextile::ptx
