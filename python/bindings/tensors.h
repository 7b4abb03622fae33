// Views of arrays of NumPy, PyTorch, JAX and others (DLPack, buffer protocol), without a copy.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "bind.h"
#include "contextile/extend/transport.h"
#include "contextile/tensor.h"

namespace contextile::python {

// Arrays that are read, on any device. They may be read-only.
using InArray = nb::ndarray<nb::ro>;
using InStats = nb::ndarray<const float>;
using InBuckets = nb::ndarray<const std::int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using InTable = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using OutTable = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using InBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig>;
// Arrays that are written.
using OutArray = nb::ndarray<>;
using OutStats = nb::ndarray<float>;
using OutBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig>;

// The place of the arrays of a call: this process's memory, or the GPU with this number.
struct ArrayPlace {
  std::optional<std::int32_t> gpu;
};

// Returns the name of a dtype, such as float64.
[[nodiscard]] std::string dtype_text(nb::dlpack::dtype dtype);

// All throw InvalidArgument that names the array, with the expected and found properties.
// Views [tokens, heads, dim] of float32, bfloat16 or float16, with no gaps in the last dimension.
[[nodiscard]] TensorView view_of_array(const InArray& array, std::string_view name,
                                       const ArrayPlace& place = {});
[[nodiscard]] TensorView view_of_array(const OutArray& array, std::string_view name,
                                       const ArrayPlace& place = {});
// Views [tokens, heads] of float32, with as many rows as `beside`.
[[nodiscard]] RowStats stats_of_array(const InStats& array, const TensorView& beside,
                                      std::string_view name, const ArrayPlace& place = {});
[[nodiscard]] RowStats stats_of_array(const OutStats& array, const TensorView& beside,
                                      std::string_view name, const ArrayPlace& place = {});
// Views [heads] of float32 without gaps, or nothing.
[[nodiscard]] std::span<const float> numbers_of(const std::optional<InStats>& array,
                                                std::string_view name,
                                                const ArrayPlace& place = {});
[[nodiscard]] std::span<float> numbers_of(const std::optional<OutStats>& array,
                                          std::string_view name, const ArrayPlace& place = {});
[[nodiscard]] std::span<const std::byte> bytes_of(const std::optional<InBytes>& array,
                                                  std::string_view name,
                                                  const ArrayPlace& place = {});
[[nodiscard]] std::span<std::byte> bytes_of(const std::optional<OutBytes>& array,
                                            std::string_view name, const ArrayPlace& place = {});

// The bytes from the first to the last element of an array, gaps included.
template <typename Array>
std::span<const std::byte> memory_of(const Array& array) {
  std::int64_t first = 0;
  std::int64_t last = 0;
  for (std::size_t axis = 0; axis < array.ndim(); ++axis) {
    if (array.shape(axis) == 0) return {};
    const std::int64_t reach =
        static_cast<std::int64_t>(array.shape(axis) - 1) * array.stride(axis);
    (reach < 0 ? first : last) += reach;
  }
  const auto size = static_cast<std::int64_t>(array.itemsize());
  const auto* const data = static_cast<const std::byte*>(static_cast<const void*>(array.data()));
  return {data + first * size, static_cast<std::size_t>((last - first + 1) * size)};
}

// Throws unless the array lies in this place.
void check_place(std::int32_t device_type, std::int32_t device_id, const ArrayPlace& place,
                 std::string_view name);

// Returns whether the transport moves a GPU's memory. Its control messages then use another one.
[[nodiscard]] inline bool moves_device_memory(Transport& transport) {
  return &transport.control() != &transport;
}

}  // namespace contextile::python
