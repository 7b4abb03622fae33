// Sockets of this process, and waits on them that end at a deadline.
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "base/clock.h"

namespace contextile {

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept {
    close();
    fd_ = other.release();
    return *this;
  }
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  // Returns the descriptor, which the caller closes.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }

 private:
  void close() const;
  int fd_ = -1;
};

// Waits for the events. Returns false once the deadline has passed.
[[nodiscard]] bool wait_for(const Socket& socket, short events, Clock::time_point deadline);
// The number of milliseconds for `poll` until the deadline, at least 0.
[[nodiscard]] int milliseconds_until(Clock::time_point deadline);

// Return false at the deadline, and if the connection ends.
[[nodiscard]] bool send_all(const Socket& socket, std::string_view bytes,
                            Clock::time_point deadline);
[[nodiscard]] bool receive_all(const Socket& socket, char* bytes, std::size_t size,
                               Clock::time_point deadline);

// An address in numbers.
struct HostAndPort {
  std::string host;
  std::string port;
};
[[nodiscard]] HostAndPort address_of(const Socket& socket);

// Returns a connection to the address, or an invalid socket with errno set.
[[nodiscard]] Socket connect_to(const sockaddr& address, socklen_t size,
                                Clock::time_point deadline);
// Returns a socket that listens at the address, with room for `backlog` connections that are not
// accepted yet, or an invalid one with errno set.
[[nodiscard]] Socket listen_at(const sockaddr& address, socklen_t size, int backlog);

}  // namespace contextile
