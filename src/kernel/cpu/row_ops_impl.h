// The row operations over a vector class. Include this only from the file of its instruction set.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "kernel/cpu/inline.h"
#include "kernel/cpu/pack.h"
#include "kernel/cpu/row_math.h"
#include "kernel/cpu/row_target.h"

namespace contextile {

inline constexpr std::int64_t kRowsAtOnce = RowWorkspace::kRows;
inline constexpr std::int64_t kElementsAtOnce = 64;  // of a row, in registers or the first cache
inline constexpr float kEmptyLse = -__builtin_inff();

// Joins rows of tensors to longer rows if their heads, or heads and tokens, are contiguous.
struct RowShape {
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t dim = 0;
};
CONTEXTILE_INLINE RowShape longest_rows(const TensorView& first, const TensorView* others,
                                        std::size_t num_others) {
  bool joins_heads = first.heads == 1 || first.head_stride == first.dim;
  bool joins_tokens = first.token_stride == std::int64_t{first.heads} * first.dim;
  for (std::size_t i = 0; i < num_others; ++i) {
    const TensorView& other = others[i];
    joins_heads = joins_heads && (other.heads == 1 || other.head_stride == other.dim);
    joins_tokens = joins_tokens && other.token_stride == std::int64_t{other.heads} * other.dim;
  }
  if (!joins_heads) return {first.tokens, first.heads, first.dim};
  const std::int64_t dim = std::int64_t{first.heads} * first.dim;
  if (!joins_tokens) return {first.tokens, 1, dim};
  return {first.tokens == 0 ? 0 : 1, 1, dim * first.tokens};
}

template <class V>
CONTEXTILE_INLINE char* row_of(const TensorView& view, std::int64_t n, std::int64_t h) {
  const std::int64_t element = view.dtype == Dtype::kF32 ? 4 : 2;
  return static_cast<char*>(view.data) + (n * view.token_stride + h * view.head_stride) * element;
}

template <class V, Dtype kDtype>
CONTEXTILE_INLINE void store_vector(char* to, typename V::Float value) {
  if constexpr (kDtype == Dtype::kF32) {
    V::store(reinterpret_cast<float*>(to), value);
  } else if constexpr (kDtype == Dtype::kBf16) {
    V::store_bf16(reinterpret_cast<std::uint16_t*>(to), value);
  } else {
    V::store_f16(reinterpret_cast<std::uint16_t*>(to), value);
  }
}

// ----------------------------------------------------------------------------- weighted sums

// Half a vector of floats as doubles.
template <class V>
struct Doubles {
  static constexpr std::int64_t kCount = V::kLanes / 2;
  using Wide = typename V::Doubles;
  using Narrow = typename V::HalfFloats;

  CONTEXTILE_INLINE static Wide widen(Narrow x) { return V::widen(x); }
  CONTEXTILE_INLINE static Wide load(const float* from) {
    Narrow x;
    std::memcpy(&x, from, sizeof(x));
    return widen(x);
  }
  CONTEXTILE_INLINE static void store(float* to, Wide x) {
    const Narrow rounded = V::narrow(x);
    std::memcpy(to, &rounded, sizeof(rounded));
  }
};

// Sets to[i] to Σ_s weights[s]·rows[s][i], added in order in fp64 and rounded once. `rows` are
// fp32, and `to` may be one of them.
template <class V, int kRows>
CONTEXTILE_INLINE void weighted_sum_of(float* to, const float* const* rows, const double* weights,
                                       std::int64_t dim) {
  using D = Doubles<V>;
  const float* row[kRows];
  double weight[kRows];
  for (int s = 0; s < kRows; ++s) {
    row[s] = rows[s];
    weight[s] = weights[s];
  }
  std::int64_t i = 0;
#pragma GCC unroll 2
  for (; i + D::kCount <= dim; i += D::kCount) {
    auto sum = D::load(row[0] + i) * weight[0];
#pragma GCC unroll 4
    for (int s = 1; s < kRows; ++s) sum += D::load(row[s] + i) * weight[s];
    D::store(to + i, sum);
  }
  for (; i < dim; ++i) {
    double sum = weight[0] * static_cast<double>(row[0][i]);
    for (int s = 1; s < kRows; ++s) sum += weight[s] * static_cast<double>(row[s][i]);
    to[i] = static_cast<float>(sum);
  }
}

// Adds two rows. The sum has one rounding in fp32 as well.
template <class V>
CONTEXTILE_INLINE void sum_of_two(float* to, const float* a, const float* b, std::int64_t dim) {
  std::int64_t i = 0;
#pragma GCC unroll 2
  for (; i + V::kLanes <= dim; i += V::kLanes)
    V::store(to + i, V::add(V::load(a + i), V::load(b + i)));
  for (; i < dim; ++i) to[i] = a[i] + b[i];
}

// Computes the weighted sum of any number of rows.
template <class V>
CONTEXTILE_INLINE void weighted_sum(float* to, const float* const* rows, const double* weights,
                                    std::int64_t num_rows, std::int64_t dim) {
  switch (num_rows) {
    case 0:
      for (std::int64_t i = 0; i < dim; ++i) to[i] = 0;
      return;
    case 1:
      return weighted_sum_of<V, 1>(to, rows, weights, dim);
    case 2:
      return weighted_sum_of<V, 2>(to, rows, weights, dim);
    case 3:
      return weighted_sum_of<V, 3>(to, rows, weights, dim);
    case 4:
      return weighted_sum_of<V, 4>(to, rows, weights, dim);
    default:
      break;
  }
  // Many rows are added in parts of a row, whose sums stay in the first cache.
  for (std::int64_t first = 0; first < dim; first += kElementsAtOnce) {
    const std::int64_t count = smaller(kElementsAtOnce, dim - first);
    double sums[kElementsAtOnce];
    for (std::int64_t i = 0; i < count; ++i) {
      sums[i] = weights[0] * static_cast<double>(rows[0][first + i]);
    }
    for (std::int64_t s = 1; s < num_rows; ++s) {
      const float* row = rows[s] + first;
      for (std::int64_t i = 0; i < count; ++i) {
        sums[i] += weights[s] * static_cast<double>(row[i]);
      }
    }
    for (std::int64_t i = 0; i < count; ++i) to[first + i] = static_cast<float>(sums[i]);
  }
}

// ------------------------------------------------------------------------------------- merge

// Turns log-sum-exps of kRowsAtOnce rows of some sources, [source][row], into the weights of the
// sources. `total` becomes the log-sum-exp of all. Empty sources weigh 0.
template <class V>
[[gnu::noinline]] void weigh_sources(std::int64_t num_sources, double* weights, double* total) {
  double top[kRowsAtOnce];
  double sum[kRowsAtOnce] = {};
  // The largest log-sum-exp of each row is subtracted first, so that exp cannot overflow.
  for (std::int64_t r = 0; r < kRowsAtOnce; ++r) top[r] = weights[r];
  for (std::int64_t s = 1; s < num_sources; ++s) {
    const double* lse = weights + s * kRowsAtOnce;
    for (std::int64_t r = 0; r < kRowsAtOnce; ++r) top[r] = lse[r] > top[r] ? lse[r] : top[r];
  }
  for (std::int64_t r = 0; r < kRowsAtOnce; ++r) top[r] = top[r] < -1e300 ? 0 : top[r];
  for (std::int64_t s = 0; s < num_sources; ++s) {
    double* weight = weights + s * kRowsAtOnce;
    for (std::int64_t r = 0; r < kRowsAtOnce; ++r) {
      weight[r] = exp_of_negative(weight[r] - top[r]);
      sum[r] += weight[r];
    }
  }
  for (std::int64_t r = 0; r < kRowsAtOnce; ++r) {
    const double safe = sum[r] == 0 ? 1.0 : sum[r];
    const double lse = top[r] + log_of(safe);
    total[r] = sum[r] == 0 ? static_cast<double>(kEmptyLse) : lse;
    sum[r] = 1 / safe;
  }
  for (std::int64_t s = 0; s < num_sources; ++s) {
    double* weight = weights + s * kRowsAtOnce;
    for (std::int64_t r = 0; r < kRowsAtOnce; ++r) weight[r] *= sum[r];
  }
}

inline constexpr std::int64_t kRowsAhead = 12;
// Prefetches a row that is needed kRowsAhead rows later.
CONTEXTILE_INLINE void fetch_row(const char* row, std::int64_t bytes) {
  for (std::int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + i);
}

// Walks flat rows (token by token, head by head) from one row on.
struct RowPlace {
  std::int64_t token = 0;
  std::int64_t head = 0;
  CONTEXTILE_INLINE void advance(std::int64_t heads) {
    if (++head < heads) return;
    head = 0;
    ++token;
  }
};

template <class V>
CONTEXTILE_INLINE float& lse_of(const PartialOutput& partial, const RowPlace& at) {
  return partial.lse_NH
      .data[at.token * partial.lse_NH.token_stride + at.head * partial.lse_NH.head_stride];
}

// Merges kRowsAtOnce rows at a time: first their weights, then their weighted sums.
template <class V>
void merge_rows(const PartialOutput& dst, std::span<const PartialOutput> srcs,
                const RowWorkspace& workspace) {
  const TensorView& o = dst.o_NHD;
  const std::int64_t num_rows = o.tokens * o.heads;
  const auto num_sources = static_cast<std::int64_t>(srcs.size());
  double total[kRowsAtOnce];
  RowPlace first;
  RowPlace ahead;
  for (std::int64_t r = 0; r < kRowsAhead; ++r) ahead.advance(o.heads);
  for (std::int64_t row = 0; row < num_rows; row += kRowsAtOnce) {
    const std::int64_t count = smaller(kRowsAtOnce, num_rows - row);
    for (std::int64_t s = 0; s < num_sources; ++s) {
      double* lse = workspace.weights + s * kRowsAtOnce;
      RowPlace at = first;
      for (std::int64_t r = 0; r < count; ++r, at.advance(o.heads)) lse[r] = lse_of<V>(srcs[s], at);
      for (std::int64_t r = count; r < kRowsAtOnce; ++r) lse[r] = 0;
    }
    weigh_sources<V>(num_sources, workspace.weights, total);
    for (std::int64_t r = 0; r < count; ++r, first.advance(o.heads), ahead.advance(o.heads)) {
      if (row + r + kRowsAhead < num_rows) {
        for (std::int64_t s = 0; s < num_sources; ++s) {
          fetch_row(row_of<V>(srcs[s].o_NHD, ahead.token, ahead.head), o.dim * 4);
        }
      }
      std::int64_t used = 0;
      for (std::int64_t s = 0; s < num_sources; ++s) {
        const double weight = workspace.weights[s * kRowsAtOnce + r];
        if (weight == 0) continue;  // the memory of an empty row is never read
        workspace.rows[used] =
            reinterpret_cast<const float*>(row_of<V>(srcs[s].o_NHD, first.token, first.head));
        workspace.row_weights[used++] = weight;
      }
      weighted_sum<V>(reinterpret_cast<float*>(row_of<V>(o, first.token, first.head)),
                      workspace.rows, workspace.row_weights, used, o.dim);
      lse_of<V>(dst, first) = static_cast<float>(total[r]);
    }
  }
}

// --------------------------------------------------------------------------------------- sum

template <class V>
void sum_rows(const TensorView& dst, std::span<const TensorView> srcs,
              const RowWorkspace& workspace) {
  const RowShape shape = longest_rows(dst, srcs.data(), srcs.size());
  for (std::size_t s = 0; s < srcs.size(); ++s) workspace.row_weights[s] = 1;
  for (std::int64_t n = 0; n < shape.tokens; ++n) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      for (std::size_t s = 0; s < srcs.size(); ++s) {
        workspace.rows[s] = reinterpret_cast<const float*>(row_of<V>(srcs[s], n, h));
      }
      auto* const to = reinterpret_cast<float*>(row_of<V>(dst, n, h));
      if (srcs.size() == 2) {
        sum_of_two<V>(to, workspace.rows[0], workspace.rows[1], shape.dim);
      } else {
        weighted_sum<V>(to, workspace.rows, workspace.row_weights,
                        static_cast<std::int64_t>(srcs.size()), shape.dim);
      }
    }
  }
}

// ------------------------------------------------------------------------------------- delta

// Adds the products of kLanes elements to two vectors of sums. Products of bf16 and of f16 are
// exact in fp32.
template <class V, Dtype kA, Dtype kB>
CONTEXTILE_INLINE void add_products(typename V::Float a, typename V::Float b,
                                    typename Doubles<V>::Wide* sums) {
  using D = Doubles<V>;
  typename D::Narrow x[2];
  if constexpr (kA != Dtype::kF32 && kB != Dtype::kF32) {
    const typename V::Float product = V::mul(a, b);
    std::memcpy(x, &product, sizeof(x));
    for (int i = 0; i < 2; ++i) sums[i] += D::widen(x[i]);
  } else {
    typename D::Narrow y[2];
    std::memcpy(x, &a, sizeof(x));
    std::memcpy(y, &b, sizeof(y));
    for (int i = 0; i < 2; ++i) sums[i] += D::widen(x[i]) * D::widen(y[i]);
  }
}

// Returns the dot product of two rows. It uses kSums sums, element i in sum i modulo kSums,
// whatever the length of the vectors.
template <class V, Dtype kA, Dtype kB>
CONTEXTILE_INLINE double dot_of_rows(const char* a, const char* b, std::int64_t dim) {
  constexpr std::int64_t kSums = 32;
  constexpr int kVectors = kSums / V::kLanes;
  typename Doubles<V>::Wide sums[2 * kVectors] = {};
  std::int64_t d = 0;
  for (; d + kSums <= dim; d += kSums) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) {
      add_products<V, kA, kB>(Widened<V, kA>::load(a, d + v * V::kLanes),
                              Widened<V, kB>::load(b, d + v * V::kLanes), sums + 2 * v);
    }
  }
  for (int v = 0; v < kVectors && d + v * V::kLanes < dim; ++v) {
    add_products<V, kA, kB>(load_part<V, Widened<V, kA>>(a, d + v * V::kLanes, dim),
                            load_part<V, Widened<V, kB>>(b, d + v * V::kLanes, dim), sums + 2 * v);
  }
  // Halves the number of sums, first across vectors, then inside the last vector.
  for (int half = kVectors; half > 0; half /= 2) {
    for (int v = 0; v < half; ++v) sums[v] += sums[v + half];
  }
  double all[Doubles<V>::kCount];
  std::memcpy(all, sums, sizeof(all));
#pragma GCC unroll 4
  for (std::int64_t half = Doubles<V>::kCount / 2; half > 0; half /= 2) {
    for (std::int64_t i = 0; i < half; ++i) all[i] += all[i + half];
  }
  return all[0];
}

template <class V, Dtype kA, Dtype kB>
[[gnu::noinline]] void delta_rows_of(const TensorView& dout, const TensorView& out,
                                     const RowStats& delta) {
  for (std::int64_t n = 0; n < dout.tokens; ++n) {
    for (std::int64_t h = 0; h < dout.heads; ++h) {
      delta.data[n * delta.token_stride + h * delta.head_stride] = static_cast<float>(
          dot_of_rows<V, kA, kB>(row_of<V>(dout, n, h), row_of<V>(out, n, h), dout.dim));
    }
  }
}

template <class V>
void delta_rows(const TensorView& dout, const TensorView& out, const RowStats& delta) {
  with_dtype<V>(dout.dtype, [&](auto a) {
    with_dtype<V>(out.dtype, [&](auto b) {
      delta_rows_of<V, decltype(a)::kDtypeOfRow, decltype(b)::kDtypeOfRow>(dout, out, delta);
    });
  });
}

// ----------------------------------------------------------------------------------- convert

template <class V, Dtype kTo, Dtype kFrom>
CONTEXTILE_INLINE void convert_row(char* to, const char* from, std::int64_t dim) {
  using Source = Widened<V, kFrom>;
  constexpr std::int64_t kBytes = kTo == Dtype::kF32 ? 4 : 2;
  std::int64_t i = 0;
  for (; i + V::kLanes <= dim; i += V::kLanes) {
    store_vector<V, kTo>(to + i * kBytes, Source::load(from, i));
  }
  if (i >= dim) return;
  char some[V::kLanes * kBytes];
  store_vector<V, kTo>(some, load_part<V, Source>(from, i, dim));
  std::memcpy(to + i * kBytes, some, static_cast<std::size_t>((dim - i) * kBytes));
}

template <class V, Dtype kTo, Dtype kFrom>
[[gnu::noinline]] void convert_rows_of(const TensorView& dst, const TensorView& src) {
  const RowShape shape = longest_rows(dst, &src, 1);
  constexpr std::int64_t kBytes = kTo == Dtype::kF32 ? 4 : 2;
  for (std::int64_t n = 0; n < shape.tokens; ++n) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      char* const to = row_of<V>(dst, n, h);
      const char* const from = row_of<V>(src, n, h);
      if constexpr (kTo == kFrom) {
        std::memmove(to, from, static_cast<std::size_t>(shape.dim * kBytes));
      } else {
        convert_row<V, kTo, kFrom>(to, from, shape.dim);
      }
    }
  }
}

template <class V>
void convert_rows(const TensorView& dst, const TensorView& src) {
  with_dtype<V>(dst.dtype, [&](auto to) {
    with_dtype<V>(src.dtype, [&](auto from) {
      convert_rows_of<V, decltype(to)::kDtypeOfRow, decltype(from)::kDtypeOfRow>(dst, src);
    });
  });
}

// ------------------------------------------------------------------------------------ finish

// Stores a row times a number of fp64, as any dtype.
template <class V, Dtype kTo>
CONTEXTILE_INLINE void scale_row(char* to, const float* from, double factor, std::int64_t dim) {
  constexpr std::int64_t kBytes = kTo == Dtype::kF32 ? 4 : 2;
  for (std::int64_t first = 0; first < dim; first += kElementsAtOnce) {
    const std::int64_t count = smaller(kElementsAtOnce, dim - first);
    const float* const part = from + first;
    float some[kElementsAtOnce];
    weighted_sum_of<V, 1>(some, &part, &factor, count);
    convert_row<V, kTo, Dtype::kF32>(to + first * kBytes, reinterpret_cast<const char*>(some),
                                     count);
  }
}

template <class V, Dtype kTo>
[[gnu::noinline]] void finish_rows_of(const PartialOutput& accumulated,
                                      std::span<const float> sink_H, const TensorView& out,
                                      const RowStats& lse_NH) {
  constexpr std::int64_t kBytes = kTo == Dtype::kF32 ? 4 : 2;
  const std::int64_t num_rows = out.tokens * out.heads;
  double weights[2 * kRowsAtOnce] = {};  // of the attended keys and of the sink
  double total[kRowsAtOnce];
  RowPlace first;
  for (std::int64_t row = 0; row < num_rows; row += kRowsAtOnce) {
    const std::int64_t count = smaller(kRowsAtOnce, num_rows - row);
    if (!sink_H.empty()) {
      RowPlace at = first;
      for (std::int64_t r = 0; r < count; ++r, at.advance(out.heads)) {
        weights[r] = lse_of<V>(accumulated, at);
        weights[kRowsAtOnce + r] = sink_H[static_cast<std::size_t>(at.head)];
      }
      weigh_sources<V>(2, weights, total);
    }
    for (std::int64_t r = 0; r < count; ++r, first.advance(out.heads)) {
      const float lse = lse_of<V>(accumulated, first);
      char* const to = row_of<V>(out, first.token, first.head);
      const char* const from = row_of<V>(accumulated.o_NHD, first.token, first.head);
      if (lse == kEmptyLse) {
        std::memset(to, 0, static_cast<std::size_t>(out.dim * kBytes));
      } else if (sink_H.empty()) {
        convert_row<V, kTo, Dtype::kF32>(to, from, out.dim);
      } else {
        scale_row<V, kTo>(to, reinterpret_cast<const float*>(from), weights[r], out.dim);
      }
      lse_NH.data[first.token * lse_NH.token_stride + first.head * lse_NH.head_stride] =
          sink_H.empty() ? lse : static_cast<float>(total[r]);
    }
  }
}

template <class V>
void finish_rows(const PartialOutput& accumulated, std::span<const float> sink_H,
                 const TensorView& out, const RowStats& lse) {
  with_dtype<V>(out.dtype, [&](auto to) {
    finish_rows_of<V, decltype(to)::kDtypeOfRow>(accumulated, sink_H, out, lse);
  });
}

template <class V>
constexpr RowTarget make_row_target(const char* name) {
  return {name, &merge_rows<V>, &sum_rows<V>, &delta_rows<V>, &convert_rows<V>, &finish_rows<V>};
}

}  // namespace contextile
