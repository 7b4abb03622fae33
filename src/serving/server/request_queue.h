// The queue between the threads of clients and the thread that drives the engines.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "contextile/serving/engine.h"

namespace contextile {

// A client's news about one of its requests: a token, or the reason why there will be none.
struct CallUpdate {
  std::int32_t index = 0;  // of the request in its call
  bool is_taken = false;   // it is under way: neither a token nor a failure
  EngineEvent event = {};
  std::string failure = {};  // not empty: no token, and none follows for the whole call
  bool is_full = false;      // the failure: too many wait
  bool is_internal = false;  // the failure: not the client's
};

// A client's requests that belong together.
class Call {
 public:
  // The next update; none within the time. For the client's thread.
  [[nodiscard]] std::optional<CallUpdate> next(std::chrono::milliseconds patience);

 private:
  friend class RequestQueue;
  void put(CallUpdate update);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<CallUpdate> updates_;
  std::vector<RequestId> requests_;
};

class RequestQueue {
 public:
  // Gives the requests their numbers.
  [[nodiscard]] std::shared_ptr<Call> submit(std::vector<GenerationRequest> requests);
  // Cancels one of a call's requests, or all.
  void cancel(const Call& call, std::int32_t index);
  void cancel(const Call& call);
  // The engines' thread stops taking requests. Calls that are under way or come later fail with the
  // reason.
  void stop(const std::string& reason);

  // For the engines' thread: returns what came since the last call, and waits that long if nothing
  // is under way.
  [[nodiscard]] EngineInput take(std::chrono::milliseconds patience);
  void deliver(const EngineOutput& output);
  // Engines are lost. Calls whose requests had begun fail; the others are taken once more.
  void restart(const Scheduler& scheduler, const std::string& reason);

 private:
  struct Place {
    std::shared_ptr<Call> call;
    std::int32_t index = 0;
    GenerationRequest request;  // to begin again
  };
  void fail(const std::shared_ptr<Call>& call, CallUpdate update);
  void cancel_locked(RequestId request);

  std::mutex mutex_;
  std::condition_variable changed_;
  EngineInput input_;                  // not yet taken
  std::map<RequestId, Place> places_;  // of requests that are under way
  std::vector<RequestId> taken_;       // by the engines' thread, and not yet answered for
  std::int32_t next_id_ = 0;
  std::optional<std::string> stopped_;  // why
};

}  // namespace contextile
