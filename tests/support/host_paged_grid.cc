#include "support/host_paged_grid.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "base/parallel_for.h"
#include "kernel/cuda/paged_attend.h"
#include "kernel/cuda/paged_entry_points.h"
#include "kernel/cuda/paged_merge.h"
#include "support/host_cta.h"

namespace contextile::cuda {
namespace {

// Calls run(work, KV head, shared memory) for every block of threads.
template <std::size_t kSharedBytes, typename Run>
void run_blocks(const Grid& grid, const PagedLaunch& launch, const Run& run) {
  CONTEXTILE_CHECK(
      grid.shared_bytes == static_cast<std::int32_t>(kSharedBytes) && grid.threads == kThreads,
      "{}: expected {} bytes of shared memory, found {}", grid.kernel, kSharedBytes,
      grid.shared_bytes);
  const auto width = static_cast<std::size_t>(grid.blocks_x);
  parallel_for(std::size_t{0}, width * static_cast<std::size_t>(grid.blocks_y), [&](std::size_t i) {
    alignas(16) static thread_local std::uint16_t shared[kSharedBytes / sizeof(std::uint16_t)];
    std::fill(std::begin(shared), std::end(shared), std::uint16_t{0xffff});
    run(launch.works[i % width], static_cast<int>(i / width), shared);
  });
}

template <Number kNumber, bool kBytes, int kDim, int kValueDim>
void run_works(const Grid& grid, const PagedLaunch& launch) {
  run_blocks<PagedShape<kBytes, kDim, kValueDim>::kShared>(
      grid, launch, [&](const PagedWork& work, int kv_head, std::uint16_t* shared) {
        HostCta cta(work.first_piece + kv_head);
        paged_cta<kNumber, kBytes, kDim, kValueDim>(cta, launch, work, kv_head, shared);
      });
}

}  // namespace

bool run_paged_on_host(const Grid& grid, std::span<const std::byte> arguments) {
  if (!grid.kernel.starts_with("paged_")) return false;
  PagedLaunch launch;
  CONTEXTILE_CHECK(arguments.size() == sizeof(launch),
                   "{}: expected an argument of {} bytes, found {}", grid.kernel, sizeof(launch),
                   arguments.size());
  std::memcpy(&launch, arguments.data(), sizeof(launch));
#define CONTEXTILE_RUN(cache, bytes, text, number, name, dim, value) \
  if (grid.kernel == "paged_" #cache "_" #text "_" #name) {          \
    run_works<number, bytes, dim, value>(grid, launch);              \
    return true;                                                     \
  }
  CONTEXTILE_PAGED_KERNELS(CONTEXTILE_RUN)
#undef CONTEXTILE_RUN
  if (grid.kernel != "paged_merge") return false;
  for (std::int32_t x = 0; x < grid.blocks_x; ++x) {
    for (std::int32_t y = 0; y < grid.blocks_y; ++y) {
      HostCta cta(y);
      paged_merge_cta(cta, launch, launch.merges[x], y);
    }
  }
  return true;
}

}  // namespace contextile::cuda
