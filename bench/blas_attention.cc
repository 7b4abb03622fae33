// Compiled for this machine, -O3 -ffast-math: the loops between the BLAS calls are to be no
// handicap.
#include "blas_attention.h"

#ifdef CONTEXTILE_CBLAS

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

// OpenBLAS's own function; the environment sets the threads of other libraries.
extern "C" void openblas_set_num_threads(int) __attribute__((weak));

namespace contextile {
namespace {

constexpr std::int64_t kQueries = 256;
constexpr std::int64_t kKeys = 512;
constexpr float kLog2E = 1.44269504F;
constexpr float kEmpty = -1e30F;  // no infinities: -ffast-math

// 2^x for x <= 0, about 2e-7; in a form the compiler can vectorise.
inline float exp2_of(float x) {
  x = std::max(x, -126.0F);
  const float whole = std::rint(x);
  const float f = x - whole;
  float p = 1.326472731e-03F;
  p = p * f + 9.671512991e-03F;
  p = p * f + 5.550733581e-02F;
  p = p * f + 2.402224243e-01F;
  p = p * f + 6.931470037e-01F;
  p = p * f + 1.0F;
  const auto exponent = static_cast<std::int32_t>(whole);
  const std::int32_t bits = __builtin_bit_cast(std::int32_t, p) + (exponent << 23);
  return __builtin_bit_cast(float, bits);
}

void multiply(CBLAS_TRANSPOSE a_form, CBLAS_TRANSPOSE b_form, std::int64_t m, std::int64_t n,
              std::int64_t k, float alpha, const float* a, std::int64_t lda, const float* b,
              std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
  cblas_sgemm(CblasRowMajor, a_form, b_form, static_cast<int>(m), static_cast<int>(n),
              static_cast<int>(k), alpha, a, static_cast<int>(lda), b, static_cast<int>(ldb), beta,
              c, static_cast<int>(ldc));
}

float scale_row(float* row, std::int64_t count, float factor) {
  float largest = kEmpty;
  for (std::int64_t j = 0; j < count; ++j) {
    row[j] *= factor;
    largest = std::max(largest, row[j]);
  }
  return largest;
}

float weigh_row(float* row, std::int64_t count, float top) {
  float sum = 0;
  for (std::int64_t j = 0; j < count; ++j) {
    row[j] = exp2_of(row[j] - top);
    sum += row[j];
  }
  return sum;
}

void slope_row(float* slopes, const float* weights, std::int64_t count, float delta) {
  for (std::int64_t j = 0; j < count; ++j) slopes[j] = weights[j] * (slopes[j] - delta);
}

void rescale_row(float* row, std::int64_t count, float factor) {
  for (std::int64_t j = 0; j < count; ++j) row[j] *= factor;
}

// Keys of a block that row `q` attends.
std::int64_t attended(bool is_causal, std::int64_t q, std::int64_t first, std::int64_t count) {
  return is_causal ? std::clamp<std::int64_t>(q - first + 1, 0, count) : count;
}

}  // namespace

bool has_blas() {
  if (openblas_set_num_threads != nullptr) openblas_set_num_threads(1);
  return true;
}

void blas_forward(const BlasHead& h, bool is_causal) {
  std::vector<float> scores(kQueries * kKeys);
  for (std::int64_t i = 0; i < h.tokens; i += kQueries) {
    std::vector<float> top(kQueries, kEmpty);
    std::vector<float> sum(kQueries, 0.0F);
    float* out = h.o + i * h.dim;
    std::fill(out, out + kQueries * h.dim, 0.0F);
    const std::int64_t num_keys = is_causal ? i + kQueries : h.tokens;
    for (std::int64_t j = 0; j < num_keys; j += kKeys) {
      const std::int64_t count = std::min(kKeys, num_keys - j);
      multiply(CblasNoTrans, CblasTrans, kQueries, count, h.dim, 1, h.q + i * h.dim, h.dim,
               h.k + j * h.dim, h.dim, 0, scores.data(), kKeys);
      for (std::int64_t r = 0; r < kQueries; ++r) {
        float* row = scores.data() + r * kKeys;
        const std::int64_t some = attended(is_causal, i + r, j, count);
        std::fill(row + some, row + count, 0.0F);
        if (some == 0) continue;
        const auto at = static_cast<std::size_t>(r);
        const float new_top = std::max(top[at], scale_row(row, some, h.scale * kLog2E));
        const float keep = std::exp2(top[at] - new_top);
        sum[at] = sum[at] * keep + weigh_row(row, some, new_top);
        top[at] = new_top;
        rescale_row(out + r * h.dim, h.dim, keep);
      }
      multiply(CblasNoTrans, CblasNoTrans, kQueries, h.dim, count, 1, scores.data(), kKeys,
               h.v + j * h.dim, h.dim, 1, out, h.dim);
    }
    for (std::int64_t r = 0; r < kQueries; ++r) {
      const auto at = static_cast<std::size_t>(r);
      rescale_row(out + r * h.dim, h.dim, 1 / sum[at]);
      h.lse[i + r] = top[at] / kLog2E + std::log(sum[at]);
    }
  }
}

void blas_backward(const BlasHead& h, bool is_causal) {
  std::vector<float> weights(kQueries * kKeys);
  std::vector<float> slopes(kQueries * kKeys);
  for (std::int64_t i = 0; i < h.tokens; i += kQueries) {
    std::vector<float> delta(kQueries);
    for (std::int64_t r = 0; r < kQueries; ++r) {
      for (std::int32_t d = 0; d < h.dim; ++d) {
        const std::int64_t at = (i + r) * h.dim + d;
        delta[static_cast<std::size_t>(r)] += h.dout[at] * h.o[at];
      }
    }
    const std::int64_t num_keys = is_causal ? i + kQueries : h.tokens;
    for (std::int64_t j = 0; j < num_keys; j += kKeys) {
      const std::int64_t count = std::min(kKeys, num_keys - j);
      const float* q = h.q + i * h.dim;
      const float* dout = h.dout + i * h.dim;
      multiply(CblasNoTrans, CblasTrans, kQueries, count, h.dim, h.scale * kLog2E, q, h.dim,
               h.k + j * h.dim, h.dim, 0, weights.data(), kKeys);
      for (std::int64_t r = 0; r < kQueries; ++r) {
        float* row = weights.data() + r * kKeys;
        const std::int64_t some = attended(is_causal, i + r, j, count);
        static_cast<void>(weigh_row(row, some, h.lse[i + r] * kLog2E));
        std::fill(row + some, row + count, 0.0F);
      }
      multiply(CblasTrans, CblasNoTrans, count, h.dim, kQueries, 1, weights.data(), kKeys, dout,
               h.dim, 1, h.dv + j * h.dim, h.dim);
      multiply(CblasNoTrans, CblasTrans, kQueries, count, h.dim, 1, dout, h.dim, h.v + j * h.dim,
               h.dim, 0, slopes.data(), kKeys);
      for (std::int64_t r = 0; r < kQueries; ++r) {
        slope_row(slopes.data() + r * kKeys, weights.data() + r * kKeys, count,
                  delta[static_cast<std::size_t>(r)]);
      }
      multiply(CblasNoTrans, CblasNoTrans, kQueries, h.dim, count, h.scale, slopes.data(), kKeys,
               h.k + j * h.dim, h.dim, j == 0 ? 0 : 1, h.dq + i * h.dim, h.dim);
      multiply(CblasTrans, CblasNoTrans, count, h.dim, kQueries, h.scale, slopes.data(), kKeys, q,
               h.dim, 1, h.dk + j * h.dim, h.dim);
    }
  }
}

}  // namespace contextile

#else

namespace contextile {

bool has_blas() { return false; }
void blas_forward(const BlasHead& /*head*/, bool /*is_causal*/) {}
void blas_backward(const BlasHead& /*head*/, bool /*is_causal*/) {}

}  // namespace contextile

#endif
