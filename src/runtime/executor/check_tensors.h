// Checks that a caller's tensors have the shape and the dtype that a plan expects.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "contextile/tensor.h"
#include "contextile/workload.h"

namespace contextile {

// Each throws InvalidArgument: `where`, what was expected of `name`, what was found. A tensor
// without tokens needs no data.
void check_tensor(std::string_view where, std::string_view name, const TensorView& found,
                  std::int64_t tokens, std::int32_t heads, std::int32_t dim, Dtype dtype);
// Expects a value for each query head if the layer has a sink, else none.
void check_sink(std::string_view where, std::string_view name, std::size_t found,
                const AttentionShape& shape);
// Checks q, k, v and sink of an attention layer on that many tokens.
void check_inputs(std::string_view where, const AttentionShape& shape, std::int64_t tokens,
                  const TensorView& q_THD, const TensorView& k_THD, const TensorView& v_THD,
                  std::span<const float> sink_H);

}  // namespace contextile
