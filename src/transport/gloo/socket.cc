#include "transport/gloo/socket.h"

#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

#include "base/interrupt.h"

namespace contextile {

void Socket::close() const {
  const int error = errno;  // says what went wrong with the socket
  if (fd_ >= 0) ::close(fd_);
  errno = error;
}

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 1'000'000));
}

bool wait_for(const Socket& socket, short events, Clock::time_point deadline) {
  return poll_until(socket.fd(), events, deadline);
}

bool send_all(const Socket& socket, std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    if (!wait_for(socket, POLLOUT, deadline)) return false;
    const ssize_t sent =
        ::send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    bytes.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(sent, 0)));
  }
  return true;
}

bool receive_all(const Socket& socket, char* bytes, std::size_t size, Clock::time_point deadline) {
  while (size > 0) {
    if (!wait_for(socket, POLLIN, deadline)) return false;
    const ssize_t received = ::recv(socket.fd(), bytes, size, MSG_DONTWAIT);
    if (received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR)) return false;
    bytes += std::max<ssize_t>(received, 0);
    size -= static_cast<std::size_t>(std::max<ssize_t>(received, 0));
  }
  return true;
}

HostAndPort address_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (::getsockname(socket.fd(), generic, &size) != 0 ||
      ::getnameinfo(generic, size, host.data(), host.size(), port.data(), port.size(),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  return {host.data(), port.data()};
}

Socket connect_to(const sockaddr& address, socklen_t size, Clock::time_point deadline) {
  Socket socket(::socket(address.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid() || ::connect(socket.fd(), &address, size) == 0) return socket;
  if (errno != EINPROGRESS) return {};
  if (!wait_for(socket, POLLOUT, deadline)) {
    errno = ETIMEDOUT;
    return {};
  }
  int error = 0;
  socklen_t error_size = sizeof(error);
  ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &error_size);
  errno = error;
  return error == 0 ? std::move(socket) : Socket();
}

Socket listen_at(const sockaddr& address, socklen_t size, int backlog) {
  Socket socket(::socket(address.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (!socket.valid() ||
      ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(socket.fd(), &address, size) != 0 || ::listen(socket.fd(), backlog) != 0) {
    return {};
  }
  return socket;
}

}  // namespace contextile
