// The working memory of one call in flight.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "contextile/extend/kernel.h"
#include "kernel/row_memory.h"

namespace contextile {

class CallBuffer {
 public:
  // Allocates in the memory of the kernel that runs the call, which must outlive the buffer.
  explicit CallBuffer(const RowMemory& memory) : memory_(memory) {}

  // Keeps arrays that are large enough; the old contents are lost when one grows.
  void reserve(std::int64_t bytes, std::int64_t stats, std::int64_t heads) {
    grow(data_, bytes);
    grow(delta_, stats * static_cast<std::int64_t>(sizeof(float)));
    grow(sums_, heads * static_cast<std::int64_t>(sizeof(double)));
  }
  [[nodiscard]] std::byte* data() { return data_.data(); }
  [[nodiscard]] std::int64_t size_bytes() const { return data_.size_bytes(); }
  // The deltas of all local rows and query heads, backward only.
  [[nodiscard]] float* delta() { return reinterpret_cast<float*>(delta_.data()); }
  [[nodiscard]] std::int64_t delta_bytes() const { return delta_.size_bytes(); }
  // The gradient of the sinks so far.
  [[nodiscard]] std::span<double> sums(std::size_t heads) {
    return {reinterpret_cast<double*>(sums_.data()), heads};
  }

 private:
  void grow(RowBuffer& buffer, std::int64_t bytes) {
    if (bytes <= buffer.size_bytes()) return;
    buffer = {};
    buffer = RowBuffer(memory_, bytes);
  }

  const RowMemory& memory_;
  RowBuffer data_;
  RowBuffer delta_;
  RowBuffer sums_;
};

}  // namespace contextile
