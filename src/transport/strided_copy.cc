#include "transport/strided_copy.h"

#include <algorithm>
#include <cstring>

namespace contextile {

std::byte* SegmentCursor::data() const {
  const Segment& segment = segments_[segment_];
  return segment.data + row_ * segment.stride_bytes + offset_;
}

std::int64_t SegmentCursor::run_bytes() const {
  const Segment& segment = segments_[segment_];
  if (segment.stride_bytes != segment.row_bytes) return segment.row_bytes - offset_;
  return (segment.num_rows - row_) * segment.row_bytes - offset_;
}

void SegmentCursor::advance(std::int64_t bytes) {
  const Segment& segment = segments_[segment_];
  offset_ += bytes;
  row_ += offset_ / segment.row_bytes;
  offset_ %= segment.row_bytes;
  if (row_ < segment.num_rows) return;
  ++segment_;
  row_ = 0;
  skip_empty();
}

void SegmentCursor::read(std::byte* to, std::int64_t bytes) {
  while (bytes > 0) {
    const std::int64_t run = std::min(run_bytes(), bytes);
    std::memcpy(to, data(), static_cast<std::size_t>(run));
    advance(run);
    to += run;
    bytes -= run;
  }
}

void SegmentCursor::write(const std::byte* from, std::int64_t bytes) {
  while (bytes > 0) {
    const std::int64_t run = std::min(run_bytes(), bytes);
    std::memcpy(data(), from, static_cast<std::size_t>(run));
    advance(run);
    from += run;
    bytes -= run;
  }
}

void copy_segments(std::span<const Segment> from, std::span<const Segment> to) {
  SegmentCursor source(from);
  SegmentCursor target(to);
  while (!source.done() && !target.done()) {
    const std::int64_t bytes = std::min(source.run_bytes(), target.run_bytes());
    std::memcpy(target.data(), source.data(), static_cast<std::size_t>(bytes));
    source.advance(bytes);
    target.advance(bytes);
  }
}

}  // namespace contextile
