// The kernels of cuda:wgmma: one CTA for every owned block (x) and KV head (y), three warpgroups.

#include "kernel/cuda/wgmma_backward.h"
#include "kernel/cuda/wgmma_cta.cuh"
#include "kernel/cuda/wgmma_forward.h"
#include "kernel/cuda/wgmma_kernels.h"

namespace contextile::cuda {

#define CONTEXTILE_KERNELS(text, number, dim)                                                      \
  extern "C" __global__ void __launch_bounds__(kWgmmaThreads, 1)                                   \
      wgmma_forward_##text##_##dim(const Launch launch) {                                          \
    extern __shared__ __align__(kSwizzleBytes) std::uint16_t shared[];                             \
    const OwnedBlock owned = launch.owned[blockIdx.x];                                             \
    WgmmaGroup group;                                                                              \
    wgmma_forward<number, dim>(group, launch, owned, static_cast<int>(blockIdx.y), shared);        \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(kWgmmaThreads, 1)                                   \
      wgmma_backward_dq_##text##_##dim(const Launch launch) {                                      \
    extern __shared__ __align__(kSwizzleBytes) std::uint16_t shared[];                             \
    const OwnedBlock owned = launch.owned[blockIdx.x];                                             \
    WgmmaGroup group;                                                                              \
    wgmma_backward<number, dim, false>(group, launch, owned, static_cast<int>(blockIdx.y),         \
                                       shared);                                                    \
  }                                                                                                \
  extern "C" __global__ void __launch_bounds__(kWgmmaThreads, 1)                                   \
      wgmma_backward_dkv_##text##_##dim(const Launch launch) {                                     \
    extern __shared__ __align__(kSwizzleBytes) std::uint16_t shared[];                             \
    const OwnedBlock owned = launch.owned[blockIdx.x];                                             \
    WgmmaGroup group;                                                                              \
    wgmma_backward<number, dim, true>(group, launch, owned, static_cast<int>(blockIdx.y), shared); \
  }
CONTEXTILE_WGMMA_KERNELS(CONTEXTILE_KERNELS)
#undef CONTEXTILE_KERNELS

}  // namespace contextile::cuda
