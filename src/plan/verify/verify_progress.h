// The progress of verification.
#pragma once

#include <cstdint>
#include <exception>
#include <utility>

#include "base/interrupt.h"
#include "contextile/base.h"
#include "contextile/plan.h"

namespace contextile {

// Reports to a hook now and then how many of a plan's instructions have been run.
class VerifyProgress {
 public:
  // Wraps an exception of the hook. It is not an Error, which verification would attribute to the
  // plan.
  struct Stopped {
    std::exception_ptr reason;
  };

  // An empty hook gets no reports.
  VerifyProgress(const Plan& plan, ProgressHook hook) : hook_(std::move(hook)) {
    if (!hook_) return;
    for (const PlanRound& round : plan.rounds) {
      for (const DeviceProgram& device : round.devices) {
        for (const ProgramPair& pair : device.programs) {
          for (const auto* program : {&pair.forward, &pair.backward}) {
            if (*program) total_ += std::ssize((*program)->instructions);
          }
        }
      }
    }
  }

  void add_instruction() {
    constexpr std::int64_t kBetween = 1024;
    check_interrupt();
    if (++done_ % kBetween == 0) tell();
  }

 private:
  void tell() const {
    if (!hook_) return;
    try {
      hook_("verifying", done_, total_);
    } catch (...) {
      throw Stopped{std::current_exception()};
    }
  }

  ProgressHook hook_;
  std::int64_t done_ = 0;
  std::int64_t total_ = 0;
};

}  // namespace contextile
