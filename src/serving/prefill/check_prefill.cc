#include "serving/prefill/check_prefill.h"

#include <string>
#include <string_view>

#include "base/check.h"
#include "kernel/tensor.h"

namespace contextile {
namespace {

std::string text_of(const TensorView& view) {
  return fmt::format("{} [{}, {}, {}]", to_string(view.dtype), view.tokens, view.heads, view.dim);
}

void check_tensor(std::string_view name, const TensorView& found, std::int64_t tokens,
                  std::int32_t heads, std::int32_t dim, Dtype dtype) {
  const TensorView expected = contiguous(nullptr, dtype, tokens, heads, dim);
  CONTEXTILE_CHECK(text_of(found) == text_of(expected), "prefill: {}: expected {}, found {}", name,
                   text_of(expected), text_of(found));
}

}  // namespace

void check_new_kv(const AttentionShape& shape, std::int64_t rows, const TensorView& k_THD,
                  const TensorView& v_THD) {
  check_tensor("k", k_THD, rows, shape.kv_heads, shape.head_dim, shape.dtype);
  check_tensor("v", v_THD, rows, shape.kv_heads, shape.value_dim, shape.dtype);
}

void check_rows(const AttentionShape& shape, std::int64_t rows, const TensorView& q_THD,
                const TensorView& k_THD, const TensorView& v_THD, const PartialOutput& out) {
  check_tensor("q", q_THD, rows, shape.q_heads, shape.head_dim, shape.dtype);
  check_new_kv(shape, rows, k_THD, v_THD);
  check_tensor("out", out.o_NHD, rows, shape.q_heads, shape.value_dim, Dtype::kF32);
}

Dtype page_dtype(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kF32:
      return Dtype::kF32;
    case KvDtype::kBf16:
      return Dtype::kBf16;
    case KvDtype::kF16:
      return Dtype::kF16;
    default:
      fail_argument("kv_dtype: expected f32, bf16 or f16, found {}", to_string(dtype));
  }
}

void check_pages(const PagedKv& kv, const AttentionShape& shape, const KvLayout& layout) {
  const auto text = [](std::string_view dtype, std::int32_t heads, std::int32_t k, std::int32_t v,
                       std::int32_t page) {
    return fmt::format("{}, {} heads of {} and {}, pages of {}", dtype, heads, k, v, page);
  };
  // fp32 attends to pages of 16 bits, which it widens.
  const bool widens =
      shape.dtype == Dtype::kF32 && (kv.dtype == KvDtype::kBf16 || kv.dtype == KvDtype::kF16);
  const std::string expected =
      text(widens ? to_string(kv.dtype) : to_string(shape.dtype), shape.kv_heads, shape.head_dim,
           shape.value_dim, layout.page_size);
  const std::string found =
      text(to_string(kv.dtype), kv.kv_heads, kv.k.dim, kv.v.dim, kv.page_size);
  CONTEXTILE_CHECK(found == expected, "prefill: kv: expected {}, found {}", expected, found);
}

bool fits_ulysses(const AttentionShape& shape, std::int32_t ranks) {
  return shape.q_heads % ranks == 0 && (shape.kv_heads % ranks == 0 || ranks % shape.kv_heads == 0);
}

void check_ulysses(const AttentionShape& shape, std::int32_t ranks) {
  CONTEXTILE_CHECK(fits_ulysses(shape, ranks),
                   "prefill: ulysses: expected query heads that {} ranks divide and KV heads that "
                   "they divide or that divide them, found {} and {}",
                   ranks, shape.q_heads, shape.kv_heads);
}

void check_sinks(const AttentionShape& shape, std::span<const float> sink_H) {
  const std::size_t logits = shape.sink ? static_cast<std::size_t>(shape.q_heads) : 0;
  CONTEXTILE_CHECK(sink_H.size() == logits, "prefill: sink: expected {} logits, found {}", logits,
                   sink_H.size());
}

}  // namespace contextile
