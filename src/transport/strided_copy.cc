#include "transport/strided_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace contextile {
namespace {

// Walks the bytes of a segment list as contiguous runs.
class Cursor {
 public:
  explicit Cursor(std::span<const Segment> segments) : segments_(segments) { skip_empty(); }

  [[nodiscard]] bool done() const { return segment_ == segments_.size(); }
  [[nodiscard]] std::byte* data() const {
    const Segment& segment = segments_[segment_];
    return segment.data + row_ * segment.stride_bytes + offset_;
  }
  // Bytes from data() that stand side by side.
  [[nodiscard]] std::int64_t run_bytes() const {
    const Segment& segment = segments_[segment_];
    if (segment.stride_bytes != segment.row_bytes) return segment.row_bytes - offset_;
    return (segment.num_rows - row_) * segment.row_bytes - offset_;
  }
  void advance(std::int64_t bytes) {
    const Segment& segment = segments_[segment_];
    offset_ += bytes;
    row_ += offset_ / segment.row_bytes;
    offset_ %= segment.row_bytes;
    if (row_ < segment.num_rows) return;
    ++segment_;
    row_ = 0;
    skip_empty();
  }

 private:
  void skip_empty() {
    while (segment_ < segments_.size() && segments_[segment_].size_bytes() == 0) ++segment_;
  }

  std::span<const Segment> segments_;
  std::size_t segment_ = 0;
  std::int64_t row_ = 0;
  std::int64_t offset_ = 0;  // in the row
};

}  // namespace

void copy_segments(std::span<const Segment> from, std::span<const Segment> to) {
  Cursor source(from);
  Cursor target(to);
  while (!source.done() && !target.done()) {
    const std::int64_t bytes = std::min(source.run_bytes(), target.run_bytes());
    std::memcpy(target.data(), source.data(), static_cast<std::size_t>(bytes));
    source.advance(bytes);
    target.advance(bytes);
  }
}

}  // namespace contextile
