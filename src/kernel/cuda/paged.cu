// The kernels of cuda:paged: one CTA for every work (x) and KV head (y), with dynamic shared memory
// of PagedShape::kShared bytes; and the kernel that merges the results of runs of keys.

#include "kernel/cuda/mma_cta.cuh"
#include "kernel/cuda/paged_attend.h"
#include "kernel/cuda/paged_entry_points.h"
#include "kernel/cuda/paged_merge.h"

namespace contextile::cuda {

#define CONTEXTILE_KERNEL(cache, bytes, text, number, name, dim, value)                    \
  extern "C" __global__ void __launch_bounds__(kThreads,                                   \
                                               PagedShape<bytes, dim, value>::kBlocksOfSm) \
      paged_##cache##_##text##_##name(const PagedLaunch launch) {                          \
    extern __shared__ __align__(16) std::uint16_t shared[];                                \
    MmaCta cta;                                                                            \
    paged_cta<number, bytes, dim, value>(cta, launch, launch.works[blockIdx.x],            \
                                         static_cast<int>(blockIdx.y), shared);            \
  }
CONTEXTILE_PAGED_KERNELS(CONTEXTILE_KERNEL)
#undef CONTEXTILE_KERNEL

extern "C" __global__ void __launch_bounds__(kThreads) paged_merge(const PagedLaunch launch) {
  MmaCta cta;
  paged_merge_cta(cta, launch, launch.merges[blockIdx.x], static_cast<int>(blockIdx.y));
}

}  // namespace contextile::cuda
