// Copies between lists of strided segments in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "contextile/extend/transport.h"
#include "gpu/copy_list.h"
#include "gpu/driver.h"

namespace contextile::cuda {

// Gathers copies that do not overlap, and puts them on a stream with `flush`: one piece of memory
// as a copy of the driver, anything else as one launch for every CopyList::kMostRanges ranges.
class RunCopies {
 public:
  RunCopies(Driver& driver, Stream stream) : driver_(driver), stream_(stream) {}

  // Adds the copy of the bytes of `from`, in order, into `to`. Both have the same total size; they
  // may be cut differently.
  void add(std::span<const Segment> from, std::span<const Segment> to);
  void flush();

 private:
  void add_run(std::byte* to, const std::byte* from, std::int64_t bytes);
  [[nodiscard]] bool extend(std::byte* to, const std::byte* from, std::int64_t bytes);
  void end_range();
  void append(CopyRange range);
  void launch();

  Driver& driver_;
  Stream stream_;
  CopyRange open_;  // without rows if there is none
  CopyList list_;
};

}  // namespace contextile::cuda
