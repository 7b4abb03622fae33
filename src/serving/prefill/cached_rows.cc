#include "serving/prefill/cached_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "kernel/tensor.h"

namespace contextile {

std::vector<PageRun> page_runs(const PrefillGeometry& geometry, Rank rank,
                               const PrefillBatch& batch) {
  const std::int64_t page_size = batch.layout.page_size;
  std::vector<PageRun> runs;
  for (std::size_t i = 0; i < geometry.num_sequences(); ++i) {
    std::int64_t row = geometry.kv_rows(rank, i).begin;
    for (const Range& keys : geometry.cached_keys(rank, i)) {
      for (std::int64_t key = keys.begin; key < keys.end;) {
        const std::int64_t first = key % page_size;
        const std::int64_t tokens = std::min(keys.end - key, page_size - first);
        const PageId page = batch.sequences[i].table[static_cast<std::size_t>(key / page_size)];
        CONTEXTILE_CHECK(page.valid(),
                         "prefill: table of sequence {}: expected a page of 0 and more for tokens "
                         "that are seen, found {} at {}",
                         i, page.value, key / page_size);
        runs.push_back({page, first, tokens, row});
        key += tokens;
        row += tokens;
      }
    }
  }
  return runs;
}

namespace {

// The pages of elements as narrow as they are, widened to the fp32 of `to`.
void widen_pages(const PagedTensor& pages, Dtype dtype, std::span<const PageRun> runs,
                 const TensorView& to) {
  std::vector<float> row(static_cast<std::size_t>(to.dim));
  for (const PageRun& run : runs) {
    auto* first = static_cast<std::byte*>(const_cast<void*>(pages.data)) +
                  (run.page.value * pages.page_stride + run.first_token * pages.token_stride) *
                      bytes_per_element(dtype);
    const TensorView from = {
        first, dtype, run.tokens, to.heads, to.dim, pages.token_stride, pages.head_stride};
    for (std::int64_t t = 0; t < run.tokens; ++t) {
      for (std::int32_t h = 0; h < to.heads; ++h) {
        read_row(from, t, h, std::span(row));
        write_row(to, run.row + t, h, row);
      }
    }
  }
}

}  // namespace

void copy_pages(const PagedTensor& pages, Dtype dtype, std::span<const PageRun> runs,
                const TensorView& to) {
  if (dtype != to.dtype) return widen_pages(pages, dtype, runs, to);
  const std::int64_t element = bytes_per_element(to.dtype);
  const std::int64_t head_bytes = to.dim * element;
  const std::int64_t row_bytes = to.heads * head_bytes;
  const bool rows_are_whole = to.heads == 1 || pages.head_stride == to.dim;
  for (const PageRun& run : runs) {
    const std::byte* from =
        static_cast<const std::byte*>(pages.data) +
        (run.page.value * pages.page_stride + run.first_token * pages.token_stride) * element;
    std::byte* into = static_cast<std::byte*>(to.data) + run.row * row_bytes;
    if (rows_are_whole && pages.token_stride * element == row_bytes) {
      std::memcpy(into, from, static_cast<std::size_t>(run.tokens * row_bytes));
      continue;
    }
    for (std::int64_t t = 0; t < run.tokens; ++t) {
      for (std::int32_t h = 0; h < to.heads; ++h) {
        std::memcpy(into + t * row_bytes + h * head_bytes,
                    from + (t * pages.token_stride + h * pages.head_stride) * element,
                    static_cast<std::size_t>(head_bytes));
      }
    }
  }
}

}  // namespace contextile
