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
void check_sinks(const AttentionShape& shape, std::span<const float> sink_H);

}  // namespace contextile
