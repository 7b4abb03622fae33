// Compiled with -mavx2 -mfma -mf16c if the compiler has these options.
#include "kernel/paged/paged_target.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "kernel/paged/lanes_avx2.h"
#include "kernel/paged/take_keys.h"

namespace contextile {

const PagedTarget* paged_avx2() {
  static constexpr PagedTarget kTarget = make_paged_target<LanesAvx2>("avx2");
  return &kTarget;
}

}  // namespace contextile

#else

namespace contextile {
const PagedTarget* paged_avx2() { return nullptr; }
}  // namespace contextile

#endif
