// Long work that may have to end before it is done.
#pragma once

#include <cstddef>
#include <functional>

namespace contextile {

// Called by long work now and then. An exception that it throws ends the work. May be empty.
using Look = std::function<void()>;

// Calls a look once in 4096 steps, since looking may cost more than a step.
class RareLook {
 public:
  explicit RareLook(const Look& look) : look_(look) {}
  void operator()() {
    if (++num_steps_ % kStepsBetween == 0 && look_) look_();
  }

 private:
  static constexpr std::size_t kStepsBetween = 4096;

  const Look& look_;
  std::size_t num_steps_ = 0;
};

}  // namespace contextile
