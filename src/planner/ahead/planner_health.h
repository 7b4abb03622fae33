// The state of a planner, for those that wait for its plans.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"

namespace contextile {

// The reason of a failure as others get it: at most kMaxReasonBytes of it, printable on one line.
inline constexpr std::size_t kMaxReasonBytes = 500;
[[nodiscard]] std::string reason_text(std::string_view reason);

// The troubles of a planner of this process. Any number of threads may call.
class PlannerHealth {
 public:
  using Log = std::function<void(std::string_view)>;

  // log: gets a line when the store begins to fail, when it answers again, and at the end.
  explicit PlannerHealth(Log log) : log_(std::move(log)) {}

  // A thread's call of the store fails, for the first time and then again.
  void store_begins_to_fail(std::string_view why);
  void store_fails_again(std::string_view why);
  // That call has succeeded, or is given up.
  void store_answers();
  void give_store_up();
  // Planning has ended for good.
  void end(std::string_view why);

  // Why planning has ended; none if it goes on.
  [[nodiscard]] std::optional<std::string> end_reason() const;
  // Why no plans come at the moment, in words that go on from "found none: "; none if they do.
  [[nodiscard]] std::optional<std::string> trouble() const;

 private:
  void tell(const std::string& line) const;

  const Log log_;
  mutable std::mutex mutex_;      // guards the members below
  std::int32_t num_failing_ = 0;  // threads whose call of the store fails
  Clock::time_point failing_since_{};
  std::string failing_why_;
  std::optional<std::string> ended_;
};

}  // namespace contextile
