// The fastest plain loops over memory, to compare operations with the same reads and writes.
#pragma once

#include <cstdint>

namespace contextile {

// All arrays hold n floats unless a comment says so; n is a multiple of 16.
void stream_copy(float* to, const float* from, std::int64_t n);
void stream_add(float* to, const float* a, std::int64_t n);  // to += a
void stream_add_two(float* to, const float* a, const float* b, std::int64_t n);
[[nodiscard]] float stream_dot(const float* a, const float* b, std::int64_t n);
void stream_halve(float* to, const float* from, std::int64_t n);   // to holds n / 2
void stream_double(float* to, const float* from, std::int64_t n);  // from holds n / 2

}  // namespace contextile
