#include "serving/server/engine_health.h"

#include <fmt/format.h>

#include <string_view>

namespace contextile {

void EngineHealth::note_start(std::int32_t num_ranks) {
  const std::lock_guard lock(mutex_);
  if (ranks_at_start_ == 0) ranks_at_start_ = num_ranks;
  ranks_ = num_ranks;
  last_step_ = Clock::now();
  state_ = State::kRunning;
}

void EngineHealth::note_lost() {
  const std::lock_guard lock(mutex_);
  state_ = State::kLost;
}

std::int64_t EngineHealth::note_step(const Scheduler& scheduler) {
  const std::lock_guard lock(mutex_);
  const std::int64_t preempted = scheduler.stats().num_preemptions - stats_.num_preemptions;
  last_step_ = Clock::now();
  stats_ = scheduler.stats();
  num_running_ = scheduler.num_running();
  num_waiting_ = scheduler.num_waiting();
  free_pages_ = scheduler.cache().free_pages();
  return preempted;
}

std::pair<int, std::string> EngineHealth::now(std::chrono::milliseconds slow_step) const {
  const std::lock_guard lock(mutex_);
  switch (state_) {
    case State::kStarting:
      return {503, "starting"};
    case State::kLost:
      return {503, "lost: ranks are gone, and no others have taken over"};
    case State::kRunning:
      break;
  }
  const auto since = Clock::now() - last_step_;
  if (since > slow_step) {
    return {503, fmt::format("degraded: no step has ended for {} s",
                             std::chrono::duration_cast<std::chrono::seconds>(since).count())};
  }
  if (ranks_ < ranks_at_start_) {
    return {200, fmt::format("degraded: {} of {} ranks are left", ranks_, ranks_at_start_)};
  }
  return {200, "ok"};
}

std::string EngineHealth::metrics() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  const auto add = [&](std::string_view name, std::string_view type, std::string_view help,
                       std::int64_t value) {
    text +=
        fmt::format("# HELP contextile_{0} {2}\n# TYPE contextile_{0} {1}\ncontextile_{0} {3}\n",
                    name, type, help, value);
  };
  add("requests_running", "gauge", "Requests that have pages.", num_running_);
  add("requests_waiting", "gauge", "Requests that wait for room.", num_waiting_);
  add("kv_pages_free", "gauge", "Pages of a rank that no request uses.", free_pages_);
  add("steps_total", "counter", "Steps of the engines.", stats_.num_steps);
  add("prompt_tokens_total", "counter", "Tokens of prompts that have begun.",
      stats_.num_prompt_tokens);
  add("cached_tokens_total", "counter", "Tokens of these that were in the cache.",
      stats_.num_cached_tokens);
  add("computed_tokens_total", "counter", "Tokens computed, those computed again included.",
      stats_.num_computed_tokens);
  add("output_tokens_total", "counter", "Tokens given out.", stats_.num_output_tokens);
  add("draft_tokens_total", "counter", "Drafts of speculative decoding that were computed.",
      stats_.num_draft_tokens);
  add("accepted_draft_tokens_total", "counter", "Drafts that were the tokens given out.",
      stats_.num_accepted_tokens);
  add("preemptions_total", "counter", "Requests that gave their pages back before their end.",
      stats_.num_preemptions);
  return text;
}

}  // namespace contextile
