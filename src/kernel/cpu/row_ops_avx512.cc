// Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c if the compiler has these
// options, and without fusing multiply and add.
#include "kernel/cpu/row_target.h"

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__AVX512BW__)

#include "kernel/cpu/row_ops_impl.h"
#include "kernel/cpu/vector_avx512.h"

namespace contextile {

const RowTarget* row_target_avx512() {
  static constexpr RowTarget kTarget = make_row_target<VectorAvx512>("avx512");
  return &kTarget;
}

}  // namespace contextile

#else

namespace contextile {
const RowTarget* row_target_avx512() { return nullptr; }
}  // namespace contextile

#endif
