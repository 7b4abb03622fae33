// The kernels of cuda:mma: one CTA for every owned block (x) and KV head (y), 128 threads, dynamic
// shared memory of kForwardShared or kBackwardShared bytes.

#include "kernel/cuda/backward.h"
#include "kernel/cuda/forward.h"
#include "kernel/cuda/mma_cta.cuh"

namespace contextile::cuda {

template <Number kNumber, int kDim>
__global__ void __launch_bounds__(kThreads, 2) forward_kernel(const Launch launch) {
  extern __shared__ __align__(16) std::uint16_t shared[];
  MmaCta cta;
  const OwnedBlock owned = launch.owned[blockIdx.x];
  forward_cta<kNumber, kDim>(cta, launch, owned, static_cast<int>(blockIdx.y), shared);
}

template <Number kNumber, int kDim, bool kKeysOwn>
__global__ void __launch_bounds__(kThreads, 2) backward_kernel(const Launch launch) {
  extern __shared__ __align__(16) std::uint16_t shared[];
  MmaCta cta;
  const OwnedBlock owned = launch.owned[blockIdx.x];
  backward_cta<kNumber, kDim, kKeysOwn>(cta, launch, owned, static_cast<int>(blockIdx.y), shared);
}

#define CONTEXTILE_KERNELS(number, dim)                                      \
  template __global__ void forward_kernel<number, dim>(const Launch);         \
  template __global__ void backward_kernel<number, dim, false>(const Launch); \
  template __global__ void backward_kernel<number, dim, true>(const Launch)
CONTEXTILE_KERNELS(Number::kBf16, 64);
CONTEXTILE_KERNELS(Number::kBf16, 128);
CONTEXTILE_KERNELS(Number::kF16, 64);
CONTEXTILE_KERNELS(Number::kF16, 128);
#undef CONTEXTILE_KERNELS

}  // namespace contextile::cuda
