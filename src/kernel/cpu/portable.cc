#include "kernel/cpu/target.h"
#include "kernel/cpu/task.h"
#include "kernel/cpu/vector_portable.h"

namespace contextile {

const SimdTarget* simd_portable() {
  static constexpr SimdTarget kTarget = make_simd_target<VectorPortable>("portable");
  return &kTarget;
}

}  // namespace contextile
