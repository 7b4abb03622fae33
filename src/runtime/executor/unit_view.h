// The parts of a unit, and their places in memory or on the wire.
//
// A unit (kind, token block, head group) has up to three parts, each [tokens, heads, dim]:
//   q: Q;  kv: K, V;  o: O, LSE;  do: dO, LSE, delta;  dq: dQ;  dkv: dK, dV.
// LSE and delta are fp32 parts of dim 1. On the wire the parts follow one another, each token by
// token.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "contextile/extend/arrangement.h"
#include "contextile/extend/kernel.h"
#include "contextile/extend/transport.h"
#include "kernel/row_ops.h"

namespace contextile {

// Place of a kind in arrays with one element per kind.
[[nodiscard]] constexpr std::size_t index_of(Kind kind) { return static_cast<std::size_t>(kind); }

inline constexpr std::size_t kMaxParts = 3;

struct PartShape {
  std::int32_t heads = 0;
  std::int32_t dim = 0;
  Dtype dtype = Dtype::kF32;
};

// A unit of one head group (heads / head_groups) as slots hold it: inputs in the activation dtype,
// results in fp32.
struct UnitShape {
  std::size_t num_parts = 0;
  std::array<PartShape, kMaxParts> parts;
};
[[nodiscard]] UnitShape unit_shape(Kind kind, const AttentionShape& shape,
                                   std::int32_t head_groups);

// The kernel's parameters for one head group.
[[nodiscard]] KernelParams kernel_params(const AttentionShape& shape, std::int32_t head_groups);

struct UnitView {
  Kind kind = Kind::kQ;
  std::size_t num_parts = 0;
  std::array<TensorView, kMaxParts> parts;
};

// Results are fp32 in their slots; a narrower wire needs a converted copy.
[[nodiscard]] constexpr bool is_converted(Kind kind, Dtype wire) {
  return is_result(kind) && wire != Dtype::kF32;
}

// Returns true for LSE and delta, which are fp32 on any wire.
[[nodiscard]] constexpr bool is_stat(Kind kind, std::size_t part) {
  return part > 0 && (kind == Kind::kO || kind == Kind::kDo);
}

// Appends the unit's bytes in wire order, without a copy.
void append_segments(const UnitView& unit, std::vector<Segment>& segments);

// Converts a result to and from its wire form: rows as `wire`, LSE as fp32, nothing between.
// `bytes` holds unit_bytes(kind, tokens, shape, groups, wire) bytes at any alignment of two.
[[nodiscard]] std::vector<RowOps::Convert> packing(const UnitView& unit, Dtype wire,
                                                   std::byte* bytes);
[[nodiscard]] std::vector<RowOps::Convert> unpacking(const UnitView& unit, Dtype wire,
                                                     const std::byte* bytes);
void pack_unit(const RowOps& rows, const UnitView& unit, Dtype wire, std::byte* bytes);
void unpack_unit(const RowOps& rows, const UnitView& unit, Dtype wire, const std::byte* bytes);

}  // namespace contextile
