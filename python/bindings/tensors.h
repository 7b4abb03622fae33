// Arrays of others (NumPy, PyTorch, JAX: DLPack or the buffer protocol) as views, without a copy.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "bind.h"
#include "contextile/tensor.h"

namespace contextile::python {

// What is read, and may be read-only.
using InArray = nb::ndarray<nb::ro, nb::device::cpu>;
using InStats = nb::ndarray<const float, nb::device::cpu>;
using InBytes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
// What is written.
using OutArray = nb::ndarray<nb::device::cpu>;
using OutStats = nb::ndarray<float, nb::device::cpu>;
using OutBytes = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// [tokens, heads, dim] of float32, bfloat16 or float16, the last dimension without gaps. Throws
// InvalidArgument naming the array: expected, found.
[[nodiscard]] TensorView view_of_array(const InArray& array, std::string_view name);
[[nodiscard]] TensorView view_of_array(const OutArray& array, std::string_view name);
// [tokens, heads] of float32, as many rows as `beside`.
[[nodiscard]] RowStats stats_of_array(const InStats& array, const TensorView& beside,
                                      std::string_view name);
[[nodiscard]] RowStats stats_of_array(const OutStats& array, const TensorView& beside,
                                      std::string_view name);
// [heads] of float32 without gaps, or none.
[[nodiscard]] std::span<const float> numbers_of(const std::optional<InStats>& array,
                                                std::string_view name);
[[nodiscard]] std::span<float> numbers_of(const std::optional<OutStats>& array,
                                          std::string_view name);
[[nodiscard]] std::span<const std::byte> bytes_of(const std::optional<InBytes>& array);
[[nodiscard]] std::span<std::byte> bytes_of(const std::optional<OutBytes>& array);

}  // namespace contextile::python
