#include "kernel/simd/row_ops_impl.h"
#include "kernel/simd/row_target.h"
#include "kernel/simd/vector_portable.h"

namespace contextile {

const RowTarget* row_target_portable() {
  static constexpr RowTarget kTarget = make_row_target<VectorPortable>("portable");
  return &kTarget;
}

}  // namespace contextile
