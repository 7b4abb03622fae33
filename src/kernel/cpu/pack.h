// Copies rows of tensors into contiguous elements of products: as rows, as pairs of rows, or as
// panels with rows in lanes. Everything is padded with zeros.
#pragma once

#include <cstdint>
#include <type_traits>

#include "contextile/extend/kernel.h"
#include "kernel/cpu/inline.h"
#include "kernel/cpu/panels.h"

namespace contextile {

CONTEXTILE_INLINE std::int64_t round_up(std::int64_t n, std::int64_t step) {
  return (n + step - 1) / step * step;
}
CONTEXTILE_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
CONTEXTILE_INLINE std::int64_t larger(std::int64_t a, std::int64_t b) { return a < b ? b : a; }

// The number of elements that a packed row of `dim` numbers takes: depth_stride if it is walked
// along its depth, the other if it is walked across. Both round up to whole vectors.
template <class V>
CONTEXTILE_INLINE std::int64_t depth_stride(std::int64_t dim) {
  return round_up((dim + V::kPair - 1) / V::kPair, V::kLanes);
}
template <class V>
CONTEXTILE_INLINE std::int64_t row_stride(std::int64_t dim) {
  return round_up(dim, V::kLanes);
}
// The same as row_stride, with room for whole pairs of vectors.
template <class V>
CONTEXTILE_INLINE std::int64_t panel_row_stride(std::int64_t dim) {
  return depth_stride<V>(dim) * V::kPair;
}

// The rows of a tensor as bytes.
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

// Loads vectors of a row as floats, whatever its dtype.
template <class V, Dtype kDtype>
struct Widened {
  static constexpr Dtype kDtypeOfRow = kDtype;
  static constexpr std::int64_t kBytes = kDtype == Dtype::kF32 ? 4 : 2;
  static constexpr std::int64_t kLanes = V::kLanes;

  CONTEXTILE_INLINE static typename V::Float load(const char* row, std::int64_t index) {
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

// Loads vectors of a bf16 row unchanged, two numbers to a lane.
template <class V>
struct Paired {
  static constexpr std::int64_t kBytes = 2;
  static constexpr std::int64_t kLanes = 2 * V::kLanes;

  CONTEXTILE_INLINE static typename V::Float load(const char* row, std::int64_t index) {
    return V::load(reinterpret_cast<const float*>(row + index * kBytes));
  }
};

// Returns the vector at `index` of a row of `dim` numbers, with zeros after its end.
template <class V, class Source>
CONTEXTILE_INLINE typename V::Float load_part(const char* row, std::int64_t index,
                                              std::int64_t dim) {
  if (index + Source::kLanes <= dim) return Source::load(row, index);
  char some[Source::kLanes * Source::kBytes] = {};
  for (std::int64_t i = 0; i < (dim - index) * Source::kBytes; ++i) {
    some[i] = row[index * Source::kBytes + i];
  }
  return Source::load(some, 0);
}

// Store and load kLanes elements, or as many as a row still has.
template <class V>
CONTEXTILE_INLINE void store_row_part(float* to, typename V::Float value, std::int64_t count) {
  if (count >= V::kLanes) {
    V::store(to, value);
    return;
  }
  float some[V::kLanes];
  V::store(some, value);
  for (std::int64_t i = 0; i < count; ++i) to[i] = some[i];
}
template <class V>
CONTEXTILE_INLINE typename V::Float load_row_part(const float* from, std::int64_t count) {
  if (count >= V::kLanes) return V::load(from);
  float some[V::kLanes] = {};
  for (std::int64_t i = 0; i < count; ++i) some[i] = from[i];
  return V::load(some);
}

// Calls visit with the class that widens a dtype to fp32.
template <class V, typename Visit>
CONTEXTILE_INLINE auto with_dtype(Dtype dtype, const Visit& visit) {
  switch (dtype) {
    case Dtype::kF32:
      return visit(Widened<V, Dtype::kF32>());
    case Dtype::kBf16:
      return visit(Widened<V, Dtype::kBf16>());
    case Dtype::kF16:
      break;
  }
  return visit(Widened<V, Dtype::kF16>());
}

// Calls visit with the source class of a dtype.
template <class V, typename Visit>
CONTEXTILE_INLINE void with_source(Dtype dtype, const Visit& visit) {
  if constexpr (V::kPair == 2) {
    visit(Paired<V>());
  } else {
    with_dtype<V>(dtype, visit);
  }
}

// -------------------------------------------------------------------------------- rows of keys

template <class V, class Source>
[[gnu::noinline]] void pack_rows_from(const ByteRows& from, std::int64_t first, std::int64_t count,
                                      std::int64_t head, float* to, std::int64_t stride,
                                      std::int64_t num_zero_rows) {
  for (std::int64_t n = 0; n < count; ++n) {
    const char* row = from.row(first + n, head);
    for (std::int64_t e = 0; e < stride; e += V::kLanes) {
      const std::int64_t index = e / V::kLanes * Source::kLanes;
      V::store(to + n * stride + e,
               index < from.dim ? load_part<V, Source>(row, index, from.dim) : V::zero());
    }
  }
  for (std::int64_t i = count * stride; i < (count + num_zero_rows) * stride; i += V::kLanes) {
    V::store(to + i, V::zero());
  }
}

// Packs rows [first, first + count) of a head, [row][depth stride], then `num_zero_rows` rows of
// zeros.
template <class V>
inline void pack_rows(const TensorView& from, std::int64_t first, std::int64_t count,
                      std::int64_t head, typename V::Element* to, std::int64_t num_zero_rows) {
  with_source<V>(from.dtype, [&](auto source) {
    pack_rows_from<V, decltype(source)>(byte_rows(from), first, count, head,
                                        reinterpret_cast<float*>(to), depth_stride<V>(from.dim),
                                        num_zero_rows);
  });
}

template <class V>
[[gnu::noinline]] void pack_pairs_from(const ByteRows& from, std::int64_t first, std::int64_t count,
                                       std::int64_t head, float* to) {
  const std::int64_t stride = row_stride<V>(from.dim);
  for (std::int64_t n = 0; n < count; n += 2) {
    const char* even = from.row(first + n, head);
    const char* odd = n + 1 < count ? from.row(first + n + 1, head) : nullptr;
    for (std::int64_t d = 0; d < stride; d += 2 * V::kLanes) {
      const auto a = load_part<V, Paired<V>>(even, d, from.dim);
      const auto b = odd == nullptr ? V::zero() : load_part<V, Paired<V>>(odd, d, from.dim);
      typename V::Float low;
      typename V::Float high;
      V::interleave(a, b, low, high);
      V::store(to + n / 2 * stride + d, low);
      if (d + V::kLanes < stride) V::store(to + n / 2 * stride + d + V::kLanes, high);
    }
  }
}

// Packs the same rows to be walked across, [row / kPair][row stride]: pairs of bf16 hold two rows.
template <class V>
inline void pack_row_pairs(const TensorView& from, std::int64_t first, std::int64_t count,
                           std::int64_t head, typename V::Element* to) {
  if constexpr (V::kPair == 1) {
    pack_rows<V>(from, first, count, head, to, 0);
  } else {
    pack_pairs_from<V>(byte_rows(from), first, count, head, reinterpret_cast<float*>(to));
  }
}

// Packs pairs of rows as columns: [dim up to the row stride][`stride` pairs], with zeros after the
// last row up to whole tiles.
template <class V>
[[gnu::noinline]] void pack_columns(const TensorView& from, std::int64_t first, std::int64_t count,
                                    std::int64_t head, typename V::Element* to,
                                    std::int64_t stride) {
  const ByteRows rows = byte_rows(from);
  float* const columns = reinterpret_cast<float*>(to);
  const std::int64_t dims = row_stride<V>(rows.dim);
  for (std::int64_t n = 0; n < count; n += 2 * V::kLanes) {
    for (std::int64_t d = 0; d < dims; d += 2 * V::kLanes) {
      typename V::Float low[V::kLanes];
      typename V::Float high[V::kLanes];
      for (int i = 0; i < V::kLanes; ++i) {
        typename V::Float pair[2];
        for (int j = 0; j < 2; ++j) {
          const std::int64_t row = n + 2 * i + j;
          pair[j] = row < count ? load_part<V, Paired<V>>(rows.row(first + row, head), d, rows.dim)
                                : V::zero();
        }
        V::interleave(pair[0], pair[1], low[i], high[i]);
      }
      V::transpose(low);
      V::transpose(high);
      for (int i = 0; i < V::kLanes; ++i) V::store(columns + (d + i) * stride + n / 2, low[i]);
      if (d + V::kLanes >= dims) continue;
      for (int i = 0; i < V::kLanes; ++i) {
        V::store(columns + (d + V::kLanes + i) * stride + n / 2, high[i]);
      }
    }
  }
}

// Copies the last pairs of packed columns that hold `count` keys from `columns` on, followed by
// zeros, to `tail`. Returns null if the pairs are whole tiles.
template <class V>
inline const typename V::Element* pack_tail(const typename V::Element* columns, std::int64_t stride,
                                            std::int64_t count, std::int64_t dims,
                                            typename V::Element* tail) {
  const std::int64_t left = count % (2 * V::kTilePairs);
  if (left == 0) return nullptr;
  const typename V::Element* const last = columns + (count - left) / 2;
  for (std::int64_t d = 0; d < dims; ++d) {
    V::store_first(tail + d * V::kTilePairs, last + d * stride, static_cast<int>(left));
  }
  return tail;
}

// ------------------------------------------------------------------------------------- panels

// Number of rows of the widest panel.
template <class V>
inline constexpr std::int64_t kPanelWidth =
    std::int64_t{kMaxPanelVectors} * V::kGridVectors* V::kLanes;

// Returns a panel with its vectors counted as those of V.
template <class V>
inline Panel panel_of_grid(const PanelGrid& grid, std::int64_t index) {
  Panel panel = grid.panel(index);
  panel.vectors *= V::kGridVectors;
  return panel;
}

// Calls visit with the number of vectors of a panel as a constant.
template <class V, typename Visit>
CONTEXTILE_INLINE void with_vectors(std::int32_t vectors, const Visit& visit) {
  constexpr int kStep = V::kGridVectors;
  if (vectors == 3 * kStep) {
    visit(std::integral_constant<int, 3 * kStep>());
  } else if (vectors == 2 * kStep) {
    visit(std::integral_constant<int, 2 * kStep>());
  } else {
    visit(std::integral_constant<int, kStep>());
  }
}

// The places of a panel's flat rows.
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

// Stores kLanes vectors of kLanes rows: as rows (unless null) and transposed.
template <class V>
CONTEXTILE_INLINE void store_block(typename V::Float (&block)[V::kLanes], float* columns,
                                   std::int64_t width, float* rows, std::int64_t stride) {
  if constexpr (V::kPair == 1) {
    if (rows != nullptr) {
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) V::store(rows + i * stride, block[i]);
    }
  } else if (rows != nullptr) {
#pragma GCC unroll 16
    for (int i = 0; i < V::kLanes; i += 2) {
      typename V::Float low;
      typename V::Float high;
      V::interleave(block[i], block[i + 1], low, high);
      V::store(rows + i / 2 * stride, low);
      V::store(rows + i / 2 * stride + V::kLanes, high);
    }
  }
  V::transpose(block);
#pragma GCC unroll 16
  for (int i = 0; i < V::kLanes; ++i) V::store(columns + i * width, block[i]);
}

template <class V, class Source>
[[gnu::noinline]] void pack_panel_from(const ByteRows& from, const PanelRows& panel, float factor,
                                       float* columns, float* rows) {
  using Float = typename V::Float;
  const std::int64_t width = std::int64_t{panel.vectors} * V::kLanes;
  const std::int64_t depth = depth_stride<V>(from.dim);
  const std::int64_t stride = panel_row_stride<V>(from.dim);
  const std::int64_t whole = from.dim / Source::kLanes * Source::kLanes;
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
    for (std::int64_t e = 0; e < depth; e += V::kLanes) {
      const std::int64_t index = e / V::kLanes * Source::kLanes;
      Float block[V::kLanes];
      if (all_kept && index < whole) {
#pragma GCC unroll 16
        for (int i = 0; i < V::kLanes; ++i) {
          block[i] = V::times_sign(Source::load(row_bytes[i], index), factor);
        }
      } else {
        for (int i = 0; i < V::kLanes; ++i) {
          const bool is_zero = row_bytes[i] == nullptr || index >= from.dim;
          block[i] =
              is_zero ? V::zero()
                      : V::times_sign(load_part<V, Source>(row_bytes[i], index, from.dim), factor);
        }
      }
      float* const block_rows =
          rows == nullptr ? nullptr : rows + first / V::kPair * stride + index;
      store_block<V>(block, columns + e * width + first, width, block_rows, stride);
    }
  }
}

// Packs elements times `factor` (1, -1 or 0): columns[depth stride][width], width = vectors ·
// kLanes, and, unless null, to be walked across: rows[width / kPair][panel row stride].
template <class V>
inline void pack_panel(const TensorView& from, const PanelRows& panel, float factor,
                       typename V::Element* columns, typename V::Element* rows) {
  with_source<V>(from.dtype, [&](auto source) {
    pack_panel_from<V, decltype(source)>(byte_rows(from), panel, factor,
                                         reinterpret_cast<float*>(columns),
                                         reinterpret_cast<float*>(rows));
  });
}

}  // namespace contextile
