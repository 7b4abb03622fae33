// Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c if the compiler has these
// options.
#include "kernel/cpu/task.h"

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__AVX512BW__)

#include "kernel/cpu/target.h"
#include "kernel/cpu/vector_avx512.h"

namespace contextile {

const SimdTarget* simd_avx512() {
  static constexpr SimdTarget kTarget = make_simd_target<VectorAvx512>("avx512");
  return &kTarget;
}

}  // namespace contextile

#else

namespace contextile {
const SimdTarget* simd_avx512() { return nullptr; }
}  // namespace contextile

#endif
