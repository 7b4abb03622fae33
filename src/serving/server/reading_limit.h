// The time that a server takes to make a request's bytes tokens.
#pragma once

#include <fmt/format.h>

#include <atomic>
#include <chrono>

#include "base/look.h"
#include "serving/server/protocol.h"

namespace contextile {

// Returns a look that ends the reading of a request, which begins now: with 503 once the server
// stops, with 400 after a minute. `stops` has to outlive it.
inline Look reading_limit(const std::atomic<bool>& stops) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::seconds kMostTime{60};
  return [&stops, end = Clock::now() + kMostTime, kMostTime] {
    if (stops) {
      throw ProtocolFailure({.status = 503,
                             .type = "server_error",
                             .message = "the server stops",
                             .logged = "the server stops"});
    }
    if (Clock::now() < end) return;
    throw ProtocolFailure(
        {.message = fmt::format("request: expected one that becomes tokens within {} s, found one "
                                "that takes longer",
                                kMostTime.count()),
         .logged = "request, one that takes too long to become tokens"});
  };
}

}  // namespace contextile
