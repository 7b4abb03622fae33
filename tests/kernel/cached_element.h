// Reads and writes elements of caches of every dtype, one at a time.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/half.h"
#include "contextile/extend/paged_attention.h"

namespace contextile {

// Writes an element, rounded to a number that the dtype has: whole numbers for int8.
inline void put_element(KvDtype dtype, std::uint8_t* bytes, std::int64_t i, float value) {
  const auto put = [&](auto bits) {
    std::memcpy(bytes + i * static_cast<std::int64_t>(sizeof(bits)), &bits, sizeof(bits));
  };
  switch (dtype) {
    case KvDtype::kF32:
      return put(value);
    case KvDtype::kBf16:
      return put(float_to_bf16(value));
    case KvDtype::kF16:
      return put(float_to_f16(value));
    case KvDtype::kFp8:
      return put(float_to_fp8(value));
    case KvDtype::kInt8:
      return put(static_cast<std::int8_t>(std::lround(value)));
  }
}

inline double element(KvDtype dtype, const std::uint8_t* bytes, std::int64_t i) {
  const auto bits = [&](auto kind) {
    std::memcpy(&kind, bytes + i * static_cast<std::int64_t>(sizeof(kind)), sizeof(kind));
    return kind;
  };
  switch (dtype) {
    case KvDtype::kF32:
      return bits(float{});
    case KvDtype::kBf16:
      return bf16_to_float(bits(std::uint16_t{}));
    case KvDtype::kF16:
      return f16_to_float(bits(std::uint16_t{}));
    case KvDtype::kFp8:
      return fp8_to_float(bits(std::uint8_t{}));
    case KvDtype::kInt8:
      return bits(std::int8_t{});
  }
  return 0;
}

}  // namespace contextile
