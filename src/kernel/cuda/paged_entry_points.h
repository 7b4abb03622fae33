// The names of the kernels for keys in pages, and the choice of a call's kernel.
#pragma once

#include "contextile/extend/paged_attention.h"
#include "kernel/cuda/entry_points.h"
#include "kernel/cuda/paged_attend.h"

// Visits every compiled kernel: X(name of the cache, true for bytes, name of the number, Number,
// name of the dims, head dim, value dim), smaller dims first. The last dims are for values that are
// the first columns of keys.
#define CONTEXTILE_PAGED_DIMS(X, ...) \
  X(__VA_ARGS__, 64, 64, 64)          \
  X(__VA_ARGS__, 128, 128, 128)       \
  X(__VA_ARGS__, 256, 256, 256)       \
  X(__VA_ARGS__, 576_512, 576, 512)
#define CONTEXTILE_PAGED_KERNELS(X)                          \
  CONTEXTILE_PAGED_DIMS(X, wide, false, bf16, Number::kBf16) \
  CONTEXTILE_PAGED_DIMS(X, wide, false, f16, Number::kF16)   \
  CONTEXTILE_PAGED_DIMS(X, bytes, true, bf16, Number::kBf16) \
  CONTEXTILE_PAGED_DIMS(X, bytes, true, f16, Number::kF16)

namespace contextile::cuda {

// The properties of a call that its kernel depends on.
struct PagedQuery {
  Dtype dtype = Dtype::kBf16;  // of queries
  bool is_bytes = false;       // of the cache
  bool is_latent = false;      // values are the first columns of keys
  std::int32_t head_dim = 0;
  std::int32_t value_dim = 0;
};

// Returns an empty entry if the dims are larger than those of all kernels.
[[nodiscard]] inline EntryPoint paged_entry(const PagedQuery& query) {
#define CONTEXTILE_ENTRY(cache, bytes, text, number, name, dim, value)                          \
  if (query.is_bytes == bytes && (query.dtype == Dtype::kBf16) == (number == Number::kBf16) &&  \
      query.head_dim <= dim && query.value_dim <= value &&                                      \
      (query.is_latent || !PagedShape<bytes, dim, value>::kLatent)) {                           \
    return {"paged_" #cache "_" #text "_" #name,                                                \
            static_cast<std::int32_t>(PagedShape<bytes, dim, value>::kShared), kPagedStepKeys}; \
  }
  CONTEXTILE_PAGED_KERNELS(CONTEXTILE_ENTRY)
#undef CONTEXTILE_ENTRY
  return {};
}

}  // namespace contextile::cuda
