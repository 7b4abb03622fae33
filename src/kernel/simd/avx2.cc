// Compiled with -mavx2 -mfma -mf16c where the compiler has them.
#include "kernel/simd/task.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "kernel/simd/target.h"
#include "kernel/simd/vector_avx2.h"

namespace contextile {

const SimdTarget* simd_avx2() {
  static constexpr SimdTarget kTarget = make_simd_target<VectorAvx2>("avx2");
  return &kTarget;
}

}  // namespace contextile

#else

namespace contextile {
const SimdTarget* simd_avx2() { return nullptr; }
}  // namespace contextile

#endif
