// The kernels of cuda:mma: one CTA for every owned block (x) and KV head (y), 128 threads, dynamic
// shared memory of kForwardShared or kBackwardShared bytes.

#include "kernel/cuda/mma_backward.h"
#include "kernel/cuda/entry_points.h"
#include "kernel/cuda/mma_forward.h"
#include "kernel/cuda/mma_cta.cuh"

namespace contextile::cuda {

#define CONTEXTILE_FORWARD(text, number, name, dim, value_dim)                 \
  extern "C" __global__ void __launch_bounds__(kThreads, 2)                    \
      forward_##text##_##name(const Launch launch) {                           \
    extern __shared__ __align__(16) std::uint16_t shared[];                    \
    MmaCta cta;                                                                \
    forward_cta<number, dim, value_dim>(cta, launch, launch.owned[blockIdx.x], \
                                        static_cast<int>(blockIdx.y), shared); \
  }
#define CONTEXTILE_BACKWARD(pass, of, text, number, name, dim, value_dim)           \
  extern "C" __global__ void __launch_bounds__(kThreads, 2)                         \
      backward_##pass##_##text##_##name(const Launch launch) {                      \
    extern __shared__ __align__(16) std::uint16_t shared[];                         \
    MmaCta cta;                                                                     \
    backward_cta<number, of, dim, value_dim>(cta, launch, launch.owned[blockIdx.x], \
                                             static_cast<int>(blockIdx.y), shared); \
  }
#define CONTEXTILE_ONE_PASS(...) CONTEXTILE_ONE_PASS_GRADIENTS(CONTEXTILE_BACKWARD, __VA_ARGS__)
#define CONTEXTILE_TWO_PASSES(...) CONTEXTILE_TWO_PASS_GRADIENTS(CONTEXTILE_BACKWARD, __VA_ARGS__)
CONTEXTILE_ATTENTION_KERNELS(CONTEXTILE_FORWARD)
CONTEXTILE_ONE_PASS_KERNELS(CONTEXTILE_ONE_PASS)
CONTEXTILE_TWO_PASS_KERNELS(CONTEXTILE_TWO_PASSES)
#undef CONTEXTILE_TWO_PASSES
#undef CONTEXTILE_ONE_PASS
#undef CONTEXTILE_BACKWARD
#undef CONTEXTILE_FORWARD

}  // namespace contextile::cuda
