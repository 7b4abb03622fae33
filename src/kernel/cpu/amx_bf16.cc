// Compiled with -mamx-tile -mamx-bf16 and the options of avx512_bf16.cc if the compiler has them.
#include "kernel/cpu/task.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AVX512BF16__) && \
    defined(__AVX512DQ__) && defined(__AVX512VL__)

#include "kernel/cpu/target.h"
#include "kernel/cpu/vector_amx_bf16.h"

namespace contextile {

const SimdTarget* simd_amx_bf16() {
  static constexpr SimdTarget kTarget = make_simd_target<VectorAmxBf16>("amx_bf16");
  return &kTarget;
}

}  // namespace contextile

#else

namespace contextile {
const SimdTarget* simd_amx_bf16() { return nullptr; }
}  // namespace contextile

#endif
