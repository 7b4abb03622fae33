#include "serving/server/http_front.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "serving/server/http_stream.h"

namespace contextile {
namespace {

using std::chrono::milliseconds;

constexpr std::size_t kChunk = 16 << 10;
constexpr milliseconds kLinger{2'000};        // for a refused client to read why
constexpr milliseconds kWithoutSockets{100};  // before accepting again
constexpr milliseconds kPause{100};           // after memory ran out

std::string_view reason_of(int status) {
  switch (status) {
    case 400:
      return "Bad Request";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 417:
      return "Expectation Failed";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

}  // namespace

namespace {

// The connection of the request that this thread answers.
thread_local const SocketStream* t_stream = nullptr;
// True if a request that the front answers is the last one of its connection.
thread_local bool t_closes = false;

// Runs a call; false if memory ran out in it.
template <typename Call>
bool has_memory_for(const Call& call) {
  try {
    call();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

}  // namespace

HttpFront::HttpFront(const FrontLimits& limits, ErrorBody error_body)
    : limits_(limits), error_body_(std::move(error_body)) {
  if (::pipe2(wake_, O_CLOEXEC | O_NONBLOCK) != 0) {
    fail_io("serve: cannot open a pipe: {}", std::generic_category().message(errno));
  }
  // The library's own fields say neither how long a connection stays open nor when it closes.
  set_post_routing_handler([seconds = limits_.idle_time.count() / 1000](
                               const httplib::Request&, httplib::Response& response) {
    response.headers.erase("Keep-Alive");
    response.headers.erase("Connection");
    const bool closes = t_stream != nullptr ? !t_stream->may_go_on() : t_closes;
    if (closes) {
      response.set_header("Connection", "close");
    } else {
      response.set_header("Keep-Alive", fmt::format("timeout={}", seconds));
    }
  });
}

HttpFront::~HttpFront() {
  close(milliseconds(0));
  for (const int end : wake_) ::close(end);
}

bool HttpFront::client_is_gone() { return t_stream != nullptr && t_stream->is_gone(); }

bool HttpFront::chunks_are_malformed() { return t_stream != nullptr && t_stream->is_malformed(); }

void HttpFront::start() {
  const socket_t listening = svr_sock_;
  // The library asks the system to queue five connections; clients that come at once are more.
  ::listen(listening, SOMAXCONN);
  ::fcntl(listening, F_SETFL, ::fcntl(listening, F_GETFL) | O_NONBLOCK);
  for (std::size_t i = 0; i < limits_.max_active; ++i) {
    workers_.emplace_back([this] { run_worker(); });
  }
  front_ = std::thread([this] { run_front(); });
}

void HttpFront::wake() { static_cast<void>(!::write(wake_[1], "", 1)); }

void HttpFront::close(milliseconds grace) {
  {
    std::unique_lock lock(mutex_);
    closing_ = true;
    for (const Job& job : jobs_) ::close(job.socket);
    jobs_.clear();
    changed_.notify_all();
    wake();
    // A client that does not read its answer would hold a thread for the whole of write_time.
    changed_.wait_for(lock, grace, [this] { return serving_.empty(); });
    for (const int socket : serving_) ::shutdown(socket, SHUT_RDWR);
  }
  if (front_.joinable()) front_.join();
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
  const socket_t listening = svr_sock_.exchange(INVALID_SOCKET);
  if (listening != INVALID_SOCKET) ::close(listening);
}

// -------------------------------------------------------------------------------------- the front

void HttpFront::run_front() {
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (closing_) break;
    }
    if (!has_memory_for([this] { serve_connections(); })) std::this_thread::sleep_for(kPause);
  }
  for (const auto& [socket, connection] : connections_) ::close(socket);
  connections_.clear();
}

// Waits for connections, and does what those that moved need.
void HttpFront::serve_connections() {
  std::vector<pollfd> watched;
  const bool accepts = Clock::now() >= accept_again_;
  watched.push_back({wake_[0], POLLIN, 0});
  watched.push_back({accepts ? static_cast<int>(svr_sock_) : -1, POLLIN, 0});
  for (const auto& [socket, connection] : connections_) {
    const short events = connection.state == State::kWriting ? POLLOUT : POLLIN;
    watched.push_back({socket, events, 0});
  }
  ::poll(watched.data(), watched.size(), static_cast<int>(time_to_next_limit().count()));
  std::array<char, 64> woken{};
  while (::read(wake_[0], woken.data(), woken.size()) > 0) {
  }
  for (std::size_t i = 2; i < watched.size(); ++i) {
    const auto found = connections_.find(watched[i].fd);
    if (watched[i].revents == 0 || found == connections_.end()) continue;
    bool stays = false;
    const bool has_memory =
        has_memory_for([&] { stays = advance(watched[i].fd, found->second, watched[i].revents); });
    if (!has_memory || !stays) {
      ::close(watched[i].fd);
      connections_.erase(found);
    }
  }
  take_answered();
  close_expired();
  if (watched[1].revents != 0) accept_all();
}

milliseconds HttpFront::time_to_next_limit() const {
  auto next = Clock::now() + std::chrono::seconds(10);
  if (accept_again_ > Clock::now()) next = std::min(next, accept_again_);
  for (const auto& [socket, connection] : connections_) next = std::min(next, connection.limit);
  const auto rest = std::chrono::ceil<milliseconds>(next - Clock::now());
  return std::max(rest, milliseconds(0));
}

void HttpFront::accept_all() {
  while (true) {
    make_room();
    const int socket = ::accept4(svr_sock_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket < 0) {
      const bool is_short = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
      if (is_short) accept_again_ = Clock::now() + kWithoutSockets;
      if (errno == ECONNABORTED || errno == EINTR) continue;
      return;
    }
    const int yes = 1;
    ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    Connection added;
    added.limit = Clock::now() + limits_.head_time;
    if (!has_memory_for([&] { connections_.emplace(socket, std::move(added)); })) ::close(socket);
  }
}

// If there are too many connections, closes the one that has been silent for longest.
void HttpFront::make_room() {
  if (connections_.size() < limits_.max_connections) return;
  const auto oldest =
      std::ranges::min_element(connections_, {}, [](const auto& e) { return e.second.limit; });
  ::close(oldest->first);
  connections_.erase(oldest);
}

void HttpFront::take_answered() {
  std::vector<Answered> answered;
  {
    const std::lock_guard lock(mutex_);
    answered.swap(answered_);
  }
  for (Answered& one : answered) {
    if (has_memory_for([&] { go_on(one); })) continue;
    connections_.erase(one.socket);
    ::close(one.socket);
  }
}

void HttpFront::go_on(Answered& answered) {
  Connection& connection = connections_[answered.socket];
  if (answered.lingers) return start_lingering(answered.socket, connection);
  connection.in = std::move(answered.rest);
  start_reading(connection);
  if (take_request(answered.socket, connection)) connections_.erase(answered.socket);
}

void HttpFront::start_reading(Connection& connection) const {
  connection.state = State::kReading;
  connection.has_begun = false;
  connection.num_searched = 0;
  connection.limit = Clock::now() + limits_.idle_time;
}

// Closing at once would reset the connection before the client has read the answer.
void HttpFront::start_lingering(int socket, Connection& connection) {
  ::shutdown(socket, SHUT_WR);
  connection.state = State::kLingering;
  connection.limit = Clock::now() + kLinger;
}

void HttpFront::close_expired() {
  const auto now = Clock::now();
  for (auto at = connections_.begin(); at != connections_.end();) {
    Connection& connection = at->second;
    if (now < connection.limit) {
      ++at;
    } else if (connection.state == State::kReading && !connection.in.empty()) {
      refuse(connection, {408, fmt::format("request: expected a whole head within {} s",
                                           limits_.head_time.count() / 1000)});
      ++at;
    } else {
      ::close(at->first);
      at = connections_.erase(at);
    }
  }
}

bool HttpFront::advance(int socket, Connection& connection, short events) {
  if ((events & (POLLERR | POLLNVAL)) != 0) return false;
  if (connection.state == State::kWriting) return write_some(socket, connection);
  return read_some(socket, connection);
}

bool HttpFront::read_some(int socket, Connection& connection) {
  std::array<char, kChunk> bytes{};
  const ssize_t count = ::recv(socket, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  if (count == 0) return false;
  if (connection.state == State::kLingering) return true;  // a refused client still sends
  connection.in.append(bytes.data(), static_cast<std::size_t>(count));
  if (take_request(socket, connection)) connections_.erase(socket);
  return true;
}

bool HttpFront::write_some(int socket, Connection& connection) {
  const std::string_view rest = std::string_view(connection.out).substr(connection.num_out);
  const ssize_t count = ::send(socket, rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
  connection.num_out += static_cast<std::size_t>(count);
  if (connection.num_out < connection.out.size()) return true;
  connection.out.clear();
  connection.num_out = 0;
  if (connection.closes) {
    start_lingering(socket, connection);
    return true;
  }
  start_reading(connection);
  if (take_request(socket, connection)) connections_.erase(socket);
  return true;
}

bool HttpFront::take_request(int socket, Connection& connection) {
  if (connection.state != State::kReading) return false;
  // Empty lines before a request are ignored (RFC 9112, 2.2).
  std::size_t begin = 0;
  while (std::string_view(connection.in).substr(begin).starts_with("\r\n")) begin += 2;
  connection.in.erase(0, begin);
  connection.num_searched -= std::min(connection.num_searched, begin);
  if (connection.in.empty()) return false;
  if (!std::exchange(connection.has_begun, true)) {
    connection.limit = Clock::now() + limits_.head_time;
  }
  const auto size = head_size(connection.in, connection.num_searched);
  connection.num_searched = connection.in.size();
  if (size.value_or(connection.in.size()) > limits_.head.max_bytes) {
    refuse(connection, {431, fmt::format("request: expected a head of at most {} bytes, found more",
                                         limits_.head.max_bytes)});
    return false;
  }
  if (!size) return false;
  const auto parsed = parse_head(std::string_view(connection.in).substr(0, *size), limits_.head);
  if (const auto* problem = std::get_if<HeadProblem>(&parsed)) {
    refuse(connection, *problem);
    return false;
  }
  const RequestHead& head = std::get<RequestHead>(parsed);
  const bool has_body = head.content_length > 0 || head.is_chunked;
  if (head.method == "GET" && !has_body && at_once_.contains(head.path)) {
    answer_here(connection, *size, head.closes);
    return false;
  }
  const std::lock_guard lock(mutex_);
  if (closing_ || jobs_.size() >= limits_.max_queued) {
    refuse(connection, {503, "the server has more requests than it can queue; try again later"});
    return false;
  }
  jobs_.push_back({socket, std::move(connection.in), head});
  changed_.notify_one();
  return true;
}

void HttpFront::refuse(Connection& connection, const HeadProblem& problem) {
  const std::string body = error_body_(problem.status, problem.message);
  connection.out += fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n{}"
      "Connection: close\r\n\r\n{}",
      problem.status, reason_of(problem.status), body.size(),
      problem.status == 503 ? "Retry-After: 1\r\n" : "", body);
  connection.in.clear();
  connection.closes = true;
  connection.state = State::kWriting;
  connection.limit = Clock::now() + limits_.write_time;
}

void HttpFront::answer_here(Connection& connection, std::size_t size, bool closes) {
  MemoryStream stream(std::string_view(connection.in).substr(0, size));
  t_closes = closes;
  connection.closes = !process(stream) || closes;
  connection.out += stream.out;
  connection.in.erase(0, size);
  connection.state = State::kWriting;
  connection.limit = Clock::now() + limits_.write_time;
}

// -------------------------------------------------------------------------------------- threads

void HttpFront::run_worker() {
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return closing_ || !jobs_.empty(); });
      if (closing_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
      serving_.insert(job.socket);
    }
    serve(std::move(job));
  }
}

void HttpFront::serve(Job job) {
  SocketStream stream(job.socket, job.in, job.head, limits_);
  job.in.clear();
  t_stream = &stream;
  bool goes_on = false;
  // False if there is no memory for an answer that says so, either.
  const bool is_answered = has_memory_for([&] { goes_on = process(stream) && stream.may_go_on(); });
  t_stream = nullptr;
  const std::lock_guard lock(mutex_);
  serving_.erase(job.socket);
  if (closing_ || !is_answered || stream.is_gone()) {
    ::close(job.socket);
  } else {
    give_back({job.socket, goes_on ? stream.rest() : std::string(), !goes_on});
  }
  changed_.notify_all();
}

void HttpFront::give_back(Answered answered) {
  const int socket = answered.socket;
  if (!has_memory_for([&] { answered_.push_back(std::move(answered)); })) ::close(socket);
  wake();
}

// Lets the library answer one request. Returns true if the connection stays open.
bool HttpFront::process(httplib::Stream& stream) {
  bool is_closed = false;
  return process_request(stream, false, is_closed, nullptr) && !is_closed;
}

}  // namespace contextile
