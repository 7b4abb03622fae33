#include "kernel_peaks.h"

#include <ctime>

#include "kernel/cpu/cpu_features.h"

namespace contextile {
namespace {

constexpr std::int64_t kRepeats = 6000;
constexpr double kOperations = 24;  // in one repeat

double seconds_of(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

#if defined(__x86_64__)
// clang-format off
#define CONTEXTILE_EIGHT(op, a, b, c0, c1, c2, c3, c4, c5, c6, c7)          \
  op " " a "," b "," c0 "\n" op " " a "," b "," c1 "\n" op " " a "," b "," c2 "\n" \
  op " " a "," b "," c3 "\n" op " " a "," b "," c4 "\n" op " " a "," b "," c5 "\n" \
  op " " a "," b "," c6 "\n" op " " a "," b "," c7 "\n"
#define CONTEXTILE_ZMM(op)                                                                        \
  CONTEXTILE_EIGHT(op, "%%zmm24", "%%zmm25", "%%zmm0", "%%zmm1", "%%zmm2", "%%zmm3", "%%zmm4",    \
                   "%%zmm5", "%%zmm6", "%%zmm7")                                                  \
  CONTEXTILE_EIGHT(op, "%%zmm24", "%%zmm25", "%%zmm8", "%%zmm9", "%%zmm10", "%%zmm11", "%%zmm12", \
                   "%%zmm13", "%%zmm14", "%%zmm15")                                               \
  CONTEXTILE_EIGHT(op, "%%zmm24", "%%zmm25", "%%zmm16", "%%zmm17", "%%zmm18", "%%zmm19",          \
                   "%%zmm20", "%%zmm21", "%%zmm22", "%%zmm23")
#define CONTEXTILE_ZMM_USED                                                                    \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",     \
  "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20",    \
  "xmm21", "xmm22", "xmm23", "xmm24", "xmm25"
// clang-format on

[[gnu::target("avx512f"), gnu::noinline]] void run_fma512() {
  asm volatile("vpxord %%zmm24,%%zmm24,%%zmm24\n vpxord %%zmm25,%%zmm25,%%zmm25" ::
                   : "xmm24", "xmm25");
  for (std::int64_t i = 0; i < kRepeats; ++i) {
    asm volatile(CONTEXTILE_ZMM("vfmadd231ps")::: CONTEXTILE_ZMM_USED);
  }
}

[[gnu::target("avx512f,avx512bf16"), gnu::noinline]] void run_dot_bf16() {
  asm volatile("vpxord %%zmm24,%%zmm24,%%zmm24\n vpxord %%zmm25,%%zmm25,%%zmm25" ::
                   : "xmm24", "xmm25");
  for (std::int64_t i = 0; i < kRepeats; ++i) {
    asm volatile(CONTEXTILE_ZMM("vdpbf16ps")::: CONTEXTILE_ZMM_USED);
  }
}

// Four sums in turn, from tiles of zeros. The caller may use tiles: cpu_features().amx_bf16.
[[gnu::noinline]] void run_tile_bf16() {
  alignas(64) std::uint8_t config[64] = {1};
  for (int tile = 0; tile < 8; ++tile) {
    config[16 + 2 * tile] = 64;
    config[48 + tile] = 16;
  }
  asm volatile("ldtilecfg %0" ::"m"(config));
  for (std::int64_t i = 0; i < kRepeats / 4; ++i) {
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n tdpbf16ps %tmm6, %tmm5, %tmm1\n"
        "tdpbf16ps %tmm7, %tmm4, %tmm2\n tdpbf16ps %tmm7, %tmm5, %tmm3\n");
  }
  asm volatile("tilerelease");
}

[[gnu::target("avx2,fma"), gnu::noinline]] void run_fma256() {
  asm volatile("vxorps %%ymm12,%%ymm12,%%ymm12\n vxorps %%ymm13,%%ymm13,%%ymm13" ::
                   : "xmm12", "xmm13");
  for (std::int64_t i = 0; i < kRepeats * 2; ++i) {  // twelve at a time
    asm volatile(
        CONTEXTILE_EIGHT("vfmadd231ps", "%%ymm12", "%%ymm13", "%%ymm0", "%%ymm1", "%%ymm2",
                         "%%ymm3", "%%ymm4", "%%ymm5", "%%ymm6",
                         "%%ymm7") "vfmadd231ps %%ymm12,%%ymm13,%%ymm8\n"
                                   "vfmadd231ps %%ymm12,%%ymm13,%%ymm9\n"
                                   "vfmadd231ps %%ymm12,%%ymm13,%%ymm10\n"
                                   "vfmadd231ps %%ymm12,%%ymm13,%%ymm11\n" ::
            : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",
              "xmm10", "xmm11");
  }
}
#endif

}  // namespace

double thread_cpu_s() { return seconds_of(CLOCK_THREAD_CPUTIME_ID); }
double process_cpu_s() { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }

bool has_peak(Peak peak) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  switch (peak) {
    case Peak::kFma512:
      return __builtin_cpu_supports("avx512f") != 0;
    case Peak::kFma256:
      return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
    case Peak::kDotBf16:
      return __builtin_cpu_supports("avx512bf16") != 0;
    case Peak::kTileBf16:
      return cpu_features().amx_bf16;
  }
#endif
  static_cast<void>(peak);
  return false;
}

double measure_peak(Peak peak) {
  const double start = thread_cpu_s();
  double flops = 0;
#if defined(__x86_64__)
  switch (peak) {
    case Peak::kFma512:
      run_fma512();
      flops = kRepeats * kOperations * 32;
      break;
    case Peak::kFma256:
      run_fma256();
      flops = kRepeats * kOperations * 16;
      break;
    case Peak::kDotBf16:
      run_dot_bf16();
      flops = kRepeats * kOperations * 64;
      break;
    case Peak::kTileBf16:
      run_tile_bf16();
      flops = kRepeats * 16 * 16 * 64;
      break;
  }
#else
  static_cast<void>(peak);
#endif
  return flops / (thread_cpu_s() - start);
}

}  // namespace contextile
