#include "transport/gloo/greeting.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/interrupt.h"
#include "transport/gloo/secret.h"

namespace contextile {
namespace {

constexpr std::string_view kMark = "contextile gloo2";  // 16 bytes, no part of HTTP or TLS
constexpr std::size_t kOpeningBytes = kMark.size() + kNonceBytes;
// Bound on connections that have not greeted yet. Others wait in the listener's queue until one of
// them has greeted or its time is over.
constexpr std::size_t kMaxVisitors = 256;

// Precedes the caller's words.
struct CallHeader {
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t has_secret = 0;
  std::int32_t unused = 0;
  std::uint64_t words_bytes = 0;
};
// Precedes the host's words.
struct AnswerHeader {
  char verdict = 0;
  std::array<char, 7> unused{};
  std::uint64_t words_bytes = 0;
};

template <typename Header>
std::string bytes_of(const Header& header) {
  return {reinterpret_cast<const char*>(&header), sizeof(header)};
}

std::string code_of_call(const Member& member, std::string_view purpose, std::string_view callers,
                         std::string_view hosts, std::string_view said) {
  return code_of(member.secret, {"caller", purpose, member.run_id, callers, hosts, said});
}

std::string code_of_answer(const Member& member, std::string_view code_of_caller,
                           std::string_view said) {
  return code_of(member.secret, {"host", member.run_id, code_of_caller, said});
}

}  // namespace

// ------------------------------------------------------------------------------------- the caller

Caller::Caller(Socket socket, const Member& caller, std::string purpose)
    : socket_(std::move(socket)), caller_(caller), purpose_(std::move(purpose)) {}

bool Caller::greet(std::string_view words, Clock::time_point deadline) {
  const std::string nonce = fresh_nonce();
  std::array<char, kOpeningBytes> opening{};
  if (!send_all(socket_, std::string(kMark) + nonce, deadline) ||
      !receive_all(socket_, opening.data(), opening.size(), deadline)) {
    return false;
  }
  const std::string_view theirs(opening.data(), opening.size());
  if (!theirs.starts_with(kMark)) return false;
  const CallHeader header{caller_.rank.value, caller_.size, caller_.secret.empty() ? 0 : 1, 0,
                          words.size()};
  const std::string said = bytes_of(header).append(words);
  code_ = code_of_call(caller_, purpose_, nonce, theirs.substr(kMark.size()), said);
  return send_all(socket_, said + code_, deadline);
}

std::optional<Caller::Answer> Caller::answer(std::uint64_t max_bytes, Clock::time_point deadline) {
  AnswerHeader header;
  if (!receive_all(socket_, reinterpret_cast<char*>(&header), sizeof(header), deadline)) {
    return std::nullopt;
  }
  const auto verdict = static_cast<Reception>(header.verdict);
  if (verdict == Reception::kStranger) return Answer{verdict, {}};
  if (header.words_bytes > max_bytes) return std::nullopt;
  std::string words(header.words_bytes, '\0');
  std::string code(kCodeBytes, '\0');
  if (!receive_all(socket_, words.data(), words.size(), deadline) ||
      !receive_all(socket_, code.data(), code.size(), deadline)) {
    return std::nullopt;
  }
  met_impostor_ = !same_code(code, code_of_answer(caller_, code_, bytes_of(header) + words));
  if (met_impostor_) return std::nullopt;
  return Answer{verdict, std::move(words)};
}

// --------------------------------------------------------------------------------------- the host

void answer_guest(const Guest& guest, const Member& host, Reception verdict,
                  std::string_view words) {
  AnswerHeader header;
  header.verdict = static_cast<char>(verdict);
  header.words_bytes = words.size();
  const std::string said = bytes_of(header).append(words);
  static_cast<void>(send_all(guest.socket, said + code_of_answer(host, guest.code, said),
                             Clock::now() + kMaxForAnswer));
}

Door::Door(const Member& host, std::string purpose, std::uint64_t max_words_bytes)
    : host_(host), purpose_(std::move(purpose)), max_words_bytes_(max_words_bytes) {}

std::optional<Guest> Door::next_guest(const Socket& listener, Clock::time_point deadline) {
  while (true) {
    const bool has_room = visitors_.size() < kMaxVisitors;
    std::vector<pollfd> polled{{listener.fd(), static_cast<short>(has_room ? POLLIN : 0), 0}};
    Clock::time_point next = deadline;
    for (const Visitor& visitor : visitors_) {
      polled.push_back({visitor.socket.fd(), POLLIN, 0});
      next = std::min(next, visitor.deadline);
    }
    next = std::min(next, Clock::now() + kInterruptPeriod);
    const int found = ::poll(polled.data(), polled.size(), milliseconds_until(next));
    check_interrupt();
    if (found > 0) {
      std::vector<short> events;
      for (std::size_t i = 1; i < polled.size(); ++i) events.push_back(polled[i].revents);
      if (std::optional<Guest> guest = hear_all(events)) return guest;
    }
    const Clock::time_point now = Clock::now();
    std::erase_if(visitors_, [&](const Visitor& visitor) { return visitor.deadline <= now; });
    if (now >= deadline) return std::nullopt;
    if (found > 0 && polled.front().revents != 0) accept_all(listener);
  }
}

std::string Door::refusals() const { return refusal_.empty() ? "" : "; turned away: " + refusal_; }

void Door::accept_all(const Socket& listener) {
  while (visitors_.size() < kMaxVisitors) {
    Socket socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.valid()) {
      // For example, this process has too many files open. It tries again.
      if (errno != EAGAIN) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      return;
    }
    visitors_.push_back({std::move(socket), fresh_nonce(), {}, Clock::now() + kMaxForGreeting});
  }
}

// Hears those with events; a right greeting ends the round, the others are heard in the next one.
std::optional<Guest> Door::hear_all(const std::vector<short>& events) {
  auto visitor = visitors_.begin();
  for (const short event : events) {
    const Step step = event == 0 ? Step::kMore : hear(*visitor);
    visitor = step == Step::kMore ? std::next(visitor) : visitors_.erase(visitor);
    if (step == Step::kGuest) return std::move(guest_);
  }
  return std::nullopt;
}

// Reads what has come of a visitor, and answers.
Door::Step Door::hear(Visitor& visitor) {
  std::array<char, 4096> bytes{};
  const ssize_t received = ::recv(visitor.socket.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (received < 0) return errno == EAGAIN || errno == EINTR ? Step::kMore : Step::kGo;
  if (received == 0) return Step::kGo;
  visitor.heard.append(bytes.data(), static_cast<std::size_t>(received));
  const std::size_t num_marked = std::min(visitor.heard.size(), kMark.size());
  if (visitor.heard.compare(0, num_marked, kMark, 0, num_marked) != 0) return Step::kGo;
  if (visitor.heard.size() < kOpeningBytes) return Step::kMore;
  if (!std::exchange(visitor.greeted, true)) {
    const std::string opening = std::string(kMark) + visitor.nonce;
    // An empty buffer takes as much at once.
    if (::send(visitor.socket.fd(), opening.data(), opening.size(), MSG_NOSIGNAL | MSG_DONTWAIT) !=
        static_cast<ssize_t>(opening.size())) {
      return Step::kGo;
    }
  }
  CallHeader header;
  if (visitor.heard.size() < kOpeningBytes + sizeof(header)) return Step::kMore;
  std::memcpy(&header, visitor.heard.data() + kOpeningBytes, sizeof(header));
  if (header.words_bytes > max_words_bytes_ || header.rank < 0 || header.rank >= header.size) {
    return Step::kGo;
  }
  const std::size_t whole = kOpeningBytes + sizeof(header) + header.words_bytes + kCodeBytes;
  if (visitor.heard.size() < whole) return Step::kMore;
  return visitor.heard.size() > whole ? Step::kGo : judge(visitor);
}

// Decides about a greeting that has come as a whole.
Door::Step Door::judge(Visitor& visitor) {
  const std::string_view heard = visitor.heard;
  const std::string_view nonce = heard.substr(kMark.size(), kNonceBytes);
  const std::string_view said =
      heard.substr(kOpeningBytes, heard.size() - kOpeningBytes - kCodeBytes);
  const std::string_view code = heard.substr(heard.size() - kCodeBytes);
  CallHeader header;
  std::memcpy(&header, said.data(), sizeof(header));
  guest_ = {std::move(visitor.socket), Rank{header.rank}, header.size,
            std::string(said.substr(sizeof(header))), std::string(code)};
  if (same_code(code, code_of_call(host_, purpose_, nonce, visitor.nonce, said))) {
    return Step::kGuest;
  }
  const bool has_secret = header.has_secret != 0;
  if (has_secret != !host_.secret.empty()) {
    refusal_ =
        fmt::format("a process that calls itself rank {} came {} a secret, this group has {}",
                    header.rank, has_secret ? "with" : "without", has_secret ? "none" : "one");
  } else {
    refusal_ = fmt::format("a process that calls itself rank {} is of another run{}", header.rank,
                           has_secret ? ", or has another secret" : "");
  }
  AnswerHeader answer;
  answer.verdict = static_cast<char>(Reception::kStranger);
  static_cast<void>(
      send_all(guest_.socket, bytes_of(answer), Clock::now() + std::chrono::milliseconds(100)));
  return Step::kGo;
}

}  // namespace contextile
