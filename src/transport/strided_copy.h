// Copies between lists of strided segments that are cut differently, at once or in pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "contextile/extend/transport.h"

namespace contextile {

// Walks the bytes of a segment list as contiguous runs. Keeps a reference to the list.
class SegmentCursor {
 public:
  explicit SegmentCursor(std::span<const Segment> segments) : segments_(segments) { skip_empty(); }

  [[nodiscard]] bool done() const { return segment_ == segments_.size(); }
  [[nodiscard]] std::byte* data() const;
  // Number of contiguous bytes from data() on.
  [[nodiscard]] std::int64_t run_bytes() const;
  void advance(std::int64_t bytes);  // at most run_bytes()

  // Copy the next bytes (no more than there are) to or from contiguous memory.
  void read(std::byte* to, std::int64_t bytes);
  void write(const std::byte* from, std::int64_t bytes);

 private:
  void skip_empty() {
    while (segment_ < segments_.size() && segments_[segment_].size_bytes() == 0) ++segment_;
  }

  std::span<const Segment> segments_;
  std::size_t segment_ = 0;
  std::int64_t row_ = 0;
  std::int64_t offset_ = 0;  // in the row
};

// Copies the bytes of `from`, in order, into `to`. Both have the same total size.
void copy_segments(std::span<const Segment> from, std::span<const Segment> to);

}  // namespace contextile
