#include "kernel/row_ops.h"
#include "kernel/simd/row_ops_impl.h"
#include "kernel/simd/vector_portable.h"

namespace contextile {

const RowOps* row_ops_portable() {
  static constexpr RowOps kOps = make_row_ops<VectorPortable>("portable");
  return &kOps;
}

}  // namespace contextile
