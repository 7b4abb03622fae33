// A rendezvous at rank 0's address. The other ranks send their introductions there. They receive
// the introductions of all ranks, or the reason why there is no group.

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/quote.h"
#include "transport/gloo/frame.h"
#include "transport/gloo/rendezvous.h"

namespace contextile {
namespace {

constexpr std::chrono::milliseconds kMostBetweenTries{100};
constexpr std::chrono::milliseconds kMostForGreeting{2'000};  // a silent stranger costs no more
// Bound on the introduction of a rank: a run, and an address for every rank.
constexpr std::uint64_t most_bytes(std::int32_t size) {
  return (std::uint64_t{1} << 16) + (std::uint64_t{1} << 10) * static_cast<std::uint64_t>(size);
}
// Bound on rank 0's answer: the introductions of all ranks, or why there is no group.
constexpr std::uint64_t most_answer_bytes(std::int32_t size) {
  return (std::uint64_t{1} << 16) + most_bytes(size) * static_cast<std::uint64_t>(size);
}
constexpr char kAll = 'A';
constexpr char kFailure = 'F';

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    close();
    fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  [[nodiscard]] int fd() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }

 private:
  void close() const {
    const int error = errno;  // says what went wrong with the socket
    if (fd_ >= 0) ::close(fd_);
    errno = error;
  }
  int fd_ = -1;
};

// Waits for the events. Returns false once the deadline has passed.
bool wait_for(const Socket& socket, short events, Clock::time_point deadline) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd polled{socket.fd(), events, 0};
    const int found = ::poll(
        &polled, 1, static_cast<int>(std::clamp<std::int64_t>(left.count() + 1, 0, 1'000'000)));
    if (found > 0) return true;
    if (Clock::now() >= deadline) return false;
  }
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

// Puts a text's length in front of it: all texts travel like this.
std::string with_length(std::string_view text) {
  const std::uint64_t size = text.size();
  std::string bytes(sizeof(size), '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  return bytes.append(text);
}

std::optional<std::string> receive_text(const Socket& socket, std::uint64_t most,
                                        Clock::time_point deadline) {
  std::uint64_t size = 0;
  if (!receive_all(socket, reinterpret_cast<char*>(&size), sizeof(size), deadline) || size > most) {
    return std::nullopt;
  }
  std::string text(size, '\0');
  if (!receive_all(socket, text.data(), text.size(), deadline)) return std::nullopt;
  return text;
}

struct Resolved {
  addrinfo* first = nullptr;
  Resolved() = default;
  ~Resolved() {
    if (first != nullptr) ::freeaddrinfo(first);
  }
  Resolved(const Resolved&) = delete;
  Resolved& operator=(const Resolved&) = delete;
};

class AddressRendezvous : public Rendezvous {
 public:
  AddressRendezvous(const GlooOptions& options, std::string host, std::string port)
      : rank_(options.rank),
        size_(options.size),
        timeout_(options.connect_timeout),
        deadline_(Clock::now() + options.connect_timeout),
        host_(std::move(host)),
        port_(std::move(port)) {
    for (std::chrono::milliseconds pause{1}; !open();
         pause = std::min(2 * pause, kMostBetweenTries)) {
      const char* const why = std::strerror(errno);
      if (rank_.value == 0) {
        fail(fmt::format("cannot listen at {}:{}: {} (is there another rank 0?)", host_, port_,
                         why));
      }
      if (Clock::now() >= deadline_) {
        fail(fmt::format("rank 0 did not come to {}:{} in {} ms: {}", host_, port_,
                         timeout_.count(), why));
      }
      std::this_thread::sleep_for(pause);
    }
  }

  [[nodiscard]] std::string local_address() const override {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    std::array<char, NI_MAXHOST> host{};
    auto* const generic = reinterpret_cast<sockaddr*>(&address);
    if (::getsockname(socket_.fd(), generic, &size) != 0 ||
        ::getnameinfo(generic, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
      return "";
    }
    return host.data();
  }

  [[nodiscard]] std::vector<Introduction> exchange(const Introduction& mine) override {
    return rank_.value == 0 ? serve(mine) : ask(mine);
  }

 private:
  [[noreturn]] void fail(const std::string& text) const {
    throw TransportError(fmt::format("rank {}, rendezvous: {}", rank_.value, text));
  }

  [[nodiscard]] bool connected(const Socket& socket, const addrinfo& info) const {
    if (::connect(socket.fd(), info.ai_addr, info.ai_addrlen) == 0) return true;
    if (errno != EINPROGRESS || !wait_for(socket, POLLOUT, deadline_)) return false;
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    return error == 0;
  }

  // Listens as rank 0, connects as any other rank. Returns false and sets errno if that is
  // impossible now.
  [[nodiscard]] bool open() {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    Resolved resolved;
    if (const int error = ::getaddrinfo(host_.c_str(), port_.c_str(), &hints, &resolved.first)) {
      fail(fmt::format("expected the address of rank 0, found '{}:{}': {}", host_, port_,
                       ::gai_strerror(error)));
    }
    for (const addrinfo* info = resolved.first; info != nullptr; info = info->ai_next) {
      Socket socket(::socket(info->ai_family, info->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      if (!socket.valid()) continue;
      const int on = 1;
      if (rank_.value == 0) {
        ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
        if (::bind(socket.fd(), info->ai_addr, info->ai_addrlen) != 0) continue;
        if (::listen(socket.fd(), size_) != 0) continue;
      } else if (!connected(socket, *info)) {
        continue;
      }
      socket_ = std::move(socket);
      return true;
    }
    return false;
  }

  // Serves as rank 0: collects the introductions of all ranks, then sends each of them the answer.
  [[nodiscard]] std::vector<Introduction> serve(const Introduction& mine) {
    std::vector<Socket> clients(static_cast<std::size_t>(size_));
    std::vector<Introduction> all(static_cast<std::size_t>(size_));
    all[0] = mine;
    std::string answer(1, kAll);
    try {
      welcome(mine, clients, all);
    } catch (const TransportError& error) {
      const std::string failure = kFailure + std::string(error.what());
      answer_all(clients, failure);
      turn_away(clients, failure);
      throw;
    }
    for (const Introduction& introduction : all) answer += with_length(introduction.text());
    // A rank that has its answer may finish with this group and come for the next one before this
    // rank continues. It must not find this listener, which would take its introduction and never
    // answer.
    socket_ = Socket();
    answer_all(clients, answer);
    return all;
  }

  // Takes introductions until all ranks have come. Connections that send none are ignored.
  void welcome(const Introduction& mine, std::vector<Socket>& clients,
               std::vector<Introduction>& all) {
    for (std::int32_t num_come = 1; num_come < size_;) {
      if (!wait_for(socket_, POLLIN, deadline_)) fail(missing(all));
      Socket client(::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client.valid()) continue;
      const auto text = receive_text(client, most_bytes(size_),
                                     std::min(deadline_, Clock::now() + kMostForGreeting));
      const auto found = text ? Introduction::parse(*text) : std::nullopt;
      if (!found) continue;  // not a rank
      if (found->run_id != mine.run_id) {
        answer_all({&client, 1},
                   fmt::format("{}expected run '{}', found '{}' of rank {}", kFailure, mine.run_id,
                               printable(found->run_id), found->rank.value));
        continue;
      }
      const auto& others = all;
      const bool taken = found->size == size_ && others[found->rank.index()].rank.valid();
      if (taken || found->size != size_) {  // it hears of the failure like those that came before
        clients.push_back(std::move(client));
      }
      check_fits(mine, *found);
      if (taken) fail(fmt::format("two processes call themselves rank {}", found->rank.value));
      clients[found->rank.index()] = std::move(client);
      all[found->rank.index()] = *found;
      ++num_come;
    }
  }

  // Tells ranks that come a little later why there is no group, too.
  void turn_away(const std::vector<Socket>& clients, const std::string& failure) const {
    const Clock::time_point deadline = std::min(deadline_, Clock::now() + kMostForGreeting);
    std::int64_t num_come = std::count_if(clients.begin(), clients.end(),
                                          [](const Socket& client) { return client.valid(); });
    for (; num_come + 1 < size_ && wait_for(socket_, POLLIN, deadline); ++num_come) {
      const Socket client(::accept4(socket_.fd(), nullptr, nullptr, SOCK_CLOEXEC));
      // Reads the introduction first: closing a connection with unread data would discard the
      // answer.
      if (!client.valid() || !receive_text(client, most_bytes(size_), deadline)) continue;
      answer_all({&client, 1}, failure);
    }
  }

  [[nodiscard]] std::string missing(const std::vector<Introduction>& all) const {
    std::vector<std::int32_t> ranks;
    for (std::int32_t r = 0; r < size_; ++r) {
      if (!all[static_cast<std::size_t>(r)].rank.valid()) ranks.push_back(r);
    }
    return fmt::format("{} did not come to {}:{} in {} ms", list_of_ranks(ranks, size_), host_,
                       port_, timeout_.count());
  }

  static void answer_all(std::span<const Socket> clients, const std::string& answer) {
    const std::string bytes = with_length(answer);
    for (const Socket& client : clients) {
      if (client.valid()) {  // a rank that does not take it will notice by itself
        static_cast<void>(send_all(client, bytes, Clock::now() + kMostForGreeting));
      }
    }
  }

  [[nodiscard]] std::vector<Introduction> ask(const Introduction& mine) {
    // When rank 0 gives up, it says which ranks are missing, which may be a little after this
    // rank's own deadline.
    const Clock::time_point deadline = deadline_ + kMostForGreeting;
    std::optional<std::string> answer;
    if (send_all(socket_, with_length(mine.text()), deadline)) {
      answer = receive_text(socket_, most_answer_bytes(size_), deadline);
    }
    if (!answer || answer->empty()) {
      fail(Clock::now() < deadline
               ? fmt::format("what listens at {}:{} ended the connection without an answer: rank 0 "
                             "died, or it is somebody else",
                             host_, port_)
               : fmt::format("rank 0 at {}:{} gave no answer: not all ranks came in {} ms", host_,
                             port_, timeout_.count()));
    }
    if (answer->front() == kFailure) {
      fail("rank 0 says: " + without_orders(answer->substr(1, kMostWordsOfPeers)));
    }
    std::vector<Introduction> all;
    std::string_view rest = std::string_view(*answer).substr(1);
    while (rest.size() >= sizeof(std::uint64_t)) {
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, rest.data(), sizeof(bytes));
      rest.remove_prefix(sizeof(bytes));
      const auto found = Introduction::parse(rest.substr(0, bytes));
      rest.remove_prefix(std::min<std::uint64_t>(bytes, rest.size()));
      if (!found || found->rank.index() != all.size()) break;
      check_fits(mine, *found);  // so each of them has an address for this rank
      all.push_back(*found);
    }
    if (all.size() != static_cast<std::size_t>(size_)) fail("rank 0 gave no list of the ranks");
    return all;
  }

  const Rank rank_;
  const std::int32_t size_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point deadline_;
  const std::string host_;
  const std::string port_;
  Socket socket_;  // rank 0's listens
};

}  // namespace

std::unique_ptr<Rendezvous> open_address(const GlooOptions& options, const std::string& host,
                                         const std::string& port) {
  return std::make_unique<AddressRendezvous>(options, host, port);
}

}  // namespace contextile
