// The traces of a call of attention: its statistics, and inputs that it keeps for backward.
#pragma once

#include <cstdint>
#include <memory>

namespace contextile {

// Bytes and times of one call on this rank.
struct ExecutionStats {
  std::int64_t sent_bytes = 0;
  std::int64_t received_bytes = 0;
  double total_s = 0;
  double attention_s = 0;  // inside the kernel
  double exposed_s = 0;    // blocked in waits
};

// The received inputs that forward keeps for backward: opaque, one per layer and micro-batch.
class Saved {
 public:
  Saved();
  ~Saved();
  Saved(Saved&&) noexcept;
  Saved& operator=(Saved&&) noexcept;
  [[nodiscard]] std::int64_t size_bytes() const;

  struct Buffers;

 private:
  friend class Executor;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace contextile
