// Checks that a rank's tensors fit its batch.
#pragma once

#include <cstdint>
#include <span>

#include "contextile/serving/prefill.h"

namespace contextile {

// Each throws InvalidArgument with the expected and the found value. They check: new keys and
// values of `rows` tokens; these, queries and output; a rank's pages; logits of sinks.
void check_new_kv(const AttentionShape& shape, std::int64_t rows, const TensorView& k_THD,
                  const TensorView& v_THD);
void check_rows(const AttentionShape& shape, std::int64_t rows, const TensorView& q_THD,
                const TensorView& k_THD, const TensorView& v_THD, const PartialOutput& out);
void check_pages(const PagedKv& kv, const AttentionShape& shape, const KvLayout& layout);
// Returns the dtype of cached keys and values as tensors. Throws InvalidArgument if they have
// scales, as those of fp8 and int8.
[[nodiscard]] Dtype page_dtype(KvDtype dtype);
// Returns true if Ulysses can deal the heads of the shape to so many ranks; the other throws
// InvalidArgument if it cannot.
[[nodiscard]] bool fits_ulysses(const AttentionShape& shape, std::int32_t ranks);
void check_ulysses(const AttentionShape& shape, std::int32_t ranks);
void check_sinks(const AttentionShape& shape, std::span<const float> sink_H);

}  // namespace contextile
