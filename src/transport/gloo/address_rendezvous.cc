// A rendezvous at rank 0's address. The other ranks send their introductions there. They receive
// the introductions of all ranks, or the reason why there is no group.

#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/interrupt.h"
#include "base/quote.h"
#include "transport/gloo/frame.h"
#include "transport/gloo/greeting.h"
#include "transport/gloo/rendezvous.h"
#include "transport/gloo/socket.h"

namespace contextile {
namespace {

constexpr std::chrono::milliseconds kMostBetweenTries{100};
constexpr std::string_view kPurpose = "rendezvous";
// Bound on the introduction of a rank.
constexpr std::uint64_t kMaxIntroductionBytes = 4096;
// Bound on rank 0's answer: the introductions of all ranks, or why there is no group.
constexpr std::uint64_t max_answer_bytes(std::int32_t size) {
  return (std::uint64_t{1} << 16) +
         (kMaxIntroductionBytes + sizeof(std::uint64_t)) * static_cast<std::uint64_t>(size);
}
// How many connections may wait until they are accepted, in addition to those of the ranks.
constexpr int kMaxStrangersWaiting = 64;

// Puts a text's length in front of it.
std::string with_length(std::string_view text) {
  const std::uint64_t size = text.size();
  std::string bytes(sizeof(size), '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  return bytes.append(text);
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
  AddressRendezvous(HostAndPort address, const Member& member, std::chrono::milliseconds timeout)
      : member_(member),
        rank_(member.rank),
        size_(member.size),
        timeout_(timeout),
        deadline_(Clock::now() + timeout),
        host_(std::move(address.host)),
        port_(std::move(address.port)) {
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
      sleep_for(pause);
    }
  }

  [[nodiscard]] std::string local_address() const override { return address_of(socket_).host; }

  [[nodiscard]] std::vector<Introduction> exchange(const Introduction& mine) override {
    return rank_.value == 0 ? serve(mine) : ask(mine);
  }

 private:
  [[noreturn]] void fail(const std::string& text) const {
    throw TransportError(fmt::format("rank {}, rendezvous: {}", rank_.value, text));
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
      socket_ = rank_.value == 0
                    ? listen_at(*info->ai_addr, info->ai_addrlen, size_ + kMaxStrangersWaiting)
                    : connect_to(*info->ai_addr, info->ai_addrlen, deadline_);
      if (socket_.valid()) return true;
    }
    return false;
  }

  // Serves as rank 0: collects the introductions of all ranks, then sends each of them the answer.
  [[nodiscard]] std::vector<Introduction> serve(const Introduction& mine) {
    std::vector<Guest> guests;
    std::vector<Introduction> all(static_cast<std::size_t>(size_));
    all[0] = mine;
    Door door(member_, std::string(kPurpose), kMaxIntroductionBytes);
    try {
      welcome(mine, door, guests, all);
    } catch (const TransportError& error) {
      for (const Guest& guest : guests) {
        answer_guest(guest, member_, Reception::kFailure, error.what());
      }
      turn_away(door, static_cast<std::int32_t>(guests.size()), error.what());
      throw;
    } catch (...) {
      for (const Guest& guest : guests) {
        answer_guest(guest, member_, Reception::kFailure,
                     fmt::format("rank 0 gave up: {}", interrupt_text()));
      }
      throw;
    }
    std::string answer;
    for (const Introduction& introduction : all) answer += with_length(introduction.text());
    // A rank that has its answer may finish with this group and come for the next one before this
    // rank continues. It must not find this listener, which would take its introduction and never
    // answer.
    socket_ = Socket();
    for (const Guest& guest : guests) answer_guest(guest, member_, Reception::kWelcome, answer);
    return all;
  }

  // Takes introductions until all ranks have come.
  void welcome(const Introduction& mine, Door& door, std::vector<Guest>& guests,
               std::vector<Introduction>& all) {
    for (std::int32_t num_come = 1; num_come < size_; ++num_come) {
      std::optional<Guest> guest = door.next_guest(socket_, deadline_);
      if (!guest) fail(missing(all) + door.refusals());
      guests.push_back(std::move(*guest));  // it hears of a failure like those that came before
      const Guest& come = guests.back();
      const auto found = Introduction::parse(come.words);
      if (!found || found->rank != come.rank || found->size != come.size) {
        fail(fmt::format("rank {} gave no address", come.rank.value));
      }
      check_fits(mine, *found);
      Introduction& place = all[found->rank.index()];
      if (place.rank.valid()) {
        fail(fmt::format("two processes call themselves rank {}", found->rank.value));
      }
      place = *found;
    }
  }

  // Tells ranks that come a little later why there is no group, too.
  void turn_away(Door& door, std::int32_t num_come, const std::string& failure) const {
    const Clock::time_point deadline = std::min(deadline_, Clock::now() + kMaxForAnswer);
    for (; num_come + 1 < size_; ++num_come) {
      const std::optional<Guest> guest = door.next_guest(socket_, deadline);
      if (!guest) return;
      answer_guest(*guest, member_, Reception::kFailure, failure);
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

  [[nodiscard]] std::vector<Introduction> ask(const Introduction& mine) {
    // When rank 0 gives up, it says which ranks are missing, which may be a little after this
    // rank's own deadline.
    const Clock::time_point deadline = deadline_ + kMaxForAnswer;
    Caller call(std::move(socket_), member_, std::string(kPurpose));
    std::optional<Caller::Answer> answer;
    if (call.greet(mine.text(), deadline)) answer = call.answer(max_answer_bytes(size_), deadline);
    if (!answer) fail_unanswered(call.met_impostor(), Clock::now() < deadline);
    if (answer->verdict == Reception::kStranger) {
      fail(
          fmt::format("rank 0 at {}:{} turned this rank away: its run is another than '{}', or "
                      "its secret another than this rank's, which has {}",
                      host_, port_, member_.run_id, member_.secret.empty() ? "none" : "one"));
    }
    if (answer->verdict != Reception::kWelcome) {
      fail("rank 0 says: " + without_orders(answer->words.substr(0, kMostWordsOfPeers)));
    }
    return introductions_in(answer->words, mine);
  }

  [[noreturn]] void fail_unanswered(bool met_impostor, bool in_time) const {
    if (met_impostor) {
      fail(fmt::format("what listens at {}:{} does not know the secret and the run of this rank",
                       host_, port_));
    }
    fail(in_time
             ? fmt::format("what listens at {}:{} ended the connection without an answer: rank 0 "
                           "died, or it is somebody else",
                           host_, port_)
             : fmt::format("rank 0 at {}:{} gave no answer: not all ranks came in {} ms", host_,
                           port_, timeout_.count()));
  }

  [[nodiscard]] std::vector<Introduction> introductions_in(std::string_view rest,
                                                           const Introduction& mine) const {
    std::vector<Introduction> all;
    while (rest.size() >= sizeof(std::uint64_t)) {
      std::uint64_t bytes = 0;
      std::memcpy(&bytes, rest.data(), sizeof(bytes));
      rest.remove_prefix(sizeof(bytes));
      const auto found = Introduction::parse(rest.substr(0, bytes));
      rest.remove_prefix(std::min<std::uint64_t>(bytes, rest.size()));
      if (!found || found->rank.index() != all.size()) break;
      check_fits(mine, *found);
      all.push_back(*found);
    }
    if (all.size() != static_cast<std::size_t>(size_)) fail("rank 0 gave no list of the ranks");
    return all;
  }

  const Member member_;
  const Rank rank_;
  const std::int32_t size_;
  const std::chrono::milliseconds timeout_;
  const Clock::time_point deadline_;
  const std::string host_;
  const std::string port_;
  Socket socket_;  // rank 0's listens; another's goes to its call
};

}  // namespace

std::unique_ptr<Rendezvous> open_address(HostAndPort address, const Member& member,
                                         std::chrono::milliseconds timeout) {
  return std::make_unique<AddressRendezvous>(std::move(address), member, timeout);
}

}  // namespace contextile
