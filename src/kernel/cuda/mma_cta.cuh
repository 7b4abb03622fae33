// A block of threads on the device, from sm_80 on: mma.sync, ldmatrix and cp.async by inline PTX. A
// thread holds only its own part of everything, so loops over lanes and warps run once.
#pragma once

#include <cstdint>

#include "kernel/cuda/layout.h"
#include "kernel/cuda/paired_sums.h"
#include "kernel/cuda/tile_steps.h"

namespace contextile::cuda {

template <typename T>
struct OwnPart {
  T part;
  __device__ __forceinline__ T& operator[](int) { return part; }
  __device__ __forceinline__ const T& operator[](int) const { return part; }
};

class MmaCta {
 public:
  template <typename T>
  using PerLane = OwnPart<T>;
  template <typename T>
  using PerWarp = OwnPart<T>;

  template <typename Work>
  __device__ __forceinline__ void each_thread(const Work& work) {
    work(static_cast<int>(threadIdx.x));
  }
  template <typename Work>
  __device__ __forceinline__ void each_lane(const Work& work) {
    work(static_cast<int>(threadIdx.x) % kLanes);
  }
  template <typename Work>
  __device__ __forceinline__ void each_warp(const Work& work) {
    work(static_cast<int>(threadIdx.x) / kLanes);
  }

  __device__ __forceinline__ void sync() { __syncthreads(); }
  __device__ __forceinline__ void sync_warp() { __syncwarp(); }

  __device__ __forceinline__ void copy16(std::uint16_t* to, const std::uint16_t* from,
                                         bool present) {
    const int bytes = present ? 16 : 0;  // the rest is zeros
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes)
                 : "memory");
  }
  __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
  }

  template <bool kTransposed>
  __device__ __forceinline__ void load_matrices(const PerLane<const std::uint16_t*>& rows,
                                                PerLane<Registers>& out) {
    std::uint32_t(&x)[4] = out.part.x;
    const std::uint32_t row = shared_address(rows.part);
    if constexpr (kTransposed) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(row)
                   : "memory");
    } else {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                   : "r"(row)
                   : "memory");
    }
  }

  template <Number kNumber, int kTiles>
  __device__ __forceinline__ void multiply(PerLane<Sums<kTiles>>& sums, int tile,
                                           const PerLane<Registers>& left,
                                           const PerLane<Registers>& right, int pair) {
    float(&d)[4] = sums.part.x[tile];
    const std::uint32_t(&a)[4] = left.part.x;
    const std::uint32_t b0 = right.part.x[pair * 2];
    const std::uint32_t b1 = right.part.x[pair * 2 + 1];
    if constexpr (kNumber == Number::kBf16) {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
      asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
  }

  // Read 16 bytes of shared memory, write 16 bytes, and write a pair of 16 bits.
  static __device__ __forceinline__ Registers read16(const std::uint16_t* from) {
    const uint4 words = *reinterpret_cast<const uint4*>(from);
    return {{words.x, words.y, words.z, words.w}};
  }
  static __device__ __forceinline__ void write16(std::uint16_t* to, const Registers& words) {
    *reinterpret_cast<uint4*>(to) = make_uint4(words.x[0], words.x[1], words.x[2], words.x[3]);
  }
  static __device__ __forceinline__ void write_pair(std::uint16_t* to, std::uint32_t pair) {
    *reinterpret_cast<std::uint32_t*>(to) = pair;
  }

  // Packs two numbers. The instructions take the upper half first.
  template <Number kNumber>
  static __device__ __forceinline__ std::uint32_t pack(float low, float high) {
    std::uint32_t both;
    if constexpr (kNumber == Number::kBf16) {
      asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    } else {
      asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    }
    return both;
  }
  static __device__ __forceinline__ float exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  static __device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }
  static __device__ __forceinline__ float log2(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
  }

  // Leave the sum of all lanes in lane 0: the upper half of the lanes is added to the lower half
  // until one lane is left.
  __device__ __forceinline__ void halve_sums(PerLane<double>& sums) {
    for (int half = kLanes / 2; half > 0; half /= 2) {
      sums.part += __shfl_down_sync(kAllLanes, sums.part, half);
    }
  }
  __device__ __forceinline__ void halve_sums(PerLane<PairedSum>& sums) {
    for (int half = kLanes / 2; half > 0; half /= 2) {
      sums.part.add({__shfl_down_sync(kAllLanes, sums.part.high, half),
                     __shfl_down_sync(kAllLanes, sums.part.low, half),
                     __shfl_down_sync(kAllLanes, sums.part.size, half)});
    }
  }
  // Returns one lane's number to all.
  template <typename T>
  [[nodiscard]] __device__ __forceinline__ T broadcast(const PerLane<T>& number, int lane) {
    return __shfl_sync(kAllLanes, number.part, lane);
  }
  [[nodiscard]] __device__ __forceinline__ bool any_lane(const PerLane<bool>& value) {
    return __any_sync(kAllLanes, value.part) != 0;
  }
  __device__ __forceinline__ void quad_max(PerLane<float>& value) {
    value.part = fmaxf(value.part, __shfl_xor_sync(kAllLanes, value.part, 1));
    value.part = fmaxf(value.part, __shfl_xor_sync(kAllLanes, value.part, 2));
  }
  __device__ __forceinline__ void quad_sum(PerLane<float>& value) {
    value.part += __shfl_xor_sync(kAllLanes, value.part, 1);
    value.part += __shfl_xor_sync(kAllLanes, value.part, 2);
  }

 private:
  static constexpr unsigned kAllLanes = 0xffffffffU;

  static __device__ __forceinline__ std::uint32_t shared_address(const std::uint16_t* place) {
    return static_cast<std::uint32_t>(__cvta_generic_to_shared(place));
  }
};

}  // namespace contextile::cuda
