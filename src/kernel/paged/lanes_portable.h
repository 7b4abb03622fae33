// The operations that attention to pages needs of vectors of four floats, for any processor.
#pragma once

#include "contextile/extend/paged_attention.h"
#include "kernel/cpu/vector_portable.h"

namespace contextile {

// A lane class with the interface of LanesAvx512.
struct LanesPortable : VectorPortable {
  template <int n>
  CONTEXTILE_INLINE static Float most_lanes(Float x) {
    static_assert(n == 1);
    return x;
  }

  // NaNs of fp8 remain, so there are none to watch for.
  template <KvDtype dtype>
  CONTEXTILE_INLINE static void widen(const std::byte* from, Float (&to)[2]) {
    for (int i = 0; i < 2; ++i) {
      if constexpr (dtype == KvDtype::kF32) {
        to[i] = load(reinterpret_cast<const float*>(from) + 4 * i);
      } else if constexpr (dtype == KvDtype::kBf16) {
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
  static constexpr bool is_paired(KvDtype /*dtype*/) { return false; }
  static constexpr float factor(KvDtype /*dtype*/) { return 1.0F; }

  struct Watch {};
  CONTEXTILE_INLINE static Watch watch_nothing() { return {}; }
  CONTEXTILE_INLINE static Watch watch(Watch seen, const std::byte* /*from*/) { return seen; }
  CONTEXTILE_INLINE static bool any_nan(Watch /*seen*/) { return false; }
  CONTEXTILE_INLINE static Float spoil(Float x) { return x; }

  // A NaN remains a NaN.
  CONTEXTILE_INLINE static Float exp2(Float x) {
    return select(x == x, VectorPortable::exp2(x), x);
  }
};

}  // namespace contextile
