// The choice of a call's kernel, and the shape of its launches.
#pragma once

#include <cstdint>
#include <string_view>

#include "contextile/extend/kernel.h"
#include "kernel/cuda/entry_points.h"
#include "kernel/cuda/tile_lists.h"

namespace contextile::cuda {

// The programs for attention. Each is a compiled module of that name.
enum class Program : std::uint8_t {
  kMma,    // every architecture
  kWgmma,  // sm_90a
};
// Return "mma" or "wgmma", and "cuda:mma" or "cuda:wgmma".
[[nodiscard]] std::string_view module_of(Program program);
[[nodiscard]] std::string_view name_of(Program program);

// Return `program`, or a program that takes the call if `program` does not. wgmma takes head dims
// up to 192 in forward and up to 128 in backward, value dims up to 128, and groups of up to 64
// heads, because its backward streams query rows as whole tokens.
[[nodiscard]] Program forward_program(const KernelParams& params, Program program);
[[nodiscard]] Program gradient_program(const KernelParams& params, Program program);
// Returns the number of rows that a CTA owns.
[[nodiscard]] std::int32_t owned_rows(Program program);

struct Pass {
  std::string_view module;
  EntryPoint entry;
  BlockRows rows;
  std::int32_t threads = 0;  // of a CTA
};
// Return a pass of the call, which `program` must take.
[[nodiscard]] Pass forward_pass(Program program, const KernelParams& params, Dtype dtype);
// The pass has no entry if other passes write the gradient.
[[nodiscard]] Pass gradient_pass(Program program, const KernelParams& params, Dtype dtype,
                                 Gradient gradient);

}  // namespace contextile::cuda
