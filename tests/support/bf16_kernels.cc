#include "support/bf16_kernels.h"

#include <array>
#include <memory>

#include "kernel/cpu/row_target.h"
#include "kernel/cpu/simd_kernel.h"
#include "kernel/cpu/target.h"
#include "kernel/cpu/task.h"
#include "support/vector_bf16.h"

namespace contextile {

std::span<const AttentionKernel* const> emulated_bf16_kernels() {
  static constexpr SimdTarget kPairs = make_simd_target<VectorBf16Pairs>("emulated_pairs");
  static constexpr SimdTarget kTiles = make_simd_target<VectorBf16Tiles>("emulated_tiles");
  static const auto kOfPairs = make_mixed_kernel(kPairs, *simd_portable(), *row_target_portable());
  static const auto kOfTiles = make_mixed_kernel(kTiles, *simd_portable(), *row_target_portable());
  static const std::array<const AttentionKernel*, 2> kAll = {kOfPairs.get(), kOfTiles.get()};
  return kAll;
}

}  // namespace contextile
