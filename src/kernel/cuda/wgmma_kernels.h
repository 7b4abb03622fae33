// The kernels of the compiled module wgmma.
#pragma once

// Visits every kernel: X(name of the number, Number, head dim). Smaller head dims run in the next
// larger one.
#define CONTEXTILE_WGMMA_KERNELS(X) \
  X(bf16, Number::kBf16, 64)        \
  X(bf16, Number::kBf16, 128)       \
  X(f16, Number::kF16, 64)          \
  X(f16, Number::kF16, 128)
