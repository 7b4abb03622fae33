// The kernels of cuda:mma: one CTA for every owned block (x) and KV head (y), 128 threads, dynamic
// shared memory of kForwardShared or kBackwardShared bytes.

#include "kernel/cuda/backward.h"
#include "kernel/cuda/entry_points.h"
#include "kernel/cuda/forward.h"
#include "kernel/cuda/mma_cta.cuh"

namespace contextile::cuda {

#define CONTEXTILE_KERNELS(text, number, dim)                                                     \
  extern "C" __global__ void __launch_bounds__(kThreads, 2)                                       \
      forward_##text##_##dim(const Launch launch) {                                               \
    extern __shared__ __align__(16) std::uint16_t shared[];                                       \
    MmaCta cta;                                                                                   \
    forward_cta<number, dim>(cta, launch, launch.owned[blockIdx.x],                               \
                             static_cast<int>(blockIdx.y), shared);                               \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads, 2)                                       \
      backward_dq_##text##_##dim(const Launch launch) {                                           \
    extern __shared__ __align__(16) std::uint16_t shared[];                                       \
    MmaCta cta;                                                                                   \
    backward_cta<number, dim, false>(cta, launch, launch.owned[blockIdx.x],                       \
                                     static_cast<int>(blockIdx.y), shared);                       \
  }                                                                                               \
  extern "C" __global__ void __launch_bounds__(kThreads, 2)                                       \
      backward_dkv_##text##_##dim(const Launch launch) {                                          \
    extern __shared__ __align__(16) std::uint16_t shared[];                                       \
    MmaCta cta;                                                                                   \
    backward_cta<number, dim, true>(cta, launch, launch.owned[blockIdx.x],                        \
                                    static_cast<int>(blockIdx.y), shared);                        \
  }
CONTEXTILE_ATTENTION_KERNELS(CONTEXTILE_KERNELS)
#undef CONTEXTILE_KERNELS

}  // namespace contextile::cuda
