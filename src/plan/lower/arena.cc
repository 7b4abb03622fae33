#include "plan/lower/arena.h"

#include <iterator>

namespace contextile {

std::int64_t Arena::allocate(std::int64_t size) {
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    const auto [offset, room] = *it;
    const bool at_top = offset + room == extent_;
    if (room < size && !at_top) continue;
    free_.erase(it);
    if (room > size) free_.emplace(offset + size, room - size);
    if (room < size) extent_ = offset + size;  // the topmost hole grows
    return offset;
  }
  const std::int64_t offset = extent_;
  extent_ += size;
  return offset;
}

void Arena::release(std::int64_t offset, std::int64_t size) {
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      previous->second += size;
      return;
    }
  }
  free_.emplace_hint(next, offset, size);
}

}  // namespace contextile
