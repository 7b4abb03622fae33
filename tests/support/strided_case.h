// Random lists of strided segments, for copies between lists that are cut differently.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "contextile/extend/transport.h"

namespace contextile {

// A list of segments as places in a memory.
class SegmentPlaces {
 public:
  // The rows have `width` times 1 to 40 bytes and begin at multiples of `width`. Some distances are
  // those of rows without a gap.
  SegmentPlaces(Rng& rng, std::int64_t num_bytes, std::int64_t width) {
    const auto up_to = [&](std::int64_t most) {
      return static_cast<std::int64_t>(rng.next() % static_cast<std::uint64_t>(most + 1));
    };
    while (num_bytes > 0) {
      const std::int64_t row = std::min(num_bytes, width * (1 + up_to(39)));
      const std::int64_t rows = std::min(num_bytes / row, 1 + up_to(8));
      const std::int64_t stride = row + width * up_to(3);
      size_bytes_ += width * up_to(3);
      places_.emplace_back(size_bytes_, Segment{nullptr, row, rows, stride});
      size_bytes_ += rows * stride;
      num_bytes -= rows * row;
    }
  }

  // Bytes of the memory that the list needs.
  [[nodiscard]] std::int64_t size_bytes() const { return size_bytes_; }
  [[nodiscard]] std::vector<Segment> in(std::byte* memory) const {
    std::vector<Segment> segments;
    for (auto [place, segment] : places_) {
      segment.data = memory + place;
      segments.push_back(segment);
    }
    return segments;
  }

 private:
  std::vector<std::pair<std::int64_t, Segment>> places_;
  std::int64_t size_bytes_ = 0;
};

}  // namespace contextile
