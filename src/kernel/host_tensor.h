// Tensors that own their memory, for checks and measurements.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/rng.h"
#include "contextile/kernel.h"
#include "kernel/tensor.h"

namespace contextile {

// Contiguous [tokens, heads, dim], NaN until written, so that a result nobody wrote is seen.
class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(Dtype dtype, std::int64_t tokens, std::int32_t heads, std::int32_t dim)
      : bytes_(static_cast<std::size_t>(tokens * heads * dim * bytes_per_element(dtype))),
        dtype_(dtype),
        tokens_(tokens),
        heads_(heads),
        dim_(dim) {
    poison();
  }

  // Every element NaN (all ones, in every dtype).
  void poison() {
    if (!bytes_.empty()) std::memset(bytes_.data(), 0xff, bytes_.size());
  }
  [[nodiscard]] TensorView view() {
    return contiguous(bytes_.data(), dtype_, tokens_, heads_, dim_);
  }
  [[nodiscard]] RowStats stats() { return as_stats(view()); }

  // Rows of a [T, heads, dim] array of doubles: row n of the tensor is row tokens[n] of the array.
  void gather(std::span<const double> array, std::span<const std::int64_t> tokens) {
    const auto row = static_cast<std::size_t>(heads_) * static_cast<std::size_t>(dim_);
    std::vector<float> values(static_cast<std::size_t>(dim_));
    for (std::size_t n = 0; n < tokens.size(); ++n) {
      for (std::int32_t h = 0; h < heads_; ++h) {
        const std::size_t from =
            static_cast<std::size_t>(tokens[n]) * row + static_cast<std::size_t>(h) * values.size();
        for (std::size_t d = 0; d < values.size(); ++d) {
          values[d] = static_cast<float>(array[from + d]);
        }
        write_row(view(), static_cast<std::int64_t>(n), h, values);
      }
    }
  }
  void scatter(std::span<double> array, std::span<const std::int64_t> tokens) {
    const auto row = static_cast<std::size_t>(heads_) * static_cast<std::size_t>(dim_);
    for (std::size_t n = 0; n < tokens.size(); ++n) {
      for (std::int32_t h = 0; h < heads_; ++h) {
        const std::size_t to = static_cast<std::size_t>(tokens[n]) * row +
                               static_cast<std::size_t>(h) * static_cast<std::size_t>(dim_);
        read_row(view(), static_cast<std::int64_t>(n), h,
                 array.subspan(to, static_cast<std::size_t>(dim_)));
      }
    }
  }

 private:
  std::vector<std::byte> bytes_;
  Dtype dtype_ = Dtype::kF32;
  std::int64_t tokens_ = 0;
  std::int32_t heads_ = 0;
  std::int32_t dim_ = 0;
};

// Independent standard normal values, rounded to `dtype`.
[[nodiscard]] HostTensor normal_tensor(Rng& rng, Dtype dtype, std::int64_t tokens,
                                       std::int32_t heads, std::int32_t dim);

}  // namespace contextile
