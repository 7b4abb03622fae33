// Conversions of tensors that own their memory from and to doubles and random numbers, for checks
// and measurements.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/rng.h"
#include "contextile/tensor.h"
#include "kernel/tensor.h"

namespace contextile {

// Copy row n of the tensor from or to row tokens[n] of an array of doubles [T, heads, dim].
void take_rows(const TensorView& to, std::span<const double> array_THD,
               std::span<const std::int64_t> tokens);
void put_rows(const TensorView& from, std::span<double> array_THD,
              std::span<const std::int64_t> tokens);

// Return a whole array of doubles [T, heads, dim] rounded to `dtype`, and a whole tensor as
// doubles.
[[nodiscard]] HostTensor tensor_of(std::span<const double> array_THD, Dtype dtype,
                                   std::int64_t tokens, std::int32_t heads, std::int32_t dim);
[[nodiscard]] std::vector<double> doubles_of(const HostTensor& tensor);

// Returns independent standard normal values, rounded to `dtype`.
[[nodiscard]] HostTensor normal_tensor(Rng& rng, Dtype dtype, std::int64_t tokens,
                                       std::int32_t heads, std::int32_t dim);

}  // namespace contextile
