#include "kernel/tensor.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/half.h"

namespace contextile {
namespace {

template <typename T>
void read_elements(const TensorView& view, std::int64_t n, std::int32_t h, std::span<T> row) {
  switch (view.dtype) {
    case Dtype::kF32: {
      const float* from = row_at<float>(view, n, h);
      for (std::size_t d = 0; d < row.size(); ++d) row[d] = from[d];
      return;
    }
    case Dtype::kBf16: {
      const std::uint16_t* from = row_at<std::uint16_t>(view, n, h);
      for (std::size_t d = 0; d < row.size(); ++d) row[d] = bf16_to_float(from[d]);
      return;
    }
    case Dtype::kF16: {
      const std::uint16_t* from = row_at<std::uint16_t>(view, n, h);
      for (std::size_t d = 0; d < row.size(); ++d) row[d] = f16_to_float(from[d]);
      return;
    }
  }
}

template <typename T>
TensorView view_of_elements(std::span<const T> array, std::int64_t tokens, std::int32_t heads,
                            std::int32_t dim) {
  return view_of(std::as_bytes(array), dtype_of<T>(), tokens, heads, dim);
}

}  // namespace

Bf16::Bf16(float value) : bits(float_to_bf16(value)) {}
Bf16::operator float() const { return bf16_to_float(bits); }
F16::F16(float value) : bits(float_to_f16(value)) {}
F16::operator float() const { return f16_to_float(bits); }

TensorView view_of(std::span<const float> array_THD, std::int64_t tokens, std::int32_t heads,
                   std::int32_t dim) {
  return view_of_elements(array_THD, tokens, heads, dim);
}

TensorView view_of(std::span<const Bf16> array_THD, std::int64_t tokens, std::int32_t heads,
                   std::int32_t dim) {
  return view_of_elements(array_THD, tokens, heads, dim);
}

TensorView view_of(std::span<const F16> array_THD, std::int64_t tokens, std::int32_t heads,
                   std::int32_t dim) {
  return view_of_elements(array_THD, tokens, heads, dim);
}

TensorView view_of(std::span<const std::byte> bytes_THD, Dtype dtype, std::int64_t tokens,
                   std::int32_t heads, std::int32_t dim) {
  CONTEXTILE_CHECK(tokens >= 0 && heads >= 1 && dim >= 1,
                   "view: expected [tokens, heads, dim] of at least [0, 1, 1], found [{}, {}, {}]",
                   tokens, heads, dim);
  const std::int64_t element_bytes = bytes_per_element(dtype);
  const auto found = static_cast<std::int64_t>(bytes_THD.size());
  const std::int64_t token_elements = std::int64_t{heads} * dim;
  // The check divides because the product of hostile extents may not fit.
  const std::int64_t elements = found / element_bytes;
  CONTEXTILE_CHECK(found % element_bytes == 0 && elements % token_elements == 0 &&
                       elements / token_elements == tokens,
                   "view: expected the elements of [{}, {}, {}] as {}, found {} bytes, {} elements",
                   tokens, heads, dim, to_string(dtype), found, elements);
  CONTEXTILE_CHECK(bytes_THD.data() != nullptr || tokens == 0, "view: expected data, found none");
  // The check is about the value of the pointer, not its object.
  const auto address = reinterpret_cast<std::uintptr_t>(bytes_THD.data());
  CONTEXTILE_CHECK(address % static_cast<std::uintptr_t>(element_bytes) == 0,
                   "view: expected data aligned to the {} bytes of {}, found address {:#x}",
                   element_bytes, to_string(dtype), address);
  return contiguous(const_cast<std::byte*>(bytes_THD.data()), dtype, tokens, heads, dim);
}

TensorView slice(const TensorView& view, std::int64_t first, std::int64_t tokens,
                 std::int32_t first_head, std::int32_t heads) {
  TensorView part = view;
  const std::int64_t skipped = first * view.token_stride + first_head * view.head_stride;
  if (view.data != nullptr) {
    part.data = static_cast<std::byte*>(view.data) + skipped * bytes_per_element(view.dtype);
  }
  part.tokens = tokens;
  part.heads = heads;
  return part;
}

void read_row(const TensorView& view, std::int64_t n, std::int32_t h, std::span<float> row) {
  read_elements(view, n, h, row);
}

void read_row(const TensorView& view, std::int64_t n, std::int32_t h, std::span<double> row) {
  read_elements(view, n, h, row);
}

void write_row(const TensorView& view, std::int64_t n, std::int32_t h, std::span<const float> row) {
  switch (view.dtype) {
    case Dtype::kF32: {
      std::copy(row.begin(), row.end(), row_at<float>(view, n, h));
      return;
    }
    case Dtype::kBf16: {
      std::uint16_t* to = row_at<std::uint16_t>(view, n, h);
      for (std::size_t d = 0; d < row.size(); ++d) to[d] = float_to_bf16(row[d]);
      return;
    }
    case Dtype::kF16: {
      std::uint16_t* to = row_at<std::uint16_t>(view, n, h);
      for (std::size_t d = 0; d < row.size(); ++d) to[d] = float_to_f16(row[d]);
      return;
    }
  }
}

void fill_tensor(const TensorView& view, float value) {
  const std::vector<float> row(static_cast<std::size_t>(view.dim), value);
  const auto row_bytes = static_cast<std::size_t>(view.dim * bytes_per_element(view.dtype));
  std::vector<std::byte> bytes(row_bytes);
  write_row(contiguous(bytes.data(), view.dtype, 1, 1, view.dim), 0, 0, row);
  for (std::int64_t n = 0; n < view.tokens; ++n) {
    for (std::int32_t h = 0; h < view.heads; ++h) {
      std::memcpy(slice(view, n, 1, h, 1).data, bytes.data(), row_bytes);
    }
  }
}

TensorView contiguous(void* data, Dtype dtype, std::int64_t tokens, std::int32_t heads,
                      std::int32_t dim) {
  return {data, dtype, tokens, heads, dim, std::int64_t{heads} * dim, dim};
}

double round_to(Dtype dtype, double value) {
  const auto narrow = static_cast<float>(value);
  switch (dtype) {
    case Dtype::kF32:
      return narrow;
    case Dtype::kBf16:
      return bf16_to_float(float_to_bf16(narrow));
    case Dtype::kF16:
      return f16_to_float(float_to_f16(narrow));
  }
  return narrow;
}

}  // namespace contextile
