#include "serving/server/request_queue.h"

#include <algorithm>
#include <limits>
#include <set>
#include <utility>

namespace contextile {

std::optional<CallUpdate> Call::next(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [&] { return !updates_.empty(); });
  if (updates_.empty()) return std::nullopt;
  CallUpdate update = std::move(updates_.front());
  updates_.pop_front();
  return update;
}

void Call::put(CallUpdate update) {
  {
    const std::lock_guard lock(mutex_);
    updates_.push_back(std::move(update));
  }
  changed_.notify_one();
}

std::shared_ptr<Call> RequestQueue::submit(std::vector<GenerationRequest> requests) {
  auto call = std::make_shared<Call>();
  const std::lock_guard lock(mutex_);
  if (stopped_) {
    call->put({.failure = *stopped_, .is_internal = true});
    return call;
  }
  std::int32_t index = 0;
  for (GenerationRequest& request : requests) {
    do {
      request.id = RequestId(next_id_);
      next_id_ = next_id_ == std::numeric_limits<std::int32_t>::max() ? 0 : next_id_ + 1;
    } while (places_.contains(request.id));
    call->requests_.push_back(request.id);
    places_[request.id] = {call, index++, request};
    input_.arrivals.push_back(std::move(request));
  }
  changed_.notify_one();
  return call;
}

// A request that the engines have not received need not be named to them.
void RequestQueue::cancel_locked(RequestId request) {
  if (places_.erase(request) == 0) return;
  const auto waiting = std::ranges::find(input_.arrivals, request, &GenerationRequest::id);
  if (waiting != input_.arrivals.end()) {
    input_.arrivals.erase(waiting);
  } else {
    input_.cancelled.push_back(request);
  }
}

void RequestQueue::cancel(const Call& call, std::int32_t index) {
  const std::lock_guard lock(mutex_);
  cancel_locked(call.requests_.at(static_cast<std::size_t>(index)));
}

void RequestQueue::cancel(const Call& call) {
  const std::lock_guard lock(mutex_);
  for (const RequestId request : call.requests_) cancel_locked(request);
}

void RequestQueue::fail(const std::shared_ptr<Call>& call, CallUpdate update) {
  call->put(std::move(update));
  for (const RequestId request : call->requests_) cancel_locked(request);
}

void RequestQueue::stop(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  stopped_ = reason;
  while (!places_.empty()) {
    fail(std::shared_ptr<Call>(places_.begin()->second.call),
         {.failure = reason, .is_internal = true});
  }
  changed_.notify_one();
}

EngineInput RequestQueue::take(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  const auto has_work = [&] {
    return stopped_.has_value() || !places_.empty() || !input_.cancelled.empty();
  };
  changed_.wait_for(lock, patience, has_work);
  EngineInput input = std::exchange(input_, {});
  input.stop = stopped_.has_value();
  for (const GenerationRequest& request : input.arrivals) taken_.push_back(request.id);
  return input;
}

void RequestQueue::deliver(const EngineOutput& output) {
  const std::lock_guard lock(mutex_);
  for (const EngineRejection& rejection : output.rejections) {
    const auto found = places_.find(rejection.request);
    if (found == places_.end()) continue;
    const Place place = found->second;
    fail(place.call,
         {.index = place.index, .failure = rejection.reason, .is_full = rejection.is_full});
  }
  for (const RequestId request : std::exchange(taken_, {})) {
    const auto found = places_.find(request);
    if (found == places_.end()) continue;
    found->second.call->put({.index = found->second.index, .is_taken = true});
  }
  for (const EngineEvent& event : output.events) {
    const auto found = places_.find(event.request);
    if (found == places_.end()) continue;  // cancelled meanwhile
    if (!event.failure.empty()) {
      const Place place = found->second;
      fail(place.call, {.index = place.index, .failure = event.failure, .is_internal = true});
      continue;
    }
    found->second.call->put({.index = found->second.index, .event = event});
    if (event.finish) places_.erase(found);
  }
}

void RequestQueue::restart(const Scheduler& scheduler, const std::string& reason) {
  const std::lock_guard lock(mutex_);
  std::set<std::shared_ptr<Call>> lost;
  for (const auto& [id, place] : places_) {
    if (scheduler.has_begun(id)) lost.insert(place.call);
  }
  for (const auto& call : lost) fail(call, {.failure = reason, .is_internal = true});
  // New engines know none of the cancelled requests, and all remaining ones are new to them.
  input_ = {};
  taken_.clear();
  for (const auto& [id, place] : places_) input_.arrivals.push_back(place.request);
}

}  // namespace contextile
