#include "store/redis/connection.h"

#include <hiredis/hiredis.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/interrupt.h"
#include "base/quote.h"
#include "contextile/advanced/store.h"

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

// The longest line of an answer: a status, an error, a number or the size of a value.
constexpr std::size_t kMaxLineBytes = std::size_t{64} << 10;

// The size that a value or an array states in its first line, -1 if there is none. Throws
// RedisRefusal on one that no answer to a command of ours has.
std::size_t stated_bytes(std::string_view line) {
  const char kind = line.front();
  const std::string_view digits = line.substr(1);
  std::int64_t size = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  constexpr std::int64_t kNothing = -1;
  const bool is_number = error == std::errc() && end == digits.data() + digits.size();
  if (is_number && size == kNothing) return 0;
  if (kind == '*') throw RedisRefusal(fmt::format("an array of {} values", quote(digits)));
  if (!is_number || size < 0 || std::cmp_greater(size, kMaxStoreValueBytes)) {
    throw RedisRefusal(fmt::format("a value of {} bytes, of which at most {} are stored",
                                   quote(digits), kMaxStoreValueBytes));
  }
  return static_cast<std::size_t>(size);
}

// How many bytes an answer that begins so may have; none if its first line is not whole yet. Throws
// RedisRefusal on answers that no command of ours has, before hiredis reads them: it reserves
// memory for as many elements as an array announces.
std::optional<std::size_t> max_answer_bytes(std::string_view begin) {
  constexpr std::string_view kLines = "+-:";
  constexpr std::string_view kSized = "$*";
  if (kLines.find(begin.front()) != std::string_view::npos) return kMaxLineBytes;
  if (kSized.find(begin.front()) == std::string_view::npos) {
    throw RedisRefusal("an answer that begins with " + quote(begin));
  }
  const std::size_t line = begin.find('\r');
  if (line == std::string_view::npos) return std::nullopt;
  constexpr std::size_t kLineEnds = 4;  // two, of two bytes each
  return line + stated_bytes(begin.substr(0, line)) + kLineEnds;
}

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
  send({command.get(), static_cast<std::size_t>(size)}, timeout);
  const std::unique_ptr<redisReply, FreeReply> reply(
      static_cast<redisReply*>(read_answer(timeout)));
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
      throw RedisRefusal(quote(error));
    }
    default:
      throw RedisRefusal(fmt::format("an answer of kind {}", reply->type));
  }
  return result;
}

// Reads one answer. The caller frees it. It waits for each part of it in slices, so that an
// interrupt ends the wait.
void* RedisConnection::read_answer(Milliseconds timeout) {
  std::optional<std::size_t> most;
  while (true) {
    if (!poll_until(context_->fd, POLLIN, Clock::now() + timeout)) {
      throw ConnectionLost("no answer within the time for it");
    }
    if (redisBufferRead(context_.get()) != REDIS_OK) fail_lost("read");
    const redisReader& reader = *context_->reader;
    const std::string_view unread(reader.buf + reader.pos, reader.len - reader.pos);
    if (unread.empty()) continue;
    if (!most) most = max_answer_bytes(unread);
    if (unread.size() > most.value_or(kMaxLineBytes)) {
      throw RedisRefusal(
          fmt::format("more than {} bytes of an answer", most.value_or(kMaxLineBytes)));
    }
    if (!most) continue;
    void* answer = nullptr;
    if (redisGetReplyFromReader(context_.get(), &answer) != REDIS_OK) fail_lost("read");
    if (answer != nullptr) return answer;
  }
}

// hiredis itself would write in a way that ends the process (SIGPIPE) when the server is gone. With
// nothing left to write it does not.
void RedisConnection::send(std::string_view bytes, Milliseconds timeout) {
  while (!bytes.empty()) {
    if (!poll_until(context_->fd, POLLOUT, Clock::now() + timeout)) {
      throw ConnectionLost("nothing was taken within the time for an answer");
    }
    const ssize_t sent =
        ::send(context_->fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) continue;
    if (sent < 0) throw ConnectionLost(std::strerror(errno));
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

void RedisConnection::fail_lost(std::string_view what) const {
  const bool timed_out = context_->err == REDIS_ERR_IO && (errno == EAGAIN || errno == EWOULDBLOCK);
  throw ConnectionLost(timed_out ? "no answer within the time for it"
                                 : fmt::format("{}: {}", what, context_->errstr));
}

}  // namespace contextile
