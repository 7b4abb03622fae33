// One connection to a Redis server.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "base/process_owner.h"
#include "store/redis_address.h"

struct redisContext;

namespace contextile {

// The connection cannot be made or is lost. Another one may succeed.
class ConnectionLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// The server has refused, or its answer is none that a command of ours has; what() quotes what was
// found. No other connection would do better.
class RedisRefusal : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct RedisReply {
  enum class Kind : std::uint8_t { kNothing, kNumber, kText };
  Kind kind = Kind::kNothing;
  std::int64_t number = 0;
  std::vector<std::uint8_t> text = {};
};

class RedisConnection {
 public:
  using Milliseconds = std::chrono::milliseconds;

  // Connects, authenticates and chooses the database, each within `timeout`. Throws ConnectionLost,
  // RedisRefusal.
  RedisConnection(const RedisAddress& address, Milliseconds timeout);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  // Sends a command and waits for its answer, at most `timeout` without a byte moving. An answer
  // may be a value of at most kMaxStoreValueBytes, a number, a status or nothing: one that
  // announces an array or a larger value is refused before memory is reserved for it. Throws
  // ConnectionLost and RedisRefusal, after both of which the connection is of no use.
  [[nodiscard]] RedisReply call(std::span<const std::string_view> words, Milliseconds timeout);

  // Returns true in a child that inherited the connection by fork.
  [[nodiscard]] bool is_forked() const { return owner_.is_forked(); }

 private:
  struct Free {
    void operator()(redisContext* context) const;
  };

  void send(std::string_view bytes, Milliseconds timeout);
  [[nodiscard]] void* read_answer(Milliseconds timeout);
  [[noreturn]] void fail_lost(std::string_view what) const;

  const ProcessOwner owner_;
  std::unique_ptr<redisContext, Free> context_;
};

}  // namespace contextile
