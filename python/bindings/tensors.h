// Arrays of others (NumPy, PyTorch, JAX: DLPack or the buffer protocol) as views, without a copy.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "bind.h"
#include "contextile/extend/tensor.h"
#include "contextile/extend/transport.h"

namespace contextile::python {

// What is read, and may be read-only; on any device.
using InArray = nb::ndarray<nb::ro>;
using InStats = nb::ndarray<const float>;
using InBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig>;
// What is written.
using OutArray = nb::ndarray<>;
using OutStats = nb::ndarray<float>;
using OutBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig>;

// Where the arrays of a call lie: in this process's memory, or on the GPU of that number.
struct ArrayPlace {
  std::optional<std::int32_t> gpu;
};

// All throw InvalidArgument naming the array: expected, found.
// [tokens, heads, dim] of float32, bfloat16 or float16, the last dimension without gaps.
[[nodiscard]] TensorView view_of_array(const InArray& array, std::string_view name,
                                       const ArrayPlace& place = {});
[[nodiscard]] TensorView view_of_array(const OutArray& array, std::string_view name,
                                       const ArrayPlace& place = {});
// [tokens, heads] of float32, as many rows as `beside`.
[[nodiscard]] RowStats stats_of_array(const InStats& array, const TensorView& beside,
                                      std::string_view name, const ArrayPlace& place = {});
[[nodiscard]] RowStats stats_of_array(const OutStats& array, const TensorView& beside,
                                      std::string_view name, const ArrayPlace& place = {});
// [heads] of float32 without gaps, or none.
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

// Throws unless the array lies there.
void check_place(std::int32_t device_type, std::int32_t device_id, const ArrayPlace& place,
                 std::string_view name);

// Whether what it moves is in a GPU's memory. Words of such a transport go another way.
[[nodiscard]] inline bool moves_device_memory(Transport& transport) {
  return &transport.control() != &transport;
}

}  // namespace contextile::python
