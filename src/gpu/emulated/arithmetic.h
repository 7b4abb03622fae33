// Makes a handler of a function of one lane's values. The types of its parameters and its result
// say how registers are read and written: bool is a predicate, types of at most 32 bits are words,
// the others are wide.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "gpu/emulated/operands.h"

namespace contextile::ptx {

// Integers, as PTX names them.
using s8 = std::int8_t;
using u8 = std::uint8_t;
using s16 = std::int16_t;
using u16 = std::uint16_t;
using s32 = std::int32_t;
using u32 = std::uint32_t;
using s64 = std::int64_t;
using u64 = std::uint64_t;

template <typename T>
T as(std::uint32_t word) {
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<float>(word);
  } else {
    return static_cast<T>(word);
  }
}
template <typename T>
T as(std::uint64_t wide) {
  return std::bit_cast<T>(wide);
}
// Bits of a result; those of 8 and 16 bits are extended by their sign, if they have one.
template <typename T>
auto bits_of(T value) {
  if constexpr (sizeof(T) == 8) {
    return std::bit_cast<std::uint64_t>(value);
  } else if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<std::uint32_t>(value);
  } else {
    return static_cast<std::uint32_t>(value);
  }
}

template <typename T>
using Source = std::conditional_t<sizeof(T) == 8, Wides, Words>;

template <typename Function, typename Result, typename... Arguments>
void write_each(Warp& warp, const Operand& to, LaneMask mask, const Source<Arguments>&... from) {
  const auto value = [&](int lane) { return Function{}(as<Arguments>(from[lane])...); };
  if constexpr (std::is_same_v<Result, bool>) {
    LaneMask found = 0;
    each_lane(mask, [&](int lane) { found |= LaneMask{value(lane)} << lane; });
    write_predicate(warp, to, mask, found);
  } else if constexpr (sizeof(Result) == 8) {
    each_lane(mask, [&](int lane) { write_wide(warp, to, lane, bits_of<Result>(value(lane))); });
  } else if (mask == kAllLanes) {
    Lanes32 results;  // no register, so that the loop is vectorized
    for (int lane = 0; lane < kLanes; ++lane) {
      results[static_cast<std::size_t>(lane)] = bits_of<Result>(value(lane));
    }
    words_of(warp, to) = results;
  } else {
    each_lane(mask, [&](int lane) { write_word(warp, to, lane, bits_of<Result>(value(lane))); });
  }
}

template <typename Function, typename Result, typename... Arguments, std::size_t... kAt>
void run_each(Block& block, Warp& warp, const Instruction& in, LaneMask mask,
              std::index_sequence<kAt...>) {
  write_each<Function, Result, Arguments...>(
      warp, in.operands[0], mask, Source<Arguments>(block, warp, in.operands[kAt + 1])...);
}

template <typename Function, typename Result, typename... Arguments>
Handler handler_of(Result (Function::*)(Arguments...) const) {
  return [](Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
    run_each<Function, Result, Arguments...>(block, warp, in, mask,
                                             std::index_sequence_for<Arguments...>());
  };
}

// The function must be a lambda without captures.
template <typename Function>
Handler each(Function) {
  return handler_of(&Function::operator());
}

}  // namespace contextile::ptx
