// The memory one call in flight works in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

namespace contextile {

class CallBuffer {
 public:
  // Keeps what fits; old contents are lost when it grows.
  void reserve(std::int64_t bytes, std::size_t stats) {
    if (bytes > size_bytes_) {
      data_.reset();
      const auto size = static_cast<std::size_t>(bytes);
      data_.reset(static_cast<std::byte*>(::operator new (size, std::align_val_t{kAlignment})));
      size_bytes_ = bytes;
    }
    if (stats > delta_.size()) delta_.resize(stats);
  }
  [[nodiscard]] std::byte* data() { return data_.get(); }
  [[nodiscard]] std::int64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] float* delta() { return delta_.data(); }
  [[nodiscard]] std::int64_t delta_bytes() const {
    return static_cast<std::int64_t>(delta_.size() * sizeof(float));
  }

 private:
  static constexpr std::size_t kAlignment = 64;
  struct Free {
    void operator()(std::byte* data) const {
      ::operator delete (data, std::align_val_t{kAlignment});
    }
  };

  std::unique_ptr<std::byte, Free> data_;
  std::int64_t size_bytes_ = 0;
  std::vector<float> delta_;  // of all local rows and query heads, backward only
};

}  // namespace contextile
