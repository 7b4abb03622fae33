// Compiled for this machine with all optimizations of the compiler.
#include "kernel_streams.h"

namespace contextile {

void stream_copy(float* to, const float* from, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) to[i] = from[i];
}

void stream_add(float* to, const float* a, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) to[i] += a[i];
}

void stream_add_two(float* to, const float* a, const float* b, std::int64_t n) {
#pragma GCC ivdep
  for (std::int64_t i = 0; i < n; ++i) to[i] += a[i] + b[i];
}

float stream_dot(const float* a, const float* b, std::int64_t n) {
  constexpr int kSums = 64;
  float sums[kSums] = {};
  for (std::int64_t i = 0; i + kSums <= n; i += kSums) {
#pragma GCC unroll 64
    for (int j = 0; j < kSums; ++j) sums[j] += a[i + j] * b[i + j];
  }
  float sum = 0;
  for (const float part : sums) sum += part;
  return sum;
}

void stream_halve(float* to, const float* from, std::int64_t n) {
  constexpr int kBlock = 16;
  for (std::int64_t i = 0; i + kBlock <= n / 2; i += kBlock) {
#pragma GCC ivdep
    for (int j = 0; j < kBlock; ++j) to[i + j] = from[2 * i + j] + from[2 * i + kBlock + j];
  }
}

void stream_double(float* to, const float* from, std::int64_t n) {
  constexpr int kBlock = 16;
  for (std::int64_t i = 0; i + kBlock <= n / 2; i += kBlock) {
#pragma GCC ivdep
    for (int j = 0; j < kBlock; ++j) {
      const float value = from[i + j];
      to[2 * i + j] = value;
      to[2 * i + kBlock + j] = -value;
    }
  }
}

}  // namespace contextile
