// Events of a driver, used again and again.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "gpu/driver.h"

namespace contextile::cuda {

// Events that are recorded again once nobody is left to wait for them.
class EventPool {
 public:
  explicit EventPool(Driver& driver) : driver_(driver) {}

  // An event that `uses` calls of `release` give back.
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
