#include "support/host_grid.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "base/parallel_for.h"
#include "kernel/cuda/copy_call.h"
#include "kernel/cuda/entry_points.h"
#include "kernel/cuda/mma_backward.h"
#include "kernel/cuda/mma_forward.h"
#include "kernel/cuda/paged_launch.h"
#include "kernel/cuda/place_call.h"
#include "kernel/cuda/row_calls.h"
#include "kernel/cuda/wgmma_backward.h"
#include "kernel/cuda/wgmma_forward.h"
#include "kernel/cuda/wgmma_kernels.h"
#include "support/host_cta.h"
#include "support/host_group.h"
#include "support/host_paged_grid.h"

namespace contextile::cuda {
namespace {

template <typename T>
T argument_of(const Grid& grid, std::span<const std::byte> bytes) {
  CONTEXTILE_CHECK(bytes.size() == sizeof(T), "{}: expected an argument of {} bytes, found {}",
                   grid.kernel, sizeof(T), bytes.size());
  T argument;
  std::memcpy(&argument, bytes.data(), sizeof(T));
  return argument;
}

// Calls run(owned block, KV head, shared memory) for every block of threads.
template <std::size_t kSharedBytes, typename Run>
void run_blocks(const Grid& grid, const Launch& launch, const Run& run) {
  CONTEXTILE_CHECK(
      grid.shared_bytes == static_cast<std::int32_t>(kSharedBytes) && grid.threads == kThreads,
      "{}: expected {} bytes of shared memory, found {}", grid.kernel, kSharedBytes,
      grid.shared_bytes);
  const auto width = static_cast<std::size_t>(grid.blocks_x);
  parallel_for(std::size_t{0}, width * static_cast<std::size_t>(grid.blocks_y), [&](std::size_t i) {
    alignas(16) static thread_local std::uint16_t shared[kSharedBytes / sizeof(std::uint16_t)];
    std::fill(std::begin(shared), std::end(shared), std::uint16_t{0xffff});
    run(launch.owned[i % width], static_cast<int>(i / width), shared);
  });
}

template <Number kNumber, int kDim, int kValueDim>
void run_forward(const Grid& grid, const Launch& launch) {
  run_blocks<kForwardShared<kDim, kValueDim>>(
      grid, launch, [&](const OwnedBlock& owned, int kv_head, std::uint16_t* shared) {
        HostCta cta(owned.begin / kOwnedRows + kv_head);
        forward_cta<kNumber, kDim, kValueDim>(cta, launch, owned, kv_head, shared);
      });
}

template <Number kNumber, Gradient kGradient, int kDim, int kValueDim>
void run_backward(const Grid& grid, const Launch& launch) {
  run_blocks<kBackwardShared<kGradient, kDim, kValueDim>>(
      grid, launch, [&](const OwnedBlock& owned, int kv_head, std::uint16_t* shared) {
        HostCta cta(owned.begin / kOwnedRows + kv_head);
        backward_cta<kNumber, kGradient, kDim, kValueDim>(cta, launch, owned, kv_head, shared);
      });
}

// Calls run(group, owned block, KV head, shared memory) for every warpgroup of every block of
// threads.
template <std::size_t kSharedBytes, typename Run>
void run_groups(const Grid& grid, const Launch& launch, const Run& run) {
  CONTEXTILE_CHECK(
      grid.shared_bytes == static_cast<std::int32_t>(kSharedBytes) && grid.threads == kWgmmaThreads,
      "{}: expected {} bytes of shared memory, found {}", grid.kernel, kSharedBytes,
      grid.shared_bytes);
  const auto width = static_cast<std::size_t>(grid.blocks_x);
  parallel_for(std::size_t{0}, width * static_cast<std::size_t>(grid.blocks_y), [&](std::size_t i) {
    HostGroups cta(kSharedBytes, i);
    cta.turns().run([&](int part) {
      HostGroup group(cta, part);
      run(group, launch.owned[i % width], static_cast<int>(i / width), cta.shared());
      group.expect_over();
    });
    cta.expect_no_turn();
  });
}

template <Number kNumber, int kDim, int kValueDim>
void run_wgmma_forward(const Grid& grid, const Launch& launch) {
  run_groups<kWgmmaForwardShared<kDim, kValueDim>>(
      grid, launch,
      [&](HostGroup& group, const OwnedBlock& owned, int kv_head, std::uint16_t* shared) {
        wgmma_forward<kNumber, kDim, kValueDim>(group, launch, owned, kv_head, shared);
      });
}

template <Number kNumber, int kDim, bool kKeysOwn>
void run_wgmma_backward(const Grid& grid, const Launch& launch) {
  run_groups<kWgmmaBackwardShared<kDim, kKeysOwn>>(
      grid, launch,
      [&](HostGroup& group, const OwnedBlock& owned, int kv_head, std::uint16_t* shared) {
        wgmma_backward<kNumber, kDim, kKeysOwn>(group, launch, owned, kv_head, shared);
      });
}

template <typename Call>
void run_rows(const Grid& grid, const Call& call) {
  const std::int64_t warps = std::int64_t{grid.blocks_x} * kWarps;
  CONTEXTILE_CHECK(warps >= call.shape.num_rows() && warps - call.shape.num_rows() < kWarps,
                   "{}: expected {} rows, found {} warps", grid.kernel, call.shape.num_rows(),
                   warps);
  // From the last one on: rows of one launch are in no order.
  for (std::int64_t row = call.shape.num_rows(); row-- > 0;) {
    HostCta cta(row);
    call.run(cta, row);
  }
}

}  // namespace

void run_on_host(const Grid& grid, std::span<const std::byte> arguments) {
#define CONTEXTILE_RUN(text, number, name, dim, value_dim)                                  \
  if (grid.kernel == "forward_" #text "_" #name) {                                          \
    return run_forward<number, dim, value_dim>(grid, argument_of<Launch>(grid, arguments)); \
  }
#define CONTEXTILE_PASS(pass, of, text, number, name, dim, value_dim)                            \
  if (grid.kernel == "backward_" #pass "_" #text "_" #name) {                                    \
    return run_backward<number, of, dim, value_dim>(grid, argument_of<Launch>(grid, arguments)); \
  }
#define CONTEXTILE_ONE_PASS(...) CONTEXTILE_ONE_PASS_GRADIENTS(CONTEXTILE_PASS, __VA_ARGS__)
#define CONTEXTILE_TWO_PASSES(...) CONTEXTILE_TWO_PASS_GRADIENTS(CONTEXTILE_PASS, __VA_ARGS__)
  CONTEXTILE_ATTENTION_KERNELS(CONTEXTILE_RUN)
  CONTEXTILE_ONE_PASS_KERNELS(CONTEXTILE_ONE_PASS)
  CONTEXTILE_TWO_PASS_KERNELS(CONTEXTILE_TWO_PASSES)
#undef CONTEXTILE_TWO_PASSES
#undef CONTEXTILE_ONE_PASS
#undef CONTEXTILE_PASS
#undef CONTEXTILE_RUN
#define CONTEXTILE_RUN(text, number, name, dim, value_dim)                                        \
  if (grid.kernel == "wgmma_forward_" #text "_" #name) {                                          \
    return run_wgmma_forward<number, dim, value_dim>(grid, argument_of<Launch>(grid, arguments)); \
  }
  CONTEXTILE_WGMMA_FORWARD_KERNELS(CONTEXTILE_RUN)
#undef CONTEXTILE_RUN
#define CONTEXTILE_RUN(text, number, name, dim, value_dim)                                     \
  if (grid.kernel == "wgmma_backward_dq_" #text "_" #name) {                                   \
    return run_wgmma_backward<number, dim, false>(grid, argument_of<Launch>(grid, arguments)); \
  }                                                                                            \
  if (grid.kernel == "wgmma_backward_dkv_" #text "_" #name) {                                  \
    return run_wgmma_backward<number, dim, true>(grid, argument_of<Launch>(grid, arguments));  \
  }
  CONTEXTILE_WGMMA_GRADIENT_KERNELS(CONTEXTILE_RUN)
#undef CONTEXTILE_RUN
#define CONTEXTILE_RUN(name, Call) \
  if (grid.kernel == #name) return run_rows(grid, argument_of<Call>(grid, arguments));
  CONTEXTILE_ROW_KERNELS(CONTEXTILE_RUN)
#undef CONTEXTILE_RUN
  if (run_paged_on_host(grid, arguments)) return;
  fail_argument("expected a kernel of the module, found '{}'", grid.kernel);
}

std::size_t argument_bytes(std::string_view kernel) {
#define CONTEXTILE_SIZE(name, Call) \
  if (kernel == #name) return sizeof(Call);
  CONTEXTILE_ROW_KERNELS(CONTEXTILE_SIZE)
#undef CONTEXTILE_SIZE
  if (kernel.starts_with("wgmma_")) kernel.remove_prefix(std::string_view("wgmma_").size());
  const bool is_attention = kernel.starts_with("forward_") || kernel.starts_with("backward_");
  if (kernel.starts_with("paged_")) return sizeof(PagedLaunch);
  return is_attention ? sizeof(Launch) : 0;
}

}  // namespace contextile::cuda
