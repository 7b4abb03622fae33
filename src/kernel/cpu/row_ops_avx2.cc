// Compiled with -mavx2 -mfma -mf16c if the compiler has these options, and without fusing multiply
// and add.
#include "kernel/cpu/row_target.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "kernel/cpu/row_ops_impl.h"
#include "kernel/cpu/vector_avx2.h"

namespace contextile {

const RowTarget* row_target_avx2() {
  static constexpr RowTarget kTarget = make_row_target<VectorAvx2>("avx2");
  return &kTarget;
}

}  // namespace contextile

#else

namespace contextile {
const RowTarget* row_target_avx2() { return nullptr; }
}  // namespace contextile

#endif
