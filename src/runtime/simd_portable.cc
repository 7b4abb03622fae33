#include "runtime/simd_target.h"
#include "runtime/simd_task.h"
#include "runtime/simd_vector_portable.h"

namespace contextile {

const SimdTarget* simd_portable() {
  static constexpr SimdTarget kTarget = make_simd_target<VectorPortable>("portable");
  return &kTarget;
}

}  // namespace contextile
