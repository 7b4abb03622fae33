// The instruction sets of this CPU. All functions return false on another family of processors.
#pragma once

namespace contextile {

[[nodiscard]] bool cpu_has_avx512();  // F, BW, DQ, VL
[[nodiscard]] bool cpu_has_avx2();    // and FMA
[[nodiscard]] bool cpu_has_avx512_bf16();
// Returns true for tiles of bf16 together with AVX-512 BF16. Once per process, it requests of the
// system that threads may use them; false if the system refuses.
[[nodiscard]] bool cpu_has_amx_bf16();
// Returns true if products of bf16 pairs are faster than as many fp32 products. That is so if
// AVX-512 BF16 runs at twice the rate of fp32. Other processors run these instructions at half that
// rate, and widening is faster.
[[nodiscard]] bool cpu_has_fast_bf16();

}  // namespace contextile
