// Attention of many queries to keys in pages: a chunk of a prompt. Bound by arithmetic, so it is
// done by the kernel for tiles.
#pragma once

#include "contextile/extend/kernel.h"
#include "contextile/extend/paged_attention.h"

namespace contextile {

// Whether a request's rows are so many that copying its keys out of their pages pays, and see one
// range each.
[[nodiscard]] bool goes_by_tiles(const PagedRequest& request);

// O and LSE of the request's rows, as PagedKernel::run gives them; `kernel` for fp32.
void run_by_tiles(const AttentionKernel& kernel, const PagedParams& params, const PagedKv& kv,
                  const TensorView& q_NHD, const PagedRequest& request, const PartialOutput& out);

}  // namespace contextile
