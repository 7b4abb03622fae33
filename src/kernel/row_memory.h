// The memory that the tensors of a kernel's calls lie in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace contextile {

// Memory that a kernel's tensors lie in, where whoever runs it puts results and what it stages.
class RowMemory {
 public:
  virtual ~RowMemory() = default;
  // Aligned to 64 bytes at least. Throws std::bad_alloc.
  [[nodiscard]] virtual std::byte* allocate(std::int64_t bytes) const = 0;
  virtual void free(std::byte* memory) const noexcept = 0;
  // From and to this process's memory, in the order of calls. `read` waits for what comes before.
  virtual void write(std::byte* to, std::span<const std::byte> from) const = 0;
  virtual void read(std::span<std::byte> to, const std::byte* from) const = 0;
  // Until everything that was asked of the kernel so far is done.
  virtual void wait() const = 0;
  // All bits ones: NaN in every dtype.
  virtual void poison(std::byte* memory, std::int64_t bytes) const = 0;
};
// That of this process.
[[nodiscard]] const RowMemory& host_memory();

// Owns some of it.
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
