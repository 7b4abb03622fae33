// Attention of many queries to keys in pages, for example of a chunk of a prompt. It is bound by
// arithmetic, so the kernel for tiles does it.
#pragma once

#include "contextile/extend/kernel.h"
#include "contextile/extend/paged_attention.h"

namespace contextile {

// Returns true if a request has so many rows that copying its keys out of their pages pays, and
// each row sees one range of keys.
[[nodiscard]] bool goes_by_tiles(const PagedRequest& request);

// Computes O and LSE of the request's rows, as PagedKernel::run does; `kernel` must be for fp32.
void run_by_tiles(const AttentionKernel& kernel, const PagedParams& params, const PagedKv& kv,
                  const TensorView& q_NHD, const PagedRequest& request, const PartialOutput& out);

}  // namespace contextile
