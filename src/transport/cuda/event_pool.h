// A pool of a driver's events.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "gpu/driver.h"

namespace contextile::cuda {

// Keeps events and hands one out again only when no work will wait for its last recording any more.
class EventPool {
 public:
  explicit EventPool(Driver& driver) : driver_(driver) {}

  // Returns an event that goes back to the pool after `uses` calls of `release`.
  Event take(std::int64_t uses) {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) {
      idle_.push_back(driver_.create_event());
      uses_left_.resize(std::max(uses_left_.size(), static_cast<std::size_t>(idle_.back().id) + 1));
    }
    const Event event = idle_.back();
    idle_.pop_back();
    uses_left_[static_cast<std::size_t>(event.id)] = uses;
    return event;
  }
  void release(Event event) {
    const std::lock_guard lock(mutex_);
    if (--uses_left_[static_cast<std::size_t>(event.id)] == 0) idle_.push_back(event);
  }

 private:
  Driver& driver_;
  std::mutex mutex_;
  std::vector<Event> idle_;
  std::vector<std::int64_t> uses_left_;  // by event
};

}  // namespace contextile::cuda
