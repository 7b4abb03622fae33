#include "serving/server/http_stream.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

namespace contextile {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kChunk = 16 << 10;
constexpr milliseconds kSlice{100};  // between two looks at the time

// Polls one socket and returns the events that came.
short poll_one(int socket, short events, milliseconds patience) {
  pollfd watched = {socket, events, 0};
  return ::poll(&watched, 1, static_cast<int>(patience.count())) > 0 ? watched.revents : short{0};
}

// True if the peer has closed its end, or the connection is broken.
bool peer_is_gone(int socket) {
  char byte = 0;
  const ssize_t size = ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return size == 0 || (size < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace

SocketStream::SocketStream(int socket, std::string in, const RequestHead& head,
                           const FrontLimits& limits)
    : socket_(socket),
      limits_(limits),
      in_(std::move(in)),
      head_bytes_(head_size(in_).value_or(0)),
      body_limit_(Clock::now() + limits.body_time),
      body_left_(head.content_length),
      is_chunked_(head.is_chunked),
      closes_(head.closes) {}

bool SocketStream::is_writable() const {
  if (is_broken_ || peer_is_gone(socket_)) return false;
  return wait_for_room();
}

ssize_t SocketStream::read(char* bytes, std::size_t size) {
  // A read ends with the head, and with the body if its length is known: the bytes behind it are
  // the next request.
  if (at_ < head_bytes_) {
    size = std::min(size, head_bytes_ - at_);
  } else if (is_chunked_) {
    return read_chunks(bytes, size);
  } else {
    size = std::min<std::size_t>(size, body_left_);
  }
  if (size == 0) return 0;
  if (at_ == in_.size() && !fill()) return -1;
  const std::size_t count = std::min(size, in_.size() - at_);
  std::copy_n(in_.data() + at_, count, bytes);
  if (at_ >= head_bytes_) body_left_ -= count;
  at_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t SocketStream::read_chunks(char* bytes, std::size_t size) {
  while (chunk_at_ == chunk_bytes_.size()) {
    chunk_bytes_.clear();
    chunk_at_ = 0;
    if (chunks_.is_done()) return 0;
    if (chunks_.is_malformed() || (at_ == in_.size() && !fill())) return -1;
    at_ += chunks_.read(std::string_view(in_).substr(at_), chunk_bytes_);
  }
  const std::size_t count = std::min(size, chunk_bytes_.size() - chunk_at_);
  std::copy_n(chunk_bytes_.data() + chunk_at_, count, bytes);
  chunk_at_ += count;
  return static_cast<ssize_t>(count);
}

ssize_t SocketStream::write(const char* bytes, std::size_t size) {
  std::size_t sent = 0;
  while (sent < size) {
    const ssize_t count = ::send(socket_, bytes + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count > 0) {
      sent += static_cast<std::size_t>(count);
    } else if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      is_broken_ = true;
      return -1;
    } else if (!wait_for_room()) {
      return -1;
    }
  }
  return static_cast<ssize_t>(sent);
}

void SocketStream::get_remote_ip_and_port(std::string& ip, int& port) const {
  ip.clear();
  port = 0;
}

void SocketStream::get_local_ip_and_port(std::string& ip, int& port) const {
  get_remote_ip_and_port(ip, port);
}

bool SocketStream::is_gone() const { return is_broken_ || peer_is_gone(socket_); }

bool SocketStream::may_go_on() const {
  const bool is_whole = is_chunked_ ? chunks_.is_done() : body_left_ == 0;
  return !is_broken_ && !closes_ && is_whole;
}

bool SocketStream::fill() {
  in_.clear();
  at_ = 0;
  head_bytes_ = 0;
  std::array<char, kChunk> bytes{};
  while (!is_broken_) {
    const ssize_t count = ::recv(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count > 0) {
      in_.assign(bytes.data(), static_cast<std::size_t>(count));
      return true;
    }
    const bool waits = count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
    if (!waits || Clock::now() >= body_limit_) break;
    static_cast<void>(poll_one(socket_, POLLIN, kSlice));
  }
  is_broken_ = true;
  return false;
}

bool SocketStream::wait_for_room() const {
  const auto limit = Clock::now() + limits_.write_time;
  while (true) {
    const short events = poll_one(socket_, POLLOUT, kSlice);
    if ((events & (POLLERR | POLLHUP | POLLNVAL)) != 0) break;
    if ((events & POLLOUT) != 0) return true;
    if (Clock::now() >= limit) break;
  }
  is_broken_ = true;
  return false;
}

}  // namespace contextile
