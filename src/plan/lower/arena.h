// Places ranges of any size in a linear arena and reuses what was released.
#pragma once

#include <cstdint>
#include <map>

namespace contextile {

// Units are the caller's (tokens, bytes). Allocates first fit from the bottom, so placement is
// deterministic.
class Arena {
 public:
  // Returns the lowest free place of `size` > 0 units. O(free ranges).
  [[nodiscard]] std::int64_t allocate(std::int64_t size);
  // Releases exactly one range that `allocate(size)` returned.
  void release(std::int64_t offset, std::int64_t size);
  // One past the highest unit ever used.
  [[nodiscard]] std::int64_t extent() const { return extent_; }

 private:
  std::map<std::int64_t, std::int64_t> free_;  // offset → size, disjoint, never touching each other
  std::int64_t extent_ = 0;
};

}  // namespace contextile
