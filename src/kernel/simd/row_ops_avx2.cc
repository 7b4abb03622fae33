// Compiled with -mavx2 -mfma -mf16c where the compiler has
// them, and without fusing multiply and add.
#include "kernel/row_ops.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "kernel/simd/row_ops_impl.h"
#include "kernel/simd/vector_avx2.h"

namespace contextile {

const RowOps* row_ops_avx2() {
  static constexpr RowOps kOps = make_row_ops<VectorAvx2>("avx2");
  return &kOps;
}

}  // namespace contextile

#else

namespace contextile {
const RowOps* row_ops_avx2() { return nullptr; }
}  // namespace contextile

#endif
