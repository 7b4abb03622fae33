// Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma -mf16c if the
// compiler has these options.
#include "kernel/cpu/task.h"

#if defined(__AVX512BF16__) && defined(__AVX512DQ__) && defined(__AVX512VL__)

#include "kernel/cpu/target.h"
#include "kernel/cpu/vector_avx512_bf16.h"

namespace contextile {

const SimdTarget* simd_avx512_bf16() {
  static constexpr SimdTarget kTarget = make_simd_target<VectorAvx512Bf16>("avx512_bf16");
  return &kTarget;
}

}  // namespace contextile

#else

namespace contextile {
const SimdTarget* simd_avx512_bf16() { return nullptr; }
}  // namespace contextile

#endif
