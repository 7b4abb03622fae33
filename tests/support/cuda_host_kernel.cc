#include "support/cuda_host_kernel.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/parallel_for.h"
#include "kernel/cuda/backward.h"
#include "kernel/cuda/forward.h"
#include "kernel/cuda/tables.h"
#include "support/host_cta.h"

namespace contextile {
namespace {

using cuda::HostCta;
using cuda::LaunchTable;
using cuda::Number;

cuda::Launch launch_of(const KernelParams& params, const std::vector<cuda::DeviceTile>& tiles,
                       const LaunchTable& table) {
  return {tiles.data(),
          table.owned.data(),
          table.blocks.data(),
          table.bands.data(),
          params.q_heads / params.kv_heads,
          params.head_dim,
          params.value_dim,
          params.scale,
          params.softcap};
}

// Runs cta(owned block, KV head, shared memory) for the whole grid of a launch.
template <std::size_t kSharedBytes, typename RunCta>
void run_grid(const KernelParams& params, const LaunchTable& table, const RunCta& run_cta) {
  const std::size_t num_ctas = table.owned.size() * static_cast<std::size_t>(params.kv_heads);
  parallel_for(std::size_t{0}, num_ctas, [&](std::size_t i) {
    alignas(16) static thread_local std::uint16_t shared[kSharedBytes / sizeof(std::uint16_t)];
    std::fill(std::begin(shared), std::end(shared), std::uint16_t{0xffff});
    run_cta(table.owned[i % table.owned.size()], static_cast<int>(i / table.owned.size()), shared);
  });
}

template <Number kNumber, int kDim>
struct HostLaunches {
  static void forward(const KernelParams& params, std::span<const ForwardTile> tiles) {
    const std::vector<cuda::DeviceTile> device = cuda::device_tiles(tiles);
    for (std::size_t first = 0; first < tiles.size();) {
      const std::size_t end = cuda::end_of_launch(tiles, first);
      const LaunchTable table = cuda::forward_table(params, tiles, first, end, cuda::kForwardKeys);
      const cuda::Launch launch = launch_of(params, device, table);
      run_grid<cuda::kForwardShared<kDim>>(
          params, table, [&](const cuda::OwnedBlock& owned, int kv_head, std::uint16_t* shared) {
            HostCta cta;
            cuda::forward_cta<kNumber, kDim>(cta, launch, owned, kv_head, shared);
          });
      first = end;
    }
  }
  template <bool kKeysOwn>
  static void pass(const KernelParams& params, const std::vector<cuda::DeviceTile>& device,
                   const LaunchTable& table) {
    const cuda::Launch launch = launch_of(params, device, table);
    run_grid<cuda::kBackwardShared<kDim>>(
        params, table, [&](const cuda::OwnedBlock& owned, int kv_head, std::uint16_t* shared) {
          HostCta cta;
          cuda::backward_cta<kNumber, kDim, kKeysOwn>(cta, launch, owned, kv_head, shared);
        });
  }
  static void backward(const KernelParams& params, std::span<const BackwardTile> tiles) {
    const std::vector<cuda::DeviceTile> device = cuda::device_tiles(tiles);
    for (std::size_t first = 0; first < tiles.size();) {
      const std::size_t end = cuda::end_of_launch(tiles, first);
      pass<false>(params, device,
                  cuda::query_gradient_table(params, tiles, first, end, cuda::kBackwardRows));
      pass<true>(params, device,
                 cuda::key_gradient_table(params, tiles, first, end, cuda::kBackwardRows));
      first = end;
    }
  }
};

// Calls run.operator()<HostLaunches<…>>() for the dtype and the dims.
template <typename Run>
void dispatch(const KernelParams& params, Dtype dtype, const Run& run) {
  const bool is_narrow = std::max(params.head_dim, params.value_dim) <= 64;
  if (dtype == Dtype::kBf16) {
    is_narrow ? run(HostLaunches<Number::kBf16, 64>()) : run(HostLaunches<Number::kBf16, 128>());
  } else {
    is_narrow ? run(HostLaunches<Number::kF16, 64>()) : run(HostLaunches<Number::kF16, 128>());
  }
}

class CudaHostKernel : public AttentionKernel {
 public:
  [[nodiscard]] std::string_view name() const override { return "cuda:host"; }
  [[nodiscard]] Dtype weight_dtype(Dtype inputs) const override { return inputs; }
  void forward(const KernelParams& params, std::span<const ForwardTile> tiles) const override {
    if (tiles.empty()) return;
    dispatch(params, tiles[0].q_NHD.dtype,
             [&](auto launches) { decltype(launches)::forward(params, tiles); });
  }
  void backward(const KernelParams& params, std::span<const BackwardTile> tiles) const override {
    if (tiles.empty()) return;
    dispatch(params, tiles[0].q_NHD.dtype,
             [&](auto launches) { decltype(launches)::backward(params, tiles); });
  }
};

}  // namespace

const AttentionKernel& cuda_host_kernel() {
  static const CudaHostKernel kKernel;
  return kKernel;
}

}  // namespace contextile
