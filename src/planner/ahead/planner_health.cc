#include "planner/ahead/planner_health.h"

#include <fmt/format.h>

#include "base/quote.h"

namespace contextile {

std::string reason_text(std::string_view reason) {
  const bool is_cut = reason.size() > kMaxReasonBytes;
  return without_orders(reason.substr(0, kMaxReasonBytes)) + (is_cut ? "…" : "");
}

void PlannerHealth::tell(const std::string& line) const {
  if (!log_) return;
  try {
    log_(line);
  } catch (...) {  // a log that fails does not end planning
  }
}

void PlannerHealth::store_begins_to_fail(std::string_view why) {
  {
    const std::scoped_lock lock(mutex_);
    failing_why_ = reason_text(why);
    if (num_failing_++ > 0) return;
    failing_since_ = Clock::now();
  }
  tell(fmt::format("planner: the store fails, trying again: {}", reason_text(why)));
}

void PlannerHealth::store_fails_again(std::string_view why) {
  const std::scoped_lock lock(mutex_);
  failing_why_ = reason_text(why);
}

void PlannerHealth::store_answers() {
  double seconds = 0;
  {
    const std::scoped_lock lock(mutex_);
    if (--num_failing_ > 0) return;
    seconds = seconds_since(failing_since_);
  }
  tell(fmt::format("planner: the store answers again after {:.1f} s", seconds));
}

void PlannerHealth::give_store_up() {
  const std::scoped_lock lock(mutex_);
  --num_failing_;
}

void PlannerHealth::end(std::string_view why) {
  {
    const std::scoped_lock lock(mutex_);
    if (ended_) return;
    ended_ = reason_text(why);
  }
  tell(fmt::format("planner: planning has ended: {}", reason_text(why)));
}

std::optional<std::string> PlannerHealth::end_reason() const {
  const std::scoped_lock lock(mutex_);
  return ended_;
}

std::optional<std::string> PlannerHealth::trouble() const {
  const std::scoped_lock lock(mutex_);
  if (ended_) return fmt::format("the planner of this process has ended: {}", *ended_);
  if (num_failing_ == 0) return std::nullopt;
  return fmt::format("to the planner of this process, the store has failed for {:.1f} s: {}",
                     seconds_since(failing_since_), failing_why_);
}

}  // namespace contextile
