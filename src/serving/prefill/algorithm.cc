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
    : KvBuffer(shape, rows, kv_heads, shape.dtype) {}

KvBuffer::KvBuffer(const AttentionShape& shape, std::int64_t rows, std::int32_t kv_heads,
                   Dtype dtype)
    : k_(dtype, rows, kv_heads, shape.head_dim), v_(dtype, rows, kv_heads, shape.value_dim) {}

KvRows KvBuffer::rows(std::int64_t first, std::int64_t count) {
  return {slice(k_.view(), first, count, 0, k_.heads()),
          slice(v_.view(), first, count, 0, v_.heads())};
}

TravellingKv::TravellingKv(const AttentionShape& shape, std::int64_t rows, std::int32_t kv_heads,
                           Dtype wire)
    : rows_(shape, rows, kv_heads) {
  if (wire != shape.dtype) travelling_.emplace(shape, rows, kv_heads, wire);
}

KvRows TravellingKv::rows(std::int64_t first, std::int64_t count) {
  return rows_.rows(first, count);
}

KvRows TravellingKv::travelling(std::int64_t first, std::int64_t count) {
  return travelling_ ? travelling_->rows(first, count) : rows_.rows(first, count);
}

void TravellingKv::unpack(const RowOps& row_ops, std::int64_t first, std::int64_t count) {
  if (!travelling_) return;
  const KvRows from = travelling(first, count);
  const KvRows to = rows(first, count);
  row_ops.convert(to.k_MHD, from.k_MHD);
  row_ops.convert(to.v_MHD, from.v_MHD);
}

KvRows packed(const RowOps& row_ops, const KvRows& block, Dtype wire,
              std::optional<KvBuffer>& memory) {
  const TensorView& k = block.k_MHD;
  if (wire == k.dtype) return block;
  if (!memory) {
    AttentionShape shape;
    shape.head_dim = k.dim;
    shape.value_dim = block.v_MHD.dim;
    memory.emplace(shape, k.tokens, k.heads, wire);
  }
  const KvRows travelling = memory->rows(0, k.tokens);
  row_ops.convert(travelling.k_MHD, k);
  row_ops.convert(travelling.v_MHD, block.v_MHD);
  return travelling;
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
