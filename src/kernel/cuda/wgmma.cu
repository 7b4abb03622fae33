// The kernels of cuda:wgmma: one CTA for every owned block (x) and KV head (y), three warpgroups.

#include "kernel/cuda/wgmma_backward.h"
#include "kernel/cuda/wgmma_cta.cuh"
#include "kernel/cuda/wgmma_forward.h"
#include "kernel/cuda/wgmma_kernels.h"

namespace contextile::cuda {

#define CONTEXTILE_KERNEL(kernel, ...)                                                         \
  extern "C" __global__ void __launch_bounds__(kWgmmaThreads, 1) kernel(const Launch launch) { \
    extern __shared__ __align__(kSwizzleBytes) std::uint16_t shared[];                         \
    const OwnedBlock owned = launch.owned[blockIdx.x];                                         \
    WgmmaGroup group;                                                                          \
    __VA_ARGS__(group, launch, owned, static_cast<int>(blockIdx.y), shared);                   \
  }
#define CONTEXTILE_FORWARD(text, number, name, dim, value_dim) \
  CONTEXTILE_KERNEL(wgmma_forward_##text##_##name, wgmma_forward<number, dim, value_dim>)
#define CONTEXTILE_BACKWARD(text, number, name, dim, value_dim)                            \
  CONTEXTILE_KERNEL(wgmma_backward_dq_##text##_##name, wgmma_backward<number, dim, false>) \
  CONTEXTILE_KERNEL(wgmma_backward_dkv_##text##_##name, wgmma_backward<number, dim, true>)
CONTEXTILE_WGMMA_FORWARD_KERNELS(CONTEXTILE_FORWARD)
CONTEXTILE_WGMMA_GRADIENT_KERNELS(CONTEXTILE_BACKWARD)
#undef CONTEXTILE_BACKWARD
#undef CONTEXTILE_FORWARD
#undef CONTEXTILE_KERNEL

}  // namespace contextile::cuda
