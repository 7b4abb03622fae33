#include "tensors.h"

#include <limits>
#include <string>

namespace contextile::python {
namespace {

std::string shape_text(const auto& array) {
  std::string text = "[";
  for (std::size_t d = 0; d < array.ndim(); ++d) {
    if (d > 0) text += ", ";
    text += std::to_string(array.shape(d));
  }
  return text + "]";
}

Dtype dtype_of_array(nb::dlpack::dtype dtype, std::string_view name) {
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return dtype.code == static_cast<std::uint8_t>(code) && dtype.bits == bits && dtype.lanes == 1;
  };
  if (is(nb::dlpack::dtype_code::Float, 32)) return Dtype::kF32;
  if (is(nb::dlpack::dtype_code::Bfloat, 16)) return Dtype::kBf16;
  if (is(nb::dlpack::dtype_code::Float, 16)) return Dtype::kF16;
  fail(std::string(name) + ": expected float32, bfloat16 or float16, found " + dtype_text(dtype));
}

std::string place_text(std::int32_t device_type, std::int32_t device_id) {
  if (device_type == nb::device::cpu::value) return "the CPU";
  const std::string number = std::to_string(device_id);
  if (device_type == nb::device::cuda::value) return "cuda:" + number;
  return "device " + number + " of DLPack type " + std::to_string(device_type);
}

template <typename Array>
void check_place_of(const Array& array, const ArrayPlace& place, std::string_view name) {
  check_place(array.device_type(), array.device_id(), place, name);
}

template <typename Array>
std::int32_t extent(const Array& array, std::size_t d, std::string_view name) {
  if (array.shape(d) > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    fail(std::string(name) + ": expected heads and elements below 2^31, found " +
         shape_text(array));
  }
  return static_cast<std::int32_t>(array.shape(d));
}

// The cast is safe: a view of a read-only array is never written through.
template <typename Array>
TensorView view_of(const Array& array, std::string_view name, const ArrayPlace& place) {
  check_place_of(array, place, name);
  if (array.ndim() != 3) {
    fail(std::string(name) + ": expected [tokens, heads, dim], found " + shape_text(array));
  }
  if (array.size() > 0 && array.shape(2) > 1 && array.stride(2) != 1) {
    fail(std::string(name) + ": expected elements of a head side by side, found a stride of " +
         std::to_string(array.stride(2)));
  }
  TensorView view;
  view.data = const_cast<void*>(static_cast<const void*>(array.data()));
  view.dtype = dtype_of_array(array.dtype(), name);
  view.tokens = static_cast<std::int64_t>(array.shape(0));
  view.heads = extent(array, 1, name);
  view.dim = extent(array, 2, name);
  view.token_stride = array.stride(0);
  view.head_stride = array.stride(1);
  return view;
}

template <typename Array>
RowStats stats_of(const Array& array, const TensorView& beside, std::string_view name,
                  const ArrayPlace& place) {
  check_place_of(array, place, name);
  if (array.ndim() != 2 || array.shape(0) != static_cast<std::size_t>(beside.tokens) ||
      array.shape(1) != static_cast<std::size_t>(beside.heads)) {
    fail(std::string(name) + ": expected [" + std::to_string(beside.tokens) + ", " +
         std::to_string(beside.heads) + "], found " + shape_text(array));
  }
  return {const_cast<float*>(array.data()), array.stride(0), array.stride(1)};
}

template <typename Array>
auto span_of_numbers(const Array& array, std::string_view name, const ArrayPlace& place) {
  check_place_of(array, place, name);
  if (array.ndim() != 1 || (array.shape(0) > 1 && array.stride(0) != 1)) {
    fail(std::string(name) + ": expected [heads] without gaps, found " + shape_text(array));
  }
  return std::span(array.data(), array.shape(0));
}

}  // namespace

std::string dtype_text(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  const std::string bits = std::to_string(dtype.bits);
  const std::string lanes = dtype.lanes == 1 ? "" : "x" + std::to_string(dtype.lanes);
  switch (static_cast<Code>(dtype.code)) {
    case Code::Int:
      return "int" + bits + lanes;
    case Code::UInt:
      return "uint" + bits + lanes;
    case Code::Float:
      return "float" + bits + lanes;
    case Code::Bfloat:
      return "bfloat" + bits + lanes;
    case Code::Complex:
      return "complex" + bits + lanes;
    case Code::Bool:
      return "bool" + lanes;
    default:
      return bits + " bits of DLPack type " + std::to_string(dtype.code);
  }
}

void check_place(std::int32_t device_type, std::int32_t device_id, const ArrayPlace& place,
                 std::string_view name) {
  const std::int32_t expected_type = place.gpu ? nb::device::cuda::value : nb::device::cpu::value;
  const std::int32_t expected_id = place.gpu.value_or(device_id);
  if (device_type == expected_type && device_id == expected_id) return;
  fail(std::string(name) + ": expected a tensor on " + place_text(expected_type, expected_id) +
       ", found one on " + place_text(device_type, device_id));
}

TensorView view_of_array(const InArray& array, std::string_view name, const ArrayPlace& place) {
  return view_of(array, name, place);
}
TensorView view_of_array(const OutArray& array, std::string_view name, const ArrayPlace& place) {
  return view_of(array, name, place);
}

RowStats stats_of_array(const InStats& array, const TensorView& beside, std::string_view name,
                        const ArrayPlace& place) {
  return stats_of(array, beside, name, place);
}
RowStats stats_of_array(const OutStats& array, const TensorView& beside, std::string_view name,
                        const ArrayPlace& place) {
  return stats_of(array, beside, name, place);
}

std::span<const float> numbers_of(const std::optional<InStats>& array, std::string_view name,
                                  const ArrayPlace& place) {
  if (!array) return {};
  return span_of_numbers(*array, name, place);
}
std::span<float> numbers_of(const std::optional<OutStats>& array, std::string_view name,
                            const ArrayPlace& place) {
  if (!array) return {};
  return span_of_numbers(*array, name, place);
}

std::span<const std::byte> bytes_of(const std::optional<InBytes>& array, std::string_view name,
                                    const ArrayPlace& place) {
  if (!array) return {};
  check_place_of(*array, place, name);
  return std::as_bytes(std::span(array->data(), array->size()));
}
std::span<std::byte> bytes_of(const std::optional<OutBytes>& array, std::string_view name,
                              const ArrayPlace& place) {
  if (!array) return {};
  check_place_of(*array, place, name);
  return std::as_writable_bytes(std::span(array->data(), array->size()));
}

}  // namespace contextile::python
