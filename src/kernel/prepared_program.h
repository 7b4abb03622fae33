// All calls that a program of a plan makes of a kernel, prepared once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "contextile/extend/tensor.h"

namespace contextile {

// What a kernel has made of all calls of forward, or of backward, in a program of a plan, once for
// all times that the program runs: the lists of tiles stay, the arrays that tiles are rows of may
// be elsewhere every time.
class PreparedProgram {
 public:
  virtual ~PreparedProgram() = default;
  // What it holds, wherever that lies.
  [[nodiscard]] virtual std::int64_t size_bytes() const = 0;
  // What each run under way takes of the kernel's memory.
  [[nodiscard]] virtual std::int64_t call_bytes() const = 0;
  // Begins a run. `arrays` are those that it was prepared with, where they are now, with strides of
  // their own; `call` holds call_bytes().
  virtual void begin(std::span<const TensorView> arrays, std::byte* call) const = 0;
  // What forward or backward does with the tiles of a list. Arrays and memory are those of `begin`.
  virtual void run(std::size_t list, std::span<const TensorView> arrays, std::byte* call) const = 0;
};

}  // namespace contextile
