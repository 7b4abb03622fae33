#include "store/redis/connection.h"

#include <hiredis/hiredis.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/quote.h"

namespace contextile {
namespace {

timeval as_timeval(std::chrono::milliseconds time) {
  constexpr std::int64_t kMilli = 1000;
  timeval value{};
  value.tv_sec = time.count() / kMilli;
  value.tv_usec = time.count() % kMilli * kMilli;
  return value;
}

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
struct FreeCommand {
  void operator()(char* command) const { redisFreeCommand(command); }
};

// "LOADING Redis is loading the dataset in memory": the server is on its way.
bool is_passing(std::string_view error) {
  return error.starts_with("LOADING") || error.starts_with("BUSY") ||
         error.starts_with("MASTERDOWN");
}

}  // namespace

void RedisConnection::Free::operator()(redisContext* context) const { redisFree(context); }

RedisConnection::RedisConnection(const RedisAddress& address, Milliseconds timeout) {
  const timeval time = as_timeval(timeout);
  context_.reset(address.host.empty()
                     ? redisConnectUnixWithTimeout(address.socket.c_str(), time)
                     : redisConnectWithTimeout(address.host.c_str(), address.port, time));
  if (context_ == nullptr) throw ConnectionLost("no memory for a connection");
  if (context_->err != 0) fail_lost("connect");
  if (!address.password.empty()) {
    std::vector<std::string_view> words = {"AUTH"};
    if (!address.user.empty()) words.push_back(address.user);
    words.push_back(address.password);
    static_cast<void>(call(words, timeout));
  }
  if (address.database != 0) {
    const std::string number = std::to_string(address.database);
    static_cast<void>(call(std::array<std::string_view, 2>{"SELECT", number}, timeout));
  }
}

RedisConnection::~RedisConnection() = default;

RedisReply RedisConnection::call(std::span<const std::string_view> words, Milliseconds timeout) {
  std::vector<const char*> texts;
  std::vector<std::size_t> sizes;
  for (const std::string_view word : words) {
    texts.push_back(word.data() == nullptr ? "" : word.data());
    sizes.push_back(word.size());
  }
  char* formatted = nullptr;
  const auto size = redisFormatCommandArgv(&formatted, static_cast<int>(words.size()), texts.data(),
                                           sizes.data());
  const std::unique_ptr<char, FreeCommand> command(formatted);
  if (size < 0) throw std::bad_alloc();
  set_timeout(timeout);
  send({command.get(), static_cast<std::size_t>(size)});

  void* answer = nullptr;
  if (redisGetReply(context_.get(), &answer) != REDIS_OK) fail_lost("read");
  const std::unique_ptr<redisReply, FreeReply> reply(static_cast<redisReply*>(answer));
  RedisReply result;
  switch (reply->type) {
    case REDIS_REPLY_INTEGER:
      result.kind = RedisReply::Kind::kNumber;
      result.number = reply->integer;
      break;
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS:
      result.kind = RedisReply::Kind::kText;
      result.text.assign(reply->str, reply->str + reply->len);
      break;
    case REDIS_REPLY_NIL:
      break;
    case REDIS_REPLY_ERROR: {
      const std::string_view error(reply->str, reply->len);
      if (is_passing(error)) throw ConnectionLost(quote(error));
      throw RedisRefusal(std::string(error));
    }
    default:
      throw RedisRefusal(fmt::format("an answer of kind {}", reply->type));
  }
  return result;
}

void RedisConnection::set_timeout(Milliseconds timeout) {
  if (redisSetTimeout(context_.get(), as_timeval(timeout)) != REDIS_OK) fail_lost("set a timeout");
}

// hiredis itself would write in a way that ends the process (SIGPIPE) when the server is gone. With
// nothing left to write it does not.
void RedisConnection::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(context_->fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      throw ConnectionLost(errno == EAGAIN || errno == EWOULDBLOCK
                               ? "nothing was taken within the time for an answer"
                               : std::string(std::strerror(errno)));
    }
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void RedisConnection::fail_lost(std::string_view what) const {
  const bool timed_out = context_->err == REDIS_ERR_IO && (errno == EAGAIN || errno == EWOULDBLOCK);
  throw ConnectionLost(timed_out ? "no answer within the time for it"
                                 : fmt::format("{}: {}", what, context_->errstr));
}

}  // namespace contextile
