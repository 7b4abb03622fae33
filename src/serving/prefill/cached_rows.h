// Copying cached tokens out of pages.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "contextile/extend/paged_attention.h"
#include "serving/prefill/geometry.h"

namespace contextile {

// Adjacent tokens in a page, and the row of the block where the first of them goes.
struct PageRun {
  PageId page;
  std::int64_t first_token = 0;
  std::int64_t tokens = 0;
  std::int64_t row = 0;
};

// Every cached token of the rank that a new one sees. Tables are those of the batch.
[[nodiscard]] std::vector<PageRun> page_runs(const PrefillGeometry& geometry, Rank rank,
                                             const PrefillBatch& batch);

// `to` has the heads and the dim of the pages, whose elements are of `dtype`, and its rows are
// contiguous.
void copy_pages(const PagedTensor& pages, Dtype dtype, std::span<const PageRun> runs,
                const TensorView& to);

}  // namespace contextile
