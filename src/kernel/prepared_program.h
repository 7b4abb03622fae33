// The calls of a kernel that a program of a plan makes, prepared once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "contextile/tensor.h"

namespace contextile {

// The calls of forward, or of backward, in a program of a plan, as a kernel has prepared them once
// for all runs of the program. The lists of tiles stay the same; the arrays that hold the rows of
// the tiles may be elsewhere in every run.
class PreparedProgram {
 public:
  virtual ~PreparedProgram() = default;
  // Bytes that the object holds, in whatever memory.
  [[nodiscard]] virtual std::int64_t size_bytes() const = 0;
  // Bytes of the kernel's memory that each run under way needs.
  [[nodiscard]] virtual std::int64_t call_bytes() const = 0;
  // Begins a run. `arrays` are the arrays that the program was prepared with, at their present
  // places and with strides of their own; `call` holds call_bytes().
  virtual void begin(std::span<const TensorView> arrays, std::byte* call) const = 0;
  // Does forward or backward for the tiles of a list. Arrays and memory are those of `begin`.
  virtual void run(std::size_t list, std::span<const TensorView> arrays, std::byte* call) const = 0;
};

}  // namespace contextile
