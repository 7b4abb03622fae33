// A warpgroup on the device, sm_90a: TMA, mbarriers and wgmma by inline PTX. A thread holds only
// its own part of everything, so loops over lanes and warps run once.
#pragma once

#include <cstdint>

#include "kernel/cuda/mma_cta.cuh"
#include "kernel/cuda/wgmma_layout.h"
#include "kernel/cuda/wgmma_steps.h"

namespace contextile::cuda {

// The registers of the sums, in the order of the instruction: 32 of m64n64, 64 of m64n128.
#define CONTEXTILE_SUMS_8                                                             \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}"
#define CONTEXTILE_SUMS_16                                                            \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
  "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, "  \
  "%34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "  \
  "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define CONTEXTILE_TILE(t) "+f"(d[t][0]), "+f"(d[t][1]), "+f"(d[t][2]), "+f"(d[t][3])
#define CONTEXTILE_TILES_8                                                        \
  CONTEXTILE_TILE(0), CONTEXTILE_TILE(1), CONTEXTILE_TILE(2), CONTEXTILE_TILE(3), \
      CONTEXTILE_TILE(4), CONTEXTILE_TILE(5), CONTEXTILE_TILE(6), CONTEXTILE_TILE(7)
#define CONTEXTILE_TILES_16                                                               \
  CONTEXTILE_TILES_8, CONTEXTILE_TILE(8), CONTEXTILE_TILE(9), CONTEXTILE_TILE(10),        \
      CONTEXTILE_TILE(11), CONTEXTILE_TILE(12), CONTEXTILE_TILE(13), CONTEXTILE_TILE(14), \
      CONTEXTILE_TILE(15)

// Both factors are in shared memory, neither is transposed. Operand `at` is the first after the
// sums.
#define CONTEXTILE_MULTIPLY_ROWS(shape, type, sums, tiles, at0, at1, at2)                     \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" at2                                       \
               ", 0;\n"                                                                       \
               "wgmma.mma_async.sync.aligned." shape ".f32." type "." type " " sums ", %" at0 \
               ", %" at1 ", p, 1, 1, 0, 0;\n}"                                                \
               : tiles                                                                        \
               : "l"(left), "l"(right), "r"(static_cast<int>(adds))                           \
               : "memory")
// The left factor is in registers; the right one has its rows along the depth.
#define CONTEXTILE_MULTIPLY_WEIGHTS(shape, type, sums, tiles, at0, at1, at2, at3, at4)         \
  asm volatile("wgmma.mma_async.sync.aligned." shape ".f32." type "." type " " sums ", {%" at0 \
               ", %" at1 ", %" at2 ", %" at3 "}, %" at4 ", 1, 1, 1, 1;"                        \
               : tiles                                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right)                        \
               : "memory")

class WgmmaGroup : public MmaCta {
 public:
  [[nodiscard]] __device__ __forceinline__ int index() const { return index_; }
  template <typename Work>
  __device__ __forceinline__ void each_thread(const Work& work) {
    work(static_cast<int>(threadIdx.x) % kGroupThreads);
  }
  template <typename Work>
  __device__ __forceinline__ void each_warp(const Work& work) {
    work(static_cast<int>(threadIdx.x) % kGroupThreads / kLanes);
  }
  template <typename Work>
  __device__ __forceinline__ void one_lane(const Work& work) {
    if (threadIdx.x % kLanes == 0) work();
    __syncwarp();
  }

  [[nodiscard]] __device__ __forceinline__ int producer_warp() const {
    return __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / kLanes, 0);
  }

  __device__ __forceinline__ void sync_cta() { __syncthreads(); }
  // Makes the writes of this thread visible to products and copies of boxes.
  __device__ __forceinline__ void publish_writes() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }
  // Waits until the data that copy16 of this group copies has arrived, for products as well.
  __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    publish_writes();
    asm volatile("bar.sync %0, %1;" ::"r"(index()), "n"(kGroupThreads) : "memory");
  }
  // Each consumer has a barrier for its turns, numbered after those of wait_for_copies. The
  // consumer and the other one meet there.
  __device__ __forceinline__ void await_turn() {
    asm volatile("bar.sync %0, %1;" ::"r"(kConsumers + index()), "n"(kConsumers * kGroupThreads)
                 : "memory");
  }
  __device__ __forceinline__ void pass_turn() {
    const int other = 1 + kConsumers - index();
    asm volatile("bar.arrive %0, %1;" ::"r"(kConsumers + other), "n"(kConsumers * kGroupThreads)
                 : "memory");
  }
  template <int kRegisters>
  __device__ __forceinline__ void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }
  template <int kRegisters>
  __device__ __forceinline__ void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
  }

  __device__ __forceinline__ void open(Barrier& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(&barrier)), "r"(arrivals)
                 : "memory");
  }
  __device__ __forceinline__ void publish_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    publish_writes();
  }
  __device__ __forceinline__ void wait(Barrier& barrier, std::uint32_t parity) {
    std::uint32_t over = 0;
    while (over == 0) {
      asm volatile(
          "{\n.reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n}"
          : "=r"(over)
          : "r"(address(&barrier)), "r"(parity)
          : "memory");
    }
  }
  __device__ __forceinline__ void arrive(Barrier& barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(&barrier)) : "memory");
  }
  __device__ __forceinline__ void arrive_warps(Barrier& barrier) {
    __syncwarp();
    if (threadIdx.x % kLanes == 0) arrive(barrier);
  }
  __device__ __forceinline__ void expect(Barrier& barrier, std::uint32_t bytes) {
    asm volatile(
        "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(address(&barrier)),
        "r"(bytes)
        : "memory");
  }

  // Prepares reading maps. The host writes them before the launch, where other maps may have been.
  __device__ __forceinline__ void read_maps(const BoxMap& first, const BoxMap& second) {
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(&first) : "memory");
    asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(&second) : "memory");
  }
  __device__ __forceinline__ void copy_box(std::uint16_t* to, const BoxMap& map, int col, int head,
                                           std::int32_t token, Barrier& full) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(address(to)),
        "l"(&map), "r"(col), "r"(head), "r"(token), "r"(address(&full))
        : "memory");
  }

  template <typename T>
  [[nodiscard]] static __device__ __forceinline__ std::uint32_t address(const T* place) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(place));
  }

  __device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  }
  __device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  }
  template <int kOpen>
  __device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kOpen) : "memory");
  }
  // These keep the computation of weights in front of the next wait for products. ptxas moves
  // wait_group up across arithmetic, which would then run after the products instead of next to
  // them, but not across a store. The store needs the rows' sums or the last weights, which are
  // never negative, and is never done.
  template <typename Rows>
  __device__ __forceinline__ void settle(const Rows& rows, const void* place) {
    store_if_negative(__float_as_uint(rows.part.part.sum[0] + rows.part.part.sum[1]), place);
  }
  // A branch keeps the other weights in front. It waits for a phase that is over.
  template <int kTiles>
  __device__ __forceinline__ void settle_weights(PerWarp<PerLane<Sums<kTiles>>>& weights,
                                                 Barrier& over, std::uint32_t parity,
                                                 const void* place) {
    std::uint32_t bits = 0;
    CONTEXTILE_UNROLL
    for (int tile = kTiles - 4; tile < kTiles; ++tile) {
      const float(&x)[4] = weights.part.part.x[tile];
      bits |= __float_as_uint(x[2]) | __float_as_uint(x[3]);
    }
    pin(weights);
    store_if_negative(bits, place);
    wait(over, parity);
  }
  template <int kTiles>
  __device__ __forceinline__ void pin(PerWarp<PerLane<Sums<kTiles>>>& sums) {
    CONTEXTILE_UNROLL
    for (auto& tile : sums.part.part.x) {
      CONTEXTILE_UNROLL
      for (float& x : tile) asm volatile("" : "+f"(x)::"memory");
    }
  }
  template <int kTiles, int kBegin = 0, int kEnd = kTiles>
  __device__ __forceinline__ void pin(PerWarp<PerLane<Weights<kTiles>>>& weights) {
    CONTEXTILE_UNROLL
    for (int step = kBegin / 2; step < kEnd / 2; ++step) {
      CONTEXTILE_UNROLL
      for (std::uint32_t& x : weights.part.part.x[step]) asm volatile("" : "+r"(x)::"memory");
    }
  }

  template <Number kNumber, int kTiles>
  __device__ __forceinline__ void multiply_rows(PerWarp<PerLane<Sums<kTiles>>>& sums,
                                                std::uint64_t left, std::uint64_t right,
                                                bool adds) {
    auto& d = sums.part.part.x;
    static_assert(kTiles == 8 || kTiles == 16);
    constexpr bool kIsBf16 = kNumber == Number::kBf16;
    if constexpr (kTiles == 8 && kIsBf16) {
      CONTEXTILE_MULTIPLY_ROWS("m64n64k16", "bf16", CONTEXTILE_SUMS_8, CONTEXTILE_TILES_8, "32",
                               "33", "34");
    } else if constexpr (kTiles == 8) {
      CONTEXTILE_MULTIPLY_ROWS("m64n64k16", "f16", CONTEXTILE_SUMS_8, CONTEXTILE_TILES_8, "32",
                               "33", "34");
    } else if constexpr (kIsBf16) {
      CONTEXTILE_MULTIPLY_ROWS("m64n128k16", "bf16", CONTEXTILE_SUMS_16, CONTEXTILE_TILES_16, "64",
                               "65", "66");
    } else {
      CONTEXTILE_MULTIPLY_ROWS("m64n128k16", "f16", CONTEXTILE_SUMS_16, CONTEXTILE_TILES_16, "64",
                               "65", "66");
    }
  }
  template <Number kNumber, int kTiles, int kDepthTiles>
  __device__ __forceinline__ void multiply_weights(
      PerWarp<PerLane<Sums<kTiles>>>& sums, const PerWarp<PerLane<Weights<kDepthTiles>>>& weights,
      int step, std::uint64_t right) {
    auto& d = sums.part.part.x;
    const std::uint32_t(&a)[4] = weights.part.part.x[step];
    static_assert(kTiles == 8 || kTiles == 16);
    constexpr bool kIsBf16 = kNumber == Number::kBf16;
    if constexpr (kTiles == 8 && kIsBf16) {
      CONTEXTILE_MULTIPLY_WEIGHTS("m64n64k16", "bf16", CONTEXTILE_SUMS_8, CONTEXTILE_TILES_8, "32",
                                  "33", "34", "35", "36");
    } else if constexpr (kTiles == 8) {
      CONTEXTILE_MULTIPLY_WEIGHTS("m64n64k16", "f16", CONTEXTILE_SUMS_8, CONTEXTILE_TILES_8, "32",
                                  "33", "34", "35", "36");
    } else if constexpr (kIsBf16) {
      CONTEXTILE_MULTIPLY_WEIGHTS("m64n128k16", "bf16", CONTEXTILE_SUMS_16, CONTEXTILE_TILES_16,
                                  "64", "65", "66", "67", "68");
    } else {
      CONTEXTILE_MULTIPLY_WEIGHTS("m64n128k16", "f16", CONTEXTILE_SUMS_16, CONTEXTILE_TILES_16,
                                  "64", "65", "66", "67", "68");
    }
  }

 private:
  static __device__ __forceinline__ void store_if_negative(std::uint32_t bits, const void* place) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.lt.s32 p, %0, 0;\n@p st.shared.u32 [%1], %0;\n}" ::"r"(bits),
        "r"(address(static_cast<const char*>(place)))
        : "memory");
  }

  // The index is the same in all lanes, which the compiler cannot know.
  const int index_ = __shfl_sync(0xffffffffU, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
};

#undef CONTEXTILE_SUMS_8
#undef CONTEXTILE_SUMS_16
#undef CONTEXTILE_TILE
#undef CONTEXTILE_TILES_8
#undef CONTEXTILE_TILES_16
#undef CONTEXTILE_MULTIPLY_ROWS
#undef CONTEXTILE_MULTIPLY_WEIGHTS

}  // namespace contextile::cuda
