// Which instruction sets this CPU has; false on another family of processors.
#pragma once

namespace contextile {

[[nodiscard]] bool cpu_has_avx512();  // F, BW, DQ, VL
[[nodiscard]] bool cpu_has_avx2();    // and FMA
[[nodiscard]] bool cpu_has_avx512_bf16();
// Tiles of bf16 beside AVX-512 BF16. Asks the system, once a process, to let its threads use them;
// false where it does not.
[[nodiscard]] bool cpu_has_amx_bf16();
// Products of bf16 pairs that are faster than as many fp32 ones: where AVX-512 BF16 runs at twice
// the rate of fp32. Others have the instructions at half of it, and it is faster to widen.
[[nodiscard]] bool cpu_has_fast_bf16();

}  // namespace contextile
