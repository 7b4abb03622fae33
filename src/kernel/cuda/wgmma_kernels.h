// The kernels of the compiled module wgmma.
#pragma once

// Visits every kernel of forward, or of backward: X(name of the number, Number, name of the dims,
// head dim, value dim). Smaller dims run in the next larger ones. Registers do not hold the
// gradients of head dim 192.
#define CONTEXTILE_WGMMA_GRADIENT_KERNELS(X) \
  X(bf16, Number::kBf16, 64, 64, 64)         \
  X(bf16, Number::kBf16, 128, 128, 128)      \
  X(f16, Number::kF16, 64, 64, 64)           \
  X(f16, Number::kF16, 128, 128, 128)
#define CONTEXTILE_WGMMA_FORWARD_KERNELS(X) \
  CONTEXTILE_WGMMA_GRADIENT_KERNELS(X)      \
  X(bf16, Number::kBf16, 192_128, 192, 128) \
  X(f16, Number::kF16, 192_128, 192, 128)
