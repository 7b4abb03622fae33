#include "transport/cuda/run_copies.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "transport/strided_copy.h"

namespace contextile::cuda {
namespace {

// The driver's limit of the distance between rows of a copy (CU_DEVICE_ATTRIBUTE_MAX_PITCH).
constexpr std::int64_t kLargestStride = (std::int64_t{1} << 31) - 1;

// Merges runs of equal length at equal distances on both sides into one copy. Runs of different
// segments stay apart: what lies between them may be another tensor's memory, or not allocated.
class RunCopies {
 public:
  RunCopies(Driver& driver, Stream stream) : driver_(driver), stream_(stream) {}

  void add(std::byte* to, std::byte* from, std::int64_t bytes) {
    if (to_.num_rows > 0 && !extend(to, from, bytes)) flush();
    if (to_.num_rows > 0) return;
    to_ = {to, bytes, 1, bytes};
    from_ = {from, bytes, 1, bytes};
  }
  void flush() {
    if (to_.num_rows > 0) driver_.copy(stream_, to_, from_);
    to_ = {};
    from_ = {};
  }

 private:
  bool extend(std::byte* to, std::byte* from, std::int64_t bytes) {
    if (bytes != to_.row_bytes) return false;
    const std::int64_t to_stride = to - (to_.data + (to_.num_rows - 1) * to_.stride_bytes);
    const std::int64_t from_stride =
        from - (from_.data + (from_.num_rows - 1) * from_.stride_bytes);
    if (to_stride < bytes || from_stride < bytes) return false;
    if (to_stride > kLargestStride || from_stride > kLargestStride) return false;
    const bool is_second = to_.num_rows == 1;
    if (!is_second && (to_stride != to_.stride_bytes || from_stride != from_.stride_bytes)) {
      return false;
    }
    to_.stride_bytes = to_stride;
    from_.stride_bytes = from_stride;
    ++to_.num_rows;
    ++from_.num_rows;
    return true;
  }

  Driver& driver_;
  Stream stream_;
  Rows to_;
  Rows from_;
};

}  // namespace

void copy_on_stream(Driver& driver, Stream stream, std::span<const Segment> from,
                    std::span<const Segment> to) {
  SegmentCursor source(from);
  SegmentCursor target(to);
  RunCopies copies(driver, stream);
  std::pair<std::size_t, std::size_t> segments = {source.segment(), target.segment()};
  while (!source.done() && !target.done()) {
    const std::pair now = {source.segment(), target.segment()};
    if (std::exchange(segments, now) != now) copies.flush();
    const std::int64_t bytes = std::min(source.run_bytes(), target.run_bytes());
    copies.add(target.data(), source.data(), bytes);
    source.advance(bytes);
    target.advance(bytes);
  }
  copies.flush();
}

}  // namespace contextile::cuda
