#include "kernel/cpu/cpu_features.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace contextile {
namespace {

#if defined(__x86_64__) && defined(__linux__)
// Returns true if the processor has tiles of bf16 and the system saves them with a thread's
// registers.
bool cpu_has_tiles() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_OSXSAVE) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kBf16AndTile = 1U << 22 | 1U << 24;
  if ((d & kBf16AndTile) != kBf16AndTile) return false;
  unsigned saved = 0;
  unsigned high = 0;
  asm volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  constexpr unsigned kTileState = 3U << 17;
  return (saved & kTileState) == kTileState;
}

// Requests tiles: Linux gives their large state only to processes that request it.
bool may_use_tiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

}  // namespace

CpuFeatures found_cpu_features() {
  CpuFeatures found;
#if defined(__x86_64__)
  __builtin_cpu_init();
  found.avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  found.avx512 = __builtin_cpu_supports("avx512f") != 0 &&
                 __builtin_cpu_supports("avx512bw") != 0 &&
                 __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0;
  found.avx512_bf16 = found.avx512 && __builtin_cpu_supports("avx512bf16") != 0;
  found.fast_bf16 = __builtin_cpu_is("amd") != 0;
#if defined(__linux__)
  found.amx_bf16 = found.avx512_bf16 && cpu_has_tiles() && may_use_tiles();
#endif
#endif
  return found;
}

}  // namespace contextile
