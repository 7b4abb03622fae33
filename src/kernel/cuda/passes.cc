#include "kernel/cuda/passes.h"

#include "kernel/cuda/wgmma_backward.h"
#include "kernel/cuda/wgmma_forward.h"
#include "kernel/cuda/wgmma_kernels.h"

namespace contextile::cuda {
namespace {

// The largest head dims that cuda:wgmma takes, and its largest value dim.
constexpr std::int32_t kWgmmaForwardDim = 192;
constexpr std::int32_t kWgmmaGradientDim = 128;
constexpr std::int32_t kWgmmaValueDim = 128;

Program wgmma_up_to(std::int32_t head_dim, const KernelParams& params, Program program) {
  const bool fits = params.head_dim <= head_dim && params.value_dim <= kWgmmaValueDim &&
                    params.q_heads / params.kv_heads <= kWgmmaStreamed<true>;
  return fits ? program : Program::kMma;
}

EntryPoint wgmma_forward_entry(const KernelParams& params, Dtype dtype) {
#define CONTEXTILE_ENTRY(text, number, name, dim, value_dim)                 \
  if (runs(params, dtype, number, dim, value_dim)) {                         \
    return {"wgmma_forward_" #text "_" #name,                                \
            static_cast<std::int32_t>(kWgmmaForwardShared<dim, value_dim>)}; \
  }
  CONTEXTILE_WGMMA_FORWARD_KERNELS(CONTEXTILE_ENTRY)
#undef CONTEXTILE_ENTRY
  return {};
}

// The entry points of backward of one head dim and number of cuda:wgmma.
struct WgmmaEntries {
  EntryPoint query_gradient, key_gradient;
};

WgmmaEntries wgmma_entries(const KernelParams& params, Dtype dtype) {
#define CONTEXTILE_ENTRIES(text, number, name, dim, value_dim)             \
  if (runs(params, dtype, number, dim, value_dim)) {                       \
    return {{"wgmma_backward_dq_" #text "_" #name,                         \
             static_cast<std::int32_t>(kWgmmaBackwardShared<dim, false>)}, \
            {"wgmma_backward_dkv_" #text "_" #name,                        \
             static_cast<std::int32_t>(kWgmmaBackwardShared<dim, true>)}}; \
  }
  CONTEXTILE_WGMMA_GRADIENT_KERNELS(CONTEXTILE_ENTRIES)
#undef CONTEXTILE_ENTRIES
  return {};
}

}  // namespace

std::string_view module_of(Program program) { return program == Program::kMma ? "mma" : "wgmma"; }
std::string_view name_of(Program program) {
  return program == Program::kMma ? "cuda:mma" : "cuda:wgmma";
}

Program forward_program(const KernelParams& params, Program program) {
  return wgmma_up_to(kWgmmaForwardDim, params, program);
}
Program gradient_program(const KernelParams& params, Program program) {
  return wgmma_up_to(kWgmmaGradientDim, params, program);
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
          wgmma_forward_entry(params, dtype),
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
