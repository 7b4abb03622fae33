// Compiled with -mavx512f -mavx512bw -mavx512dq -mavx512vl -mfma -mf16c if the compiler has these
// options.
#include "kernel/paged/paged_target.h"

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512VL__) && defined(__AVX512BW__)

#include "kernel/paged/lanes_avx512.h"
#include "kernel/paged/take_keys.h"

namespace contextile {

const PagedTarget* paged_avx512() {
  static constexpr PagedTarget kTarget = make_paged_target<LanesAvx512>("avx512");
  return &kTarget;
}

}  // namespace contextile

#else

namespace contextile {
const PagedTarget* paged_avx512() { return nullptr; }
}  // namespace contextile

#endif
