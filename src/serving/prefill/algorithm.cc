#include "serving/prefill/algorithm.h"

#include <cstddef>

#include "kernel/tensor.h"

namespace contextile {

std::vector<Rank> PrefillContext::ranks() const {
  std::vector<Rank> ranks(static_cast<std::size_t>(num_ranks()));
  for (std::int32_t r = 0; r < num_ranks(); ++r) ranks[static_cast<std::size_t>(r)] = Rank(r);
  return ranks;
}

KernelParams PrefillContext::params(std::int32_t q_heads, std::int32_t kv_heads) const {
  return {.q_heads = q_heads,
          .kv_heads = kv_heads,
          .head_dim = shape.head_dim,
          .value_dim = shape.value_dim,
          .scale = static_cast<float>(shape.effective_scale()),
          .softcap = static_cast<float>(shape.softcap)};
}

KvBuffer::KvBuffer(const AttentionShape& shape, std::int64_t rows, std::int32_t kv_heads)
    : k_(shape.dtype, rows, kv_heads, shape.head_dim),
      v_(shape.dtype, rows, kv_heads, shape.value_dim) {}

KvRows KvBuffer::rows(std::int64_t first, std::int64_t count) {
  return {slice(k_.view(), first, count, 0, k_.heads()),
          slice(v_.view(), first, count, 0, v_.heads())};
}

PartialBuffer::PartialBuffer(std::int64_t rows, std::int32_t heads, std::int32_t value_dim,
                             Dtype wire)
    : o_(Dtype::kF32, rows, heads, value_dim), lse_(Dtype::kF32, rows, heads, 1) {
  if (wire != Dtype::kF32) travelling_ = HostTensor(wire, rows, heads, value_dim);
}

Message PartialBuffer::message(Rank peer, std::int64_t first, std::int64_t rows,
                               std::int32_t first_head, std::int32_t heads) {
  const TensorView o = travelling_.dim() > 0 ? travelling_.view() : o_.view();
  return {peer,
          {segment_of(slice(o, first, rows, first_head, heads)),
           segment_of(slice(lse_.view(), first, rows, first_head, heads))}};
}

void PartialBuffer::pack(const RowOps& row_ops) {
  if (travelling_.dim() > 0) row_ops.convert(travelling_.view(), o_.view());
}
void PartialBuffer::unpack(const RowOps& row_ops) {
  if (travelling_.dim() > 0) row_ops.convert(o_.view(), travelling_.view());
}

Segment segment_of(const TensorView& view) {
  const std::int64_t element = bytes_per_element(view.dtype);
  return {static_cast<std::byte*>(view.data), view.heads * view.dim * element, view.tokens,
          view.token_stride * element};
}

Message message_of(Rank peer, const KvRows& rows) {
  return {peer, {segment_of(rows.k_MHD), segment_of(rows.v_MHD)}};
}

}  // namespace contextile
