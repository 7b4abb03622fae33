// Which kernel a call takes, and how its launches are cut.
#pragma once

#include <cstdint>
#include <string_view>

#include "contextile/extend/kernel.h"
#include "kernel/cuda/entry_points.h"
#include "kernel/cuda/tile_lists.h"

namespace contextile::cuda {

// The programs for attention, each a compiled module of that name.
enum class Program : std::uint8_t {
  kMma,    // every architecture
  kWgmma,  // sm_90a
};
// "mma", "wgmma"; "cuda:mma", "cuda:wgmma".
[[nodiscard]] std::string_view module_of(Program program);
[[nodiscard]] std::string_view name_of(Program program);

// `program`, or where it does not take such calls one that does: wgmma streams query rows as whole
// tokens of up to 64 heads, of dims up to 128.
[[nodiscard]] Program taken_program(const KernelParams& params, Program program);
// That a CTA owns.
[[nodiscard]] std::int32_t owned_rows(Program program);

struct Pass {
  EntryPoint entry;
  BlockRows rows;
  std::int32_t threads = 0;  // of a CTA
};
// `program` takes the call.
[[nodiscard]] Pass forward_pass(Program program, const KernelParams& params, Dtype dtype);
// Without an entry where other passes write the gradient.
[[nodiscard]] Pass gradient_pass(Program program, const KernelParams& params, Dtype dtype,
                                 Gradient gradient);

}  // namespace contextile::cuda
