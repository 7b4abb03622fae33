#include "kernel/cpu/row_ops_impl.h"
#include "kernel/cpu/row_target.h"
#include "kernel/cpu/vector_portable.h"

namespace contextile {

const RowTarget* row_target_portable() {
  static constexpr RowTarget kTarget = make_row_target<VectorPortable>("portable");
  return &kTarget;
}

}  // namespace contextile
