#include "kernel/cuda/passes.h"

#include "kernel/cuda/wgmma_backward.h"
#include "kernel/cuda/wgmma_forward.h"
#include "kernel/cuda/wgmma_kernels.h"

namespace contextile::cuda {
namespace {

constexpr std::int32_t kWgmmaMostDim = 128;

// The entry points of one head dim and number of cuda:wgmma.
struct WgmmaEntries {
  EntryPoint forward, query_gradient, key_gradient;
};

WgmmaEntries wgmma_entries(const KernelParams& params, Dtype dtype) {
#define CONTEXTILE_ENTRIES(text, number, dim)                                                   \
  if (runs(params, dtype, number, dim, dim)) {                                                  \
    return {                                                                                    \
        {"wgmma_forward_" #text "_" #dim, static_cast<std::int32_t>(kWgmmaForwardShared<dim>)}, \
        {"wgmma_backward_dq_" #text "_" #dim,                                                   \
         static_cast<std::int32_t>(kWgmmaBackwardShared<dim, false>)},                          \
        {"wgmma_backward_dkv_" #text "_" #dim,                                                  \
         static_cast<std::int32_t>(kWgmmaBackwardShared<dim, true>)}};                          \
  }
  CONTEXTILE_WGMMA_KERNELS(CONTEXTILE_ENTRIES)
#undef CONTEXTILE_ENTRIES
  return {};
}

}  // namespace

std::string_view module_of(Program program) { return program == Program::kMma ? "mma" : "wgmma"; }
std::string_view name_of(Program program) {
  return program == Program::kMma ? "cuda:mma" : "cuda:wgmma";
}

Program taken_program(const KernelParams& params, Program program) {
  const bool fits = params.head_dim <= kWgmmaMostDim && params.value_dim <= kWgmmaMostDim &&
                    params.q_heads / params.kv_heads <= kWgmmaStreamed<true>;
  return fits ? program : Program::kMma;
}

std::int32_t owned_rows(Program program) {
  return program == Program::kMma ? kOwnedRows : kWgmmaOwned;
}

Pass forward_pass(Program program, const KernelParams& params, Dtype dtype) {
  if (program == Program::kMma) {
    const EntryPoint entry = forward_entry(params, dtype);
    return {module_of(program), entry, {kOwnedRows, entry.rows}, kThreads};
  }
  return {module_of(program),
          wgmma_entries(params, dtype).forward,
          {kWgmmaOwned, kWgmmaKeys},
          kWgmmaThreads};
}

Pass gradient_pass(Program program, const KernelParams& params, Dtype dtype, Gradient gradient) {
  if (program == Program::kMma) {
    const EntryPoint entry = backward_entry(params, dtype, gradient);
    return {module_of(program), entry, {kOwnedRows, entry.rows}, kThreads};
  }
  switch (gradient) {
    case Gradient::kQ:
      return {module_of(program),
              wgmma_entries(params, dtype).query_gradient,
              {kWgmmaOwned, kWgmmaStreamed<false>},
              kWgmmaThreads};
    case Gradient::kKAndV:
      return {module_of(program),
              wgmma_entries(params, dtype).key_gradient,
              {kWgmmaOwned, whole_rows(params.q_heads / params.kv_heads)},
              kWgmmaThreads};
    case Gradient::kK:
    case Gradient::kV:
      break;
  }
  return {};
}

}  // namespace contextile::cuda
