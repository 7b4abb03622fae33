// Copying rows of tensors into contiguous fp32, as rows or as panels with rows in lanes.
#pragma once

#include <cstdint>

#include "contextile/kernel.h"
#include "runtime/simd_inline.h"

namespace contextile {

// Elements of rows of one dtype, widened.
template <class V, Dtype kDtype>
struct Widened {
  static constexpr std::int64_t kBytes = kDtype == Dtype::kF32 ? 4 : 2;

  // The kLanes elements from `index` of a row of `dim`; zero beyond its end.
  CONTEXTILE_INLINE static typename V::Float load(const char* row, std::int64_t index,
                                                  std::int64_t dim) {
    if (index + V::kLanes <= dim) return load_all(row, index);
    char some[V::kLanes * kBytes] = {};
    for (std::int64_t i = 0; i < (dim - index) * kBytes; ++i) some[i] = row[index * kBytes + i];
    return load_all(some, 0);
  }

  CONTEXTILE_INLINE static typename V::Float load_all(const char* row, std::int64_t index) {
    const char* from = row + index * kBytes;
    if constexpr (kDtype == Dtype::kF32) {
      return V::load(reinterpret_cast<const float*>(from));
    } else if constexpr (kDtype == Dtype::kBf16) {
      return V::load_bf16(reinterpret_cast<const std::uint16_t*>(from));
    } else {
      return V::load_f16(reinterpret_cast<const std::uint16_t*>(from));
    }
  }
};

// A tensor's rows as bytes.
struct ByteRows {
  const char* data = nullptr;
  std::int64_t token_bytes = 0;
  std::int64_t head_bytes = 0;
  std::int64_t dim = 0;

  CONTEXTILE_INLINE const char* row(std::int64_t token, std::int64_t head) const {
    return data + token * token_bytes + head * head_bytes;
  }
};

CONTEXTILE_INLINE ByteRows byte_rows(const TensorView& view) {
  const std::int64_t element = view.dtype == Dtype::kF32 ? 4 : 2;
  return {static_cast<const char*>(view.data), view.token_stride * element,
          view.head_stride * element, view.dim};
}

// Rows [first, first + count) of a head, each padded with zeros to `stride` (a multiple of kLanes),
// then `num_zero_rows` rows of zeros.
template <class V, Dtype kDtype>
[[gnu::noinline]] void pack_rows_of(const ByteRows& from, std::int64_t first, std::int64_t count,
                                    std::int64_t head, float* to, std::int64_t stride,
                                    std::int64_t num_zero_rows) {
  for (std::int64_t n = 0; n < count; ++n) {
    const char* row = from.row(first + n, head);
    for (std::int64_t d = 0; d < stride; d += V::kLanes) {
      V::store(to + n * stride + d, Widened<V, kDtype>::load(row, d, from.dim));
    }
  }
  for (std::int64_t i = count * stride; i < (count + num_zero_rows) * stride; i += V::kLanes) {
    V::store(to + i, V::zero());
  }
}

template <class V>
inline void pack_rows(const TensorView& from, std::int64_t first, std::int64_t count,
                      std::int64_t head, float* to, std::int64_t stride,
                      std::int64_t num_zero_rows) {
  const ByteRows rows = byte_rows(from);
  switch (from.dtype) {
    case Dtype::kF32:
      return pack_rows_of<V, Dtype::kF32>(rows, first, count, head, to, stride, num_zero_rows);
    case Dtype::kBf16:
      return pack_rows_of<V, Dtype::kBf16>(rows, first, count, head, to, stride, num_zero_rows);
    case Dtype::kF16:
      return pack_rows_of<V, Dtype::kF16>(rows, first, count, head, to, stride, num_zero_rows);
  }
}

// Where a panel's flat rows stand.
struct PanelRows {
  std::int64_t first_row = 0;  // flat
  std::int32_t num_rows = 0;
  std::int32_t vectors = 0;
  std::int64_t heads_per_kv = 1;
  std::int64_t first_head = 0;
  const char* keep = nullptr;  // by row; 0: the row is packed as zeros. Null: all are kept

  [[nodiscard]] CONTEXTILE_INLINE bool is_kept(std::int64_t row) const {
    return row < num_rows && (keep == nullptr || keep[row] != 0);
  }
};

// One block of kLanes rows x kLanes elements: into columns, and into rows unless null.
template <class V>
CONTEXTILE_INLINE void store_block(typename V::Float (&block)[V::kLanes], float* columns,
                                   std::int64_t width, float* rows, std::int64_t stride) {
  if (rows != nullptr) {
#pragma GCC unroll 16
    for (int i = 0; i < V::kLanes; ++i) V::store(rows + i * stride, block[i]);
  }
  V::transpose(block);
#pragma GCC unroll 16
  for (int i = 0; i < V::kLanes; ++i) V::store(columns + i * width, block[i]);
}

// Elements times `factor`: columns[d·width + row] for d < dim (room for dim rounded up to kLanes),
// width = vectors · kLanes, and, unless null, rows[row·stride + d] padded with zeros to `stride`.
template <class V, Dtype kDtype>
[[gnu::noinline]] void pack_panel_of(const ByteRows& from, const PanelRows& panel, float factor,
                                     float* columns, float* rows, std::int64_t stride) {
  using Float = typename V::Float;
  const std::int64_t width = std::int64_t{panel.vectors} * V::kLanes;
  const std::int64_t whole = from.dim / V::kLanes * V::kLanes;
  const Float factors = V::set(factor);
  std::int64_t token = panel.first_row / panel.heads_per_kv;
  std::int64_t head = panel.first_row % panel.heads_per_kv;
  for (std::int64_t first = 0; first < width; first += V::kLanes) {
    const char* row_bytes[V::kLanes];
    bool all_kept = true;
    for (std::int64_t i = 0; i < V::kLanes; ++i) {
      const bool is_kept = panel.is_kept(first + i);
      row_bytes[i] = is_kept ? from.row(token, panel.first_head + head) : nullptr;
      all_kept = all_kept && is_kept;
      if (++head == panel.heads_per_kv) {
        head = 0;
        ++token;
      }
    }
    float* const block_rows = rows == nullptr ? nullptr : rows + first * stride;
    for (std::int64_t d = 0; d < stride; d += V::kLanes) {
      Float block[V::kLanes];
      if (all_kept && d < whole) {
#pragma GCC unroll 16
        for (int i = 0; i < V::kLanes; ++i) {
          block[i] = V::mul(factors, Widened<V, kDtype>::load_all(row_bytes[i], d));
        }
      } else {
        for (int i = 0; i < V::kLanes; ++i) {
          block[i] = row_bytes[i] == nullptr
                         ? V::zero()
                         : V::mul(factors, Widened<V, kDtype>::load(row_bytes[i], d, from.dim));
        }
      }
      store_block<V>(block, columns + d * width + first, width,
                     rows == nullptr ? nullptr : block_rows + d, stride);
    }
  }
}

template <class V>
inline void pack_panel(const TensorView& from, const PanelRows& panel, float factor, float* columns,
                       float* rows, std::int64_t stride) {
  const ByteRows bytes = byte_rows(from);
  switch (from.dtype) {
    case Dtype::kF32:
      return pack_panel_of<V, Dtype::kF32>(bytes, panel, factor, columns, rows, stride);
    case Dtype::kBf16:
      return pack_panel_of<V, Dtype::kBf16>(bytes, panel, factor, columns, rows, stride);
    case Dtype::kF16:
      return pack_panel_of<V, Dtype::kF16>(bytes, panel, factor, columns, rows, stride);
  }
}

}  // namespace contextile
