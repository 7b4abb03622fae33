// The instruction sets of this CPU, and those that kernels use.
#pragma once

namespace contextile {

// All are false on another family of processors.
struct CpuFeatures {
  bool avx2 = false;    // and FMA
  bool avx512 = false;  // F, BW, DQ, VL
  bool avx512_bf16 = false;
  // Tiles of bf16 together with AVX-512 BF16.
  bool amx_bf16 = false;
  // Products of bf16 pairs are faster than as many fp32 products. That is so if AVX-512 BF16 runs
  // at twice the rate of fp32. Other processors run these instructions at half that rate, and
  // widening is faster.
  bool fast_bf16 = false;
};

// Returns what this CPU and its system have. Requests of the system that threads may use tiles, if
// the CPU has some; amx_bf16 is false if the system refuses.
[[nodiscard]] CpuFeatures found_cpu_features();

// Returns what kernels use: all that is found. It is the only function of its file, so that a test
// that runs as on another CPU can link its own in place of it (tests/support/cpu_features.cc).
[[nodiscard]] const CpuFeatures& cpu_features();

}  // namespace contextile
