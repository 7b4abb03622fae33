#include "runtime/executor/unit_view.h"

#include "kernel/tensor.h"

namespace contextile {

UnitShape unit_shape(Kind kind, const AttentionShape& shape, std::int32_t head_groups) {
  const std::int32_t q_heads = shape.q_heads / head_groups;
  const std::int32_t kv_heads = shape.kv_heads / head_groups;
  const PartShape stat{q_heads, 1, Dtype::kF32};
  switch (kind) {
    case Kind::kQ:
      return {1, {PartShape{q_heads, shape.head_dim, shape.dtype}}};
    case Kind::kKv:
      return {2,
              {PartShape{kv_heads, shape.head_dim, shape.dtype},
               PartShape{kv_heads, shape.value_dim, shape.dtype}}};
    case Kind::kO:
      return {2, {PartShape{q_heads, shape.value_dim, Dtype::kF32}, stat}};
    case Kind::kDo:
      return {3, {PartShape{q_heads, shape.value_dim, shape.dtype}, stat, stat}};
    case Kind::kDq:
      return {1, {PartShape{q_heads, shape.head_dim, Dtype::kF32}}};
    case Kind::kDkv:
      return {2,
              {PartShape{kv_heads, shape.head_dim, Dtype::kF32},
               PartShape{kv_heads, shape.value_dim, Dtype::kF32}}};
  }
  return {};
}

KernelParams kernel_params(const AttentionShape& shape, std::int32_t head_groups) {
  KernelParams params;
  params.q_heads = shape.q_heads / head_groups;
  params.kv_heads = shape.kv_heads / head_groups;
  params.head_dim = shape.head_dim;
  params.value_dim = shape.value_dim;
  params.scale = static_cast<float>(shape.effective_scale());
  params.softcap = static_cast<float>(shape.softcap);
  return params;
}

void append_segments(const UnitView& unit, std::vector<Segment>& segments) {
  for (std::size_t p = 0; p < unit.num_parts; ++p) {
    const TensorView& view = unit.parts[p];
    const std::int64_t element = bytes_per_element(view.dtype);
    const std::int64_t row_bytes = view.dim * element;
    if (view.heads == 1 || view.head_stride == view.dim) {  // the heads of a token side by side
      segments.push_back({static_cast<std::byte*>(view.data), row_bytes * view.heads, view.tokens,
                          view.token_stride * element});
      continue;
    }
    for (std::int64_t n = 0; n < view.tokens; ++n) {
      segments.push_back({static_cast<std::byte*>(view.data) + n * view.token_stride * element,
                          row_bytes, view.heads, view.head_stride * element});
    }
  }
}

namespace {

// Calls visit(part, the same on the wire) for every part; `bytes` may lie at an odd multiple of
// two, even if a part is fp32.
template <typename Visit>
void for_each_wire_part(const UnitView& unit, Dtype wire, std::byte* bytes, const Visit& visit) {
  for (std::size_t p = 0; p < unit.num_parts; ++p) {
    const TensorView& view = unit.parts[p];
    const Dtype dtype = is_stat(unit.kind, p) ? Dtype::kF32 : wire;
    visit(view, contiguous(bytes, dtype, view.tokens, view.heads, view.dim));
    bytes += view.tokens * view.heads * view.dim * bytes_per_element(dtype);
  }
}

}  // namespace

std::vector<RowOps::Convert> packing(const UnitView& unit, Dtype wire, std::byte* bytes) {
  std::vector<RowOps::Convert> list;
  for_each_wire_part(unit, wire, bytes, [&](const TensorView& part, const TensorView& on_wire) {
    list.push_back({on_wire, part});
  });
  return list;
}

std::vector<RowOps::Convert> unpacking(const UnitView& unit, Dtype wire, const std::byte* bytes) {
  std::vector<RowOps::Convert> list;
  for_each_wire_part(unit, wire, const_cast<std::byte*>(bytes),  // only read
                     [&](const TensorView& part, const TensorView& on_wire) {
                       list.push_back({part, on_wire});
                     });
  return list;
}

void pack_unit(const RowOps& rows, const UnitView& unit, Dtype wire, std::byte* bytes) {
  rows.convert_all(packing(unit, wire, bytes));
}

void unpack_unit(const RowOps& rows, const UnitView& unit, Dtype wire, const std::byte* bytes) {
  rows.convert_all(unpacking(unit, wire, bytes));
}

}  // namespace contextile
