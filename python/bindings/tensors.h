// Arrays of others (NumPy, PyTorch, JAX: DLPack or the buffer protocol) as views, without a copy.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "bind.h"
#include "contextile/tensor.h"

namespace contextile::python {

using AnyArray = nb::ndarray<nb::device::cpu>;
using StatArray = nb::ndarray<float, nb::device::cpu>;
using ByteArray = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// [tokens, heads, dim] of float32, bfloat16 or float16, the last dimension without gaps. Throws
// InvalidArgument naming the array: expected, found.
[[nodiscard]] TensorView view_of_array(const AnyArray& array, std::string_view name);
// [tokens, heads] of float32, as many rows as `beside`.
[[nodiscard]] RowStats stats_of_array(const StatArray& array, const TensorView& beside,
                                      std::string_view name);
// [heads] of float32 without gaps, or none.
[[nodiscard]] std::span<float> numbers_of(const std::optional<StatArray>& array,
                                          std::string_view name);
[[nodiscard]] std::span<std::byte> bytes_of(const std::optional<ByteArray>& array);

}  // namespace contextile::python
