// Compiled with -mavx2 -mfma -mf16c if the compiler has these options.
#include "kernel/cpu/task.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "kernel/cpu/target.h"
#include "kernel/cpu/vector_avx2.h"

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
