#include "kernel/paged/take_keys.h"
#include "kernel/paged/target.h"
#include "kernel/simd/vector_portable.h"

namespace contextile {

const PagedTarget* paged_portable() {
  static constexpr PagedTarget kTarget = make_paged_target<VectorPortable>("portable");
  return &kTarget;
}

}  // namespace contextile
