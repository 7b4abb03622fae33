// Ports ordered by the share that they can give to a flow.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace contextile {

using PortShare = std::pair<double, std::size_t>;  // (share of a waiting flow, port)

// A heap with four children per node: most updates replace the least entry by one that is hardly
// larger, and few levels then have to be searched.
class PortQueue {
 public:
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] const PortShare& least() const { return heap_.front(); }
  void clear() { heap_.clear(); }

  void push(const PortShare& entry) {
    std::size_t at = heap_.size();
    heap_.push_back(entry);
    for (; at > 0 && entry < heap_[(at - 1) / kChildren]; at = (at - 1) / kChildren) {
      heap_[at] = heap_[(at - 1) / kChildren];
    }
    heap_[at] = entry;
  }
  void replace_least(const PortShare& entry) {
    std::size_t at = 0;
    for (std::size_t child = 1; child < heap_.size(); child = kChildren * at + 1) {
      const std::size_t end = std::min(child + kChildren, heap_.size());
      std::size_t least = child;
      for (std::size_t c = child + 1; c < end; ++c) {
        if (heap_[c] < heap_[least]) least = c;
      }
      if (!(heap_[least] < entry)) break;
      heap_[at] = heap_[least];
      at = least;
    }
    heap_[at] = entry;
  }
  void pop() {
    const PortShare last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) replace_least(last);
  }

 private:
  static constexpr std::size_t kChildren = 4;

  std::vector<PortShare> heap_;
};

}  // namespace contextile
