// The memory that holds the tensors of a kernel's calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace contextile {

// Memory for a kernel's tensors. The caller of the kernel puts results and staged rows there, too.
class RowMemory {
 public:
  virtual ~RowMemory() = default;
  // Returns memory aligned to at least 64 bytes. Throws std::bad_alloc.
  [[nodiscard]] virtual std::byte* allocate(std::int64_t bytes) const = 0;
  virtual void free(std::byte* memory) const noexcept = 0;
  // Copy from and to this process's memory, in the order of calls. `read` waits for all earlier
  // work.
  virtual void write(std::byte* to, std::span<const std::byte> from) const = 0;
  virtual void read(std::span<std::byte> to, const std::byte* from) const = 0;
  // Waits until everything that the kernel has been asked to do so far is done.
  virtual void wait() const = 0;
  // Sets all bits to one, which is NaN in every dtype.
  virtual void poison(std::byte* memory, std::int64_t bytes) const = 0;
};
// Returns the memory of this process.
[[nodiscard]] const RowMemory& host_memory();

// Owns a piece of row memory.
class RowBuffer {
 public:
  RowBuffer() = default;
  RowBuffer(const RowMemory& memory, std::int64_t bytes)
      : data_(bytes > 0 ? memory.allocate(bytes) : nullptr, Free(&memory)), size_bytes_(bytes) {}

  [[nodiscard]] std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::int64_t size_bytes() const { return size_bytes_; }

 private:
  struct Free {
    Free() : memory(nullptr) {}
    explicit Free(const RowMemory* of) : memory(of) {}
    void operator()(std::byte* data) const { memory->free(data); }

    const RowMemory* memory;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::int64_t size_bytes_ = 0;
};

}  // namespace contextile
