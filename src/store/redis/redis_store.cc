// Values on a Redis server. Each is a list of one element, because Redis waits for lists only:
// BLMOVE from a list to itself waits for the element and leaves it, and its end of life, in place.
// An operation of several commands is a script, which the server runs as one.

#include <algorithm>
#include <array>
#include <initializer_list>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/quote.h"
#include "store/implementations.h"
#include "store/redis/connection.h"
#include "store/redis_address.h"

namespace contextile {
namespace {

using std::chrono::milliseconds;

constexpr std::string_view kPut =
    "if redis.call('exists',KEYS[1])==1 then return 0 end "
    "redis.call('rpush',KEYS[1],ARGV[1]) redis.call('pexpire',KEYS[1],ARGV[2]) return 1";
constexpr std::string_view kReplace =
    "redis.call('del',KEYS[1]) "
    "redis.call('rpush',KEYS[1],ARGV[1]) redis.call('pexpire',KEYS[1],ARGV[2]) return 1";
constexpr std::string_view kRenew =
    "if redis.call('lindex',KEYS[1],0)~=ARGV[1] then return 0 end "
    "return redis.call('pexpire',KEYS[1],ARGV[2])";

// The server holds a waiting call for no longer than this, so that one that is gone is noticed.
constexpr milliseconds kLongestWait{1000};
constexpr milliseconds kLongestConnect{2000};

std::string_view as_text(std::span<const std::uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class RedisStore : public Store {
 public:
  RedisStore(RedisAddress address, const StoreOptions& options)
      : address_(std::move(address)), name_(address_.text()), timeout_(options.timeout) {
    static_cast<void>(call({"open", ""}, {"PING"}));
  }

  [[nodiscard]] std::string_view name() const override { return name_; }

 protected:
  [[nodiscard]] bool do_put(Key key, Bytes value, Milliseconds expiry) override {
    const auto [reply, again] = call_script({"put", key}, kPut, value, expiry);
    if (reply.number == 1 || !again) return reply.number == 1;
    // The first attempt may have stored it before the answer was lost.
    const std::optional<StoreValue> found = do_get(key);
    return found && std::equal(found->begin(), found->end(), value.begin(), value.end());
  }

  void do_replace(Key key, Bytes value, Milliseconds expiry) override {
    static_cast<void>(call_script({"replace", key}, kReplace, value, expiry));
  }

  [[nodiscard]] std::optional<StoreValue> do_get(Key key) override {
    return value_of({"get", key}, call({"get", key}, {"LINDEX", key, "0"}).reply);
  }

  [[nodiscard]] std::optional<StoreValue> do_pull(Key key, Milliseconds timeout) override {
    const Clock::time_point deadline = Clock::now() + timeout;
    while (true) {
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      if (left <= milliseconds(0)) return do_get(key);  // the server would wait forever
      const milliseconds wait = std::min(left, kLongestWait);
      const std::string seconds = fmt::format("{}.{:03}", wait.count() / 1000, wait.count() % 1000);
      RedisReply reply =
          call({"pull", key}, {"BLMOVE", key, key, "LEFT", "LEFT", seconds}, wait).reply;
      if (reply.kind != RedisReply::Kind::kNothing) {
        return value_of({"pull", key}, std::move(reply));
      }
    }
  }

  [[nodiscard]] bool do_erase(Key key) override {
    return call({"erase", key}, {"UNLINK", key}).reply.number > 0;
  }

  [[nodiscard]] bool do_renew(Key key, Bytes value, Milliseconds expiry) override {
    return call_script({"renew", key}, kRenew, value, expiry).reply.number == 1;
  }

 private:
  struct Operation {
    std::string_view name;
    Key key;
  };
  struct Answer {
    RedisReply reply;
    bool again = false;  // the command was sent before, its answer lost
  };

  Answer call_script(Operation operation, std::string_view script, Bytes value,
                     Milliseconds expiry) {
    const std::string ms = std::to_string(expiry.count());
    Answer answer = call(operation, {"EVAL", script, "1", operation.key, as_text(value), ms});
    if (answer.reply.kind != RedisReply::Kind::kNumber) fail(operation, "expected a number");
    return answer;
  }

  // Tries until the timeout, with a new connection each time. `waits` is the time that the server
  // may take in addition.
  Answer call(Operation operation, std::initializer_list<std::string_view> words,
              milliseconds waits = milliseconds(0)) {
    constexpr milliseconds kLongestPause{250};
    const Clock::time_point started = Clock::now();
    std::int64_t tries = 0;
    for (milliseconds pause{10};; pause = std::min(2 * pause, kLongestPause)) {
      ++tries;
      const auto since = [&] {
        return std::chrono::duration_cast<milliseconds>(Clock::now() - started);
      };
      std::string lost;
      try {
        std::unique_ptr<RedisConnection> connection = borrow();
        Answer answer{connection->call({words.begin(), words.size()}, timeout_ + waits), tries > 1};
        give_back(std::move(connection));
        return answer;
      } catch (const ConnectionLost& error) {
        lost = error.what();
        drop_idle();
      } catch (const RedisRefusal& error) {
        fail(operation, fmt::format("expected an answer, found {}", error.what()));
      }
      if (since() >= timeout_) {
        fail(operation, fmt::format("expected a Redis server, found none in {} ms ({} tries): {}",
                                    since().count(), tries, lost));
      }
      sleep_for(pause);
    }
  }

  std::optional<StoreValue> value_of(Operation operation, RedisReply reply) {
    if (reply.kind == RedisReply::Kind::kNothing) return std::nullopt;
    if (reply.kind != RedisReply::Kind::kText) fail(operation, "expected a value, found a number");
    return std::move(reply.text);
  }

  [[noreturn]] void fail(Operation operation, std::string_view what) const {
    if (operation.key.empty()) fail_io("store {}: {}: {}", name_, operation.name, what);
    fail_io("store {}: {} {}: {}", name_, operation.name, quote(operation.key), what);
  }

  // A waiting call has a connection of its own, so that it holds up no other.
  std::unique_ptr<RedisConnection> borrow() {
    {
      const std::scoped_lock lock(mutex_);
      // In a child made by fork: connections that the parent uses, too.
      std::erase_if(idle_, [](const auto& connection) { return connection->is_forked(); });
      if (!idle_.empty()) {
        std::unique_ptr<RedisConnection> connection = std::move(idle_.back());
        idle_.pop_back();
        return connection;
      }
    }
    return std::make_unique<RedisConnection>(address_, std::min(timeout_, kLongestConnect));
  }

  void give_back(std::unique_ptr<RedisConnection> connection) {
    const std::scoped_lock lock(mutex_);
    idle_.push_back(std::move(connection));
  }

  void drop_idle() {
    const std::scoped_lock lock(mutex_);
    idle_.clear();
  }

  const RedisAddress address_;
  const std::string name_;
  const milliseconds timeout_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<RedisConnection>> idle_;
};

}  // namespace

std::string_view redis_missing() { return ""; }

std::unique_ptr<Store> open_redis_store(std::string_view rest, const StoreOptions& options) {
  return std::make_unique<RedisStore>(parse_redis_address(rest), options);
}

std::unique_ptr<Store> open_redis_unix_store(std::string_view rest, const StoreOptions& options) {
  return std::make_unique<RedisStore>(parse_redis_socket(rest), options);
}

}  // namespace contextile
