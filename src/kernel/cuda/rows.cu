// Row operations: a warp for each row. Compiled with -fmad=false, so that they give the same bits
// as CPUs.

#include "kernel/cuda/copy_call.h"
#include "kernel/cuda/entry_points.h"
#include "kernel/cuda/mma_cta.cuh"
#include "kernel/cuda/place_call.h"
#include "kernel/cuda/row_calls.h"

namespace contextile::cuda {

template <typename Call>
__device__ __forceinline__ void run_row(const Call& call) {
  MmaCta cta;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kLanes;
  if (row < call.shape.num_rows()) call.run(cta, row);
}

// Least number of blocks that share a processor. With this number, the data of fp64 arithmetic and
// of calls in lists does not spill on any architecture.
inline constexpr int kRowBlocks = 6;

// Calls are read in place, by an index of their own for each row.
#define CONTEXTILE_KERNEL(name, Call)                                                          \
  extern "C" __global__ void __launch_bounds__(kThreads, kRowBlocks)                           \
      name(const __grid_constant__ Call call) {                                                \
    run_row(call);                                                                             \
  }
CONTEXTILE_ROW_KERNELS(CONTEXTILE_KERNEL)
#undef CONTEXTILE_KERNEL

}  // namespace contextile::cuda
