// Helpers that list the memory that launches touch.
#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "contextile/extend/kernel.h"
#include "gpu/driver.h"
#include "kernel/tensor.h"

namespace contextile::cuda {

inline void append_rows(std::vector<Rows>& rows, const TensorView& view) {
  const std::int64_t element = bytes_per_element(view.dtype);
  for (std::int32_t h = 0; h < view.heads; ++h) {
    rows.push_back({static_cast<std::byte*>(view.data) + h * view.head_stride * element,
                    view.dim * element, view.tokens, view.token_stride * element});
  }
}

// Appends the statistics of the rows of `of`.
inline void append_stats(std::vector<Rows>& rows, const RowStats& stats, const TensorView& of) {
  append_rows(rows, as_tensor(stats, of.tokens, of.heads));
}

template <typename T>
Rows array_of(std::span<T> array) {
  return {reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(array.data())),
          static_cast<std::int64_t>(array.size_bytes()), 1, 0};
}

}  // namespace contextile::cuda
