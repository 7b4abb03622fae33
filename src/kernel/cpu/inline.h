// Macros and constants that the vector classes share.
#pragma once

// Everything that a kernel's inner loops call is inlined into a function of a template over the
// vector class. So the linker cannot pick code of one instruction set for another.
#if defined(__CUDACC__)
#define CONTEXTILE_INLINE __host__ __device__ __forceinline__
#else
#define CONTEXTILE_INLINE [[gnu::always_inline]] inline
#endif
#define CONTEXTILE_INLINE_LAMBDA __attribute__((always_inline))

namespace contextile {

// Coefficients of 2^f on [-1/2, 1/2] as 1 + f·(c0 + f·(c1 + …)); relative error 1.6e-7 in fp32.
inline constexpr float kExp2Of[5] = {6.931470037e-01F, 2.402224243e-01F, 5.550733581e-02F,
                                     9.671512991e-03F, 1.326472731e-03F};

}  // namespace contextile
