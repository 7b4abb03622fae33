#include "kernel/simd/target.h"
#include "kernel/simd/task.h"
#include "kernel/simd/vector_portable.h"

namespace contextile {

const SimdTarget* simd_portable() {
  static constexpr SimdTarget kTarget = make_simd_target<VectorPortable>("portable");
  return &kTarget;
}

}  // namespace contextile
