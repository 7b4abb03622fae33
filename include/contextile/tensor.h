// Tensors in memory: views of any memory, a tensor that owns its memory, and numbers of 16 bits.
//
//   HostTensor out(Dtype::kBf16, 4096, 32, 128);  // tokens, heads, dim
//   const TensorView out_THD = out.view();
//   const std::span<const Bf16> elements = out.values<Bf16>();
//
// Legend of suffixes: T tokens, H heads, D elements of a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "contextile/workload.h"

namespace contextile {

// A view of rows of heads, token-major with strides. Strides count elements.
struct TensorView {
  void* data = nullptr;
  Dtype dtype = Dtype::kF32;
  std::int64_t tokens = 0;
  std::int32_t heads = 0;
  std::int32_t dim = 0;
  std::int64_t token_stride = 0;
  std::int64_t head_stride = 0;
};

// A view of one [tokens, heads] array of fp32 (LSE, delta).
struct RowStats {
  float* data = nullptr;
  std::int64_t token_stride = 0;  // elements
  std::int64_t head_stride = 1;
};

// bf16 and f16 numbers as their bits. Conversion from fp32 rounds to nearest even; conversion to
// fp32 is exact.
struct Bf16 {
  Bf16() = default;
  explicit Bf16(float value);
  [[nodiscard]] explicit operator float() const;

  std::uint16_t bits = 0;
};
struct F16 {
  F16() = default;
  explicit F16(float value);
  [[nodiscard]] explicit operator float() const;

  std::uint16_t bits = 0;
};

// The dtype whose elements are T: float, Bf16 or F16.
template <typename T>
[[nodiscard]] constexpr Dtype dtype_of() = delete;
template <>
[[nodiscard]] constexpr Dtype dtype_of<float>() {
  return Dtype::kF32;
}
template <>
[[nodiscard]] constexpr Dtype dtype_of<Bf16>() {
  return Dtype::kBf16;
}
template <>
[[nodiscard]] constexpr Dtype dtype_of<F16>() {
  return Dtype::kF16;
}

// Returns a view of a contiguous array [tokens, heads, dim], token-major; the owner keeps the
// array. Throws InvalidArgument unless the array has tokens · heads · dim elements, at least one
// head and one element per row. NOTE: views ignore const; use a view of constant memory for inputs
// only.
[[nodiscard]] TensorView view_of(std::span<const float> array_THD, std::int64_t tokens,
                                 std::int32_t heads, std::int32_t dim);
[[nodiscard]] TensorView view_of(std::span<const Bf16> array_THD, std::int64_t tokens,
                                 std::int32_t heads, std::int32_t dim);
[[nodiscard]] TensorView view_of(std::span<const F16> array_THD, std::int64_t tokens,
                                 std::int32_t heads, std::int32_t dim);
// The same for the bytes of an array of any other type with such elements (std::as_bytes). Also
// throws InvalidArgument if they are not aligned as elements are.
[[nodiscard]] TensorView view_of(std::span<const std::byte> bytes_THD, Dtype dtype,
                                 std::int64_t tokens, std::int32_t heads, std::int32_t dim);

// Returns memory that begins at a cache line: vectors that cross lines load at half the rate. If it
// has 4 MiB or more, it begins at a huge page (2 MiB), and the system is asked for such pages: keys
// in random order are then read up to 20% faster. Throws std::bad_alloc.
[[nodiscard]] void* allocate_lines(std::size_t bytes);
// Frees such memory of as many bytes.
void free_lines(void* memory, std::size_t bytes);

template <typename T>
struct LineAllocator {
  using value_type = T;

  LineAllocator() = default;
  template <typename U>
  // NOLINTNEXTLINE(google-explicit-constructor): containers convert allocators
  LineAllocator(const LineAllocator<U>& /*other*/) {}

  [[nodiscard]] T* allocate(std::size_t count) {
    return static_cast<T*>(allocate_lines(count * sizeof(T)));
  }
  void deallocate(T* memory, std::size_t count) { free_lines(memory, count * sizeof(T)); }

  friend bool operator==(const LineAllocator&, const LineAllocator&) = default;
};

// A contiguous tensor [tokens, heads, dim] that owns its memory. Its elements are NaN until
// written, so that a missing result is noticed.
class HostTensor {
 public:
  HostTensor() = default;  // [0, 0, 0]
  // Throws InvalidArgument on extents below 0.
  HostTensor(Dtype dtype, std::int64_t tokens, std::int32_t heads, std::int32_t dim);

  [[nodiscard]] Dtype dtype() const { return dtype_; }
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }
  [[nodiscard]] std::int32_t heads() const { return heads_; }
  [[nodiscard]] std::int32_t dim() const { return dim_; }

  [[nodiscard]] TensorView view();
  [[nodiscard]] TensorView view() const;  // for inputs only
  [[nodiscard]] RowStats stats();         // of an fp32 tensor of dim 1

  [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }
  // All elements in order, T: float, Bf16 or F16. Throws InvalidArgument when the dtype is another.
  template <typename T>
  [[nodiscard]] std::span<T> values() {
    check_dtype(dtype_of<T>());
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }
  template <typename T>
  [[nodiscard]] std::span<const T> values() const {
    check_dtype(dtype_of<T>());
    return {reinterpret_cast<const T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

  // Sets every element to NaN (all ones, in every dtype).
  void poison();

 private:
  void check_dtype(Dtype asked) const;

  std::vector<std::byte, LineAllocator<std::byte>> bytes_;
  Dtype dtype_ = Dtype::kF32;
  std::int64_t tokens_ = 0;
  std::int32_t heads_ = 0;
  std::int32_t dim_ = 0;
};

}  // namespace contextile
