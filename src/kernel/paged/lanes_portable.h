// The operations that attention to pages needs of vectors of four floats, for any processor.
#pragma once

#include "contextile/extend/paged_attention.h"
#include "kernel/cpu/vector_portable.h"

namespace contextile {

// A lane class with the interface of LanesAvx512.
struct LanesPortable : VectorPortable {
  template <int n>
  CONTEXTILE_INLINE static Float load_lanes(const float* from) {
    static_assert(n == 1);
    return set(*from);
  }
  template <int n>
  CONTEXTILE_INLINE static Float sum_lanes(const Float* x) {
    static_assert(n == 1);
    return x[0];
  }
  template <int n>
  CONTEXTILE_INLINE static Float most_lanes(Float x) {
    static_assert(n == 1);
    return x;
  }

  template <KvDtype dtype>
  CONTEXTILE_INLINE static void widen(const std::byte* from, Float (&to)[16]) {
    for (int i = 0; i < 16; ++i) {
      if constexpr (dtype == KvDtype::kBf16) {
        to[i] = load_bf16(reinterpret_cast<const std::uint16_t*>(from) + 4 * i);
      } else if constexpr (dtype == KvDtype::kF16) {
        to[i] = load_f16(reinterpret_cast<const std::uint16_t*>(from) + 4 * i);
      } else if constexpr (dtype == KvDtype::kInt8) {
        to[i] = load_int8(reinterpret_cast<const std::int8_t*>(from) + 4 * i);
      } else {
        to[i] = load_fp8(reinterpret_cast<const std::uint8_t*>(from) + 4 * i);
      }
    }
  }
  static constexpr int element(KvDtype /*dtype*/, int position) { return position; }
  static constexpr float factor(KvDtype /*dtype*/) { return 1.0F; }

  // A NaN remains a NaN.
  CONTEXTILE_INLINE static Float exp2(Float x) {
    return select(x == x, VectorPortable::exp2(x), x);
  }
};

}  // namespace contextile
