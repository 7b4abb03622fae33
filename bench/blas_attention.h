// Flash attention as CPU frameworks compose it from BLAS calls: query blocks of 256 rows against
// key blocks of 512, one head at a time, one sgemm per product, the softmax between them in plain
// vectorisable loops. The kernels are measured against it.
#pragma once

#include <cstdint>

namespace contextile {

// One head's fp32 rows, [tokens][dim] without gaps.
struct BlasHead {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  float* o = nullptr;
  float* lse = nullptr;         // [tokens], natural log
  const float* dout = nullptr;  // backward only, like the rest
  float* dq = nullptr;          // overwritten
  float* dk = nullptr;          // added to
  float* dv = nullptr;          // added to
  std::int64_t tokens = 0;      // a multiple of 512
  std::int32_t dim = 0;
  float scale = 1;
};

[[nodiscard]] bool has_blas();
// One thread. Causal, or every key.
void blas_forward(const BlasHead& head, bool is_causal);
void blas_backward(const BlasHead& head, bool is_causal);

}  // namespace contextile
