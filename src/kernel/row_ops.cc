#include "kernel/row_ops.h"

#include "kernel/cpu_features.h"

namespace contextile {

const RowOps& row_ops() {
  static const RowOps& kBest = []() -> const RowOps& {
    if (row_ops_avx512() != nullptr && cpu_has_avx512()) return *row_ops_avx512();
    if (row_ops_avx2() != nullptr && cpu_has_avx2()) return *row_ops_avx2();
    return *row_ops_portable();
  }();
  return kBest;
}

}  // namespace contextile
