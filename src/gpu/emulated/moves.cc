// Moves, conversions and selection (sections 9.7.9 and 9.7.6 of the PTX manual), logic of
// predicates (9.7.8), shuffles (9.7.9.6) and votes (9.7.13.10).
#include <array>
#include <cmath>
#include <cstdint>
#include <string>

#include "gpu/emulated/arithmetic.h"
#include "gpu/emulated/handlers.h"
#include "gpu/emulated/numbers.h"

namespace contextile::ptx {
namespace {

// Two halves of 32 bits and one register of 64, either way. Two of 16 bits and one of 32 likewise.
void move_parts(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  const Operand& to = in.operands[0];
  const Operand& from = in.operands[1];
  const bool is_wide = in.opcode == "mov.b64";
  if (to.parts.size() != 2 && from.parts.size() != 2) fault("{}: expected two parts", in.text);
  if (to.kind == Operand::Kind::kVector && is_wide) {
    const Wides whole(block, warp, from);
    each_lane(mask, [&](int lane) {
      const std::uint64_t value = whole[lane];
      for (std::size_t part = 0; part < 2; ++part) {
        if (to.parts[part].kind == Operand::Kind::kNone) continue;
        write_word(warp, to.parts[part], lane, static_cast<std::uint32_t>(value >> 32 * part));
      }
    });
    return;
  }
  if (to.kind == Operand::Kind::kVector) {
    const Words whole(block, warp, from);
    each_lane(mask, [&](int lane) {
      const std::uint32_t value = whole[lane];
      for (std::size_t part = 0; part < 2; ++part) {
        if (to.parts[part].kind == Operand::Kind::kNone) continue;
        write_word(warp, to.parts[part], lane, value >> 16 * part & 0xffffU);
      }
    });
    return;
  }
  const Words low(block, warp, from.parts[0]);
  const Words high(block, warp, from.parts[1]);
  each_lane(mask, [&](int lane) {
    if (is_wide) {
      write_wide(warp, to, lane, std::uint64_t{low[lane]} | std::uint64_t{high[lane]} << 32);
    } else {
      write_word(warp, to, lane, (low[lane] & 0xffffU) | high[lane] << 16);
    }
  });
}

void move(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  const Operand& to = in.operands[0];
  const Operand& from = in.operands[1];
  if (to.kind == Operand::Kind::kVector || from.kind == Operand::Kind::kVector) {
    move_parts(block, warp, in, mask);
  } else if (to.kind == Operand::Kind::kWide) {
    const Wides value(block, warp, from);
    each_lane(mask, [&](int lane) { write_wide(warp, to, lane, value[lane]); });
  } else {
    const Words value(block, warp, from);
    each_lane(mask, [&](int lane) { write_word(warp, to, lane, value[lane]); });
  }
}

void select(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  const LaneMask chosen = read_predicate(block, warp, in.operands[3]);
  const Operand& to = in.operands[0];
  if (to.kind == Operand::Kind::kWide) {
    const Wides yes(block, warp, in.operands[1]);
    const Wides no(block, warp, in.operands[2]);
    each_lane(mask, [&](int lane) {
      write_wide(warp, to, lane, has(chosen, lane) ? yes[lane] : no[lane]);
    });
  } else {
    const Words yes(block, warp, in.operands[1]);
    const Words no(block, warp, in.operands[2]);
    each_lane(mask, [&](int lane) {
      write_word(warp, to, lane, has(chosen, lane) ? yes[lane] : no[lane]);
    });
  }
}

// Section 9.7.9.6: the lane that each lane reads, which is itself beyond its segment's bound.
int shuffled_lane(std::string_view opcode, int lane, std::uint32_t by, std::uint32_t bounds) {
  const auto segment = static_cast<int>(bounds >> 8 & 31);
  const auto clamp = static_cast<int>(bounds & 31);
  const auto offset = static_cast<int>(by & 31);
  const int first = lane & segment;
  const int last = first | (clamp & ~segment);
  int from = 0;
  bool is_inside = false;
  if (opcode.find(".idx.") != std::string_view::npos) {
    from = first | (offset & ~segment);
    is_inside = from <= last;
  } else if (opcode.find(".bfly.") != std::string_view::npos) {
    from = lane ^ offset;
    is_inside = from <= last;
  } else if (opcode.find(".down.") != std::string_view::npos) {
    from = lane + offset;
    is_inside = from <= last;
  } else {  // up, whose bound is the first lane
    from = lane - offset;
    is_inside = from >= (first | (clamp & ~segment));
  }
  return is_inside ? from : lane;
}

void vote_any(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  require_whole_warp(warp, in, mask);
  const Words members(block, warp, in.operands[2]);
  if (members[0] != kAllLanes) fault("{}: expected all lanes as members", in.text);
  const bool any = read_predicate(block, warp, in.operands[1]) != 0;
  write_predicate(warp, in.operands[0], mask, any ? kAllLanes : 0);
}

void shuffle(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  require_whole_warp(warp, in, mask);
  const Words value(block, warp, in.operands[1]);
  const Words by(block, warp, in.operands[2]);
  const Words bounds(block, warp, in.operands[3]);
  const Words members(block, warp, in.operands[4]);
  if (members[0] != kAllLanes) fault("{}: expected all lanes as members", in.text);
  Lanes32 results;
  for (int lane = 0; lane < kLanes; ++lane) {
    results[static_cast<std::size_t>(lane)] =
        value[shuffled_lane(in.opcode, lane, by[lane], bounds[lane])];
  }
  words_of(warp, in.operands[0]) = results;
}

template <LaneMask (*kOperation)(LaneMask, LaneMask)>
void combine_predicates(Block& block, Warp& warp, const Instruction& in, LaneMask mask) {
  const LaneMask left = read_predicate(block, warp, in.operands[1]);
  const bool has_right = in.operands.size() > 2;
  const LaneMask right = has_right ? read_predicate(block, warp, in.operands[2]) : 0;
  write_predicate(warp, in.operands[0], mask, kOperation(left, right));
}

LaneMask both(LaneMask x, LaneMask y) { return x & y; }
LaneMask any(LaneMask x, LaneMask y) { return x | y; }
LaneMask differ(LaneMask x, LaneMask y) { return x ^ y; }
LaneMask same(LaneMask x, LaneMask) { return x; }
LaneMask inverse(LaneMask x, LaneMask) { return ~x; }

std::uint32_t packed(std::uint16_t high, std::uint16_t low) {
  return std::uint32_t{high} << 16 | low;
}

void add_conversions(Handlers& all) {
  all["cvt.s64.s32"] = each([](s32 x) { return s64{x}; });
  all["cvt.u64.u32"] = each([](u32 x) { return u64{x}; });
  all["cvt.s64.s16"] = each([](s16 x) { return s64{x}; });
  all["cvt.u64.u16"] = each([](u16 x) { return u64{x}; });
  all["cvt.u32.u64"] = each([](u64 x) { return static_cast<u32>(x); });
  all["cvt.u16.u64"] = each([](u64 x) { return static_cast<u16>(x); });
  all["cvt.u32.u16"] = each([](u16 x) { return u32{x}; });
  all["cvt.u16.u32"] = each([](u32 x) { return static_cast<u16>(x); });
  all["cvt.s32.s16"] = each([](s16 x) { return s32{x}; });
  all["cvt.u32.u8"] = each([](u8 x) { return u32{x}; });
  all["cvt.u16.u8"] = each([](u8 x) { return u16{x}; });
  all["cvt.s32.s8"] = each([](s8 x) { return s32{x}; });
  all["cvt.s16.s8"] = each([](s8 x) { return s16{x}; });
  all["cvt.rn.f32.s32"] = each([](s32 x) { return static_cast<float>(x); });
  all["cvt.rn.f32.u32"] = each([](u32 x) { return static_cast<float>(x); });
  all["cvt.rn.f32.u16"] = each([](u16 x) { return static_cast<float>(x); });
  all["cvt.rn.f32.s16"] = each([](s16 x) { return static_cast<float>(x); });
  all["cvt.rn.f32.f64"] = each([](double x) { return static_cast<float>(x); });
  all["cvt.f64.f32"] = each([](float x) { return double{x}; });
  // NaN saturates to 0.
  all["cvt.sat.f32.f32"] = each([](float x) { return x > 0 ? std::fmin(x, 1.0F) : 0.0F; });
  // The first operand goes to the upper half.
  all["cvt.rn.bf16x2.f32"] = each([](float x, float y) { return packed(bf16_of(x), bf16_of(y)); });
  all["cvt.rn.f16x2.f32"] = each([](float x, float y) { return packed(f16_of(x), f16_of(y)); });
}

}  // namespace

void add_move_handlers(Handlers& all) {
  for (const char* type :
       {"b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"}) {
    all[std::string("mov.") + type] = move;
    all[std::string("selp.") + type] = select;
  }
  // Generic addresses of global memory and parameters are the addresses themselves.
  all["cvta.to.global.u64"] = move;
  all["cvta.param.u64"] = move;
  all["vote.sync.any.pred"] = vote_any;
  all["mov.pred"] = combine_predicates<same>;
  all["not.pred"] = combine_predicates<inverse>;
  all["and.pred"] = combine_predicates<both>;
  all["or.pred"] = combine_predicates<any>;
  all["xor.pred"] = combine_predicates<differ>;
  for (const char* mode : {"idx", "bfly", "down", "up"}) {
    all[std::string("shfl.sync.") + mode + ".b32"] = shuffle;
  }
  add_conversions(all);
}

}  // namespace contextile::ptx
