#include "runtime/executor/check_tensors.h"

#include "base/check.h"

namespace contextile {

void check_tensor(std::string_view where, std::string_view name, const TensorView& found,
                  std::int64_t tokens, std::int32_t heads, std::int32_t dim, Dtype dtype) {
  CONTEXTILE_CHECK(found.tokens == tokens && found.heads == heads && found.dim == dim,
                   "{}: expected {} of shape [{}, {}, {}], found [{}, {}, {}]", where, name, tokens,
                   heads, dim, found.tokens, found.heads, found.dim);
  CONTEXTILE_CHECK(found.dtype == dtype, "{}: expected {} as {}, found {}", where, name,
                   to_string(dtype), to_string(found.dtype));
  if (tokens == 0) return;
  CONTEXTILE_CHECK(found.data != nullptr, "{}: expected data of {}, found none", where, name);
}

void check_sink(std::string_view where, std::string_view name, std::size_t found,
                const AttentionShape& shape) {
  const auto expected = static_cast<std::size_t>(shape.sink ? shape.q_heads : 0);
  CONTEXTILE_CHECK(found == expected, "{}: expected {} values of {}, found {}", where, expected,
                   name, found);
}

void check_inputs(std::string_view where, const AttentionShape& shape, std::int64_t tokens,
                  const TensorView& q_THD, const TensorView& k_THD, const TensorView& v_THD,
                  std::span<const float> sink_H) {
  check_tensor(where, "q", q_THD, tokens, shape.q_heads, shape.head_dim, shape.dtype);
  check_tensor(where, "k", k_THD, tokens, shape.kv_heads, shape.head_dim, shape.dtype);
  check_tensor(where, "v", v_THD, tokens, shape.kv_heads, shape.value_dim, shape.dtype);
  check_sink(where, "sink", sink_H.size(), shape);
}

}  // namespace contextile
