#include "cli/commands/run_beat.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>

#include "base/quote.h"
#include "contextile/base.h"

namespace contextile {
namespace {

using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kInterval{1'000};
constexpr Milliseconds kExpiry{5'000};
constexpr Milliseconds kPoll{100};

std::string key_of(const std::string& run_id) { return run_id + "/goes on"; }
std::string key_of_refused(const std::string& run_id) { return run_id + "/refused"; }

StoreValue beat_of(std::int64_t number) {
  const std::string text = std::to_string(number);
  return {text.begin(), text.end()};
}

}  // namespace

RunBeat::RunBeat(Store& store, const std::string& run_id,
                 std::function<void(const std::string& rank)> returned)
    : thread_([&store, key = key_of(run_id), key_of_refused = key_of_refused(run_id),
               returned = std::move(returned)](const std::stop_token& stop) {
        std::mutex mutex;
        std::condition_variable_any ended;
        std::unique_lock lock(mutex);
        try {
          for (std::int64_t number = 0; !stop.stop_requested(); ++number) {
            store.replace(key, beat_of(number), kExpiry);
            if (const auto rank = store.get(key_of_refused)) {
              store.erase(key_of_refused);
              returned({rank->begin(), rank->end()});
            }
            ended.wait_for(lock, stop, kInterval, [] { return false; });
          }
          store.erase(key);
        } catch (const Error&) {
        }
      }) {}

void refuse_if_running(Store& store, const std::string& run_id, const std::string& rank) {
  const std::string key = key_of(run_id);
  const std::optional<StoreValue> first = store.get(key);
  while (first) {
    const std::optional<StoreValue> now = store.get(key);
    if (!now) return;
    if (*now != *first) {
      store.replace(key_of_refused(run_id), StoreValue{rank.begin(), rank.end()}, kExpiry);
      throw TransportError(fmt::format(
          "serve: run {} goes on without this rank, whose share of the cache is lost: end the "
          "server and start all ranks again, or start with another --run-id",
          quote(run_id)));
    }
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace contextile
