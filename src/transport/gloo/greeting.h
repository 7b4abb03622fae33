// Greetings, with which a connection begins. Each end proves to the other that it
// knows the secret and the run of the group:
//
//   caller: mark, nonce                 host: mark, nonce
//   caller: rank, size, words, code     host: verdict, words, code
//
// A code is an HMAC of everything said so far with the run's id and the purpose of the connection,
// under the secret. Both nonces are fresh, so that no greeting serves twice. Neither the secret nor
// the run's id is ever sent.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contextile/base.h"
#include "transport/gloo/socket.h"

namespace contextile {

// One process of the group, as greetings know it.
struct Member {
  Rank rank;
  std::int32_t size = 0;
  std::string run_id;
  std::string secret;  // empty: none
};

enum class Reception : char {
  kWelcome = 'A',
  kFailure = 'F',  // the group has failed; the words say why
  kStranger = 'S'  // the caller's code is not right; the host proves nothing
};

// How long a caller may take to greet once it has been accepted.
inline constexpr std::chrono::milliseconds kMaxForGreeting{10'000};
// How long an end waits for the other one to take or give an answer that is due.
inline constexpr std::chrono::milliseconds kMaxForAnswer{2'000};

// The caller's end of a connection.
class Caller {
 public:
  struct Answer {
    Reception verdict = Reception::kStranger;
    std::string words;
  };

  // `purpose` says what the connection is for, the same at both ends.
  Caller(Socket socket, const Member& caller, std::string purpose);
  // Returns false at the deadline, and if the other end does not greet.
  [[nodiscard]] bool greet(std::string_view words, Clock::time_point deadline);
  // Returns nothing at the deadline, if the connection ends, and if the answer is longer than that
  // or its code is not right.
  [[nodiscard]] std::optional<Answer> answer(std::uint64_t max_bytes, Clock::time_point deadline);
  // True if an answer came whose code is not right: the host does not know secret and run.
  [[nodiscard]] bool met_impostor() const { return met_impostor_; }
  [[nodiscard]] Socket take_socket() { return std::move(socket_); }

 private:
  Socket socket_;
  const Member caller_;
  const std::string purpose_;
  std::string code_;
  bool met_impostor_ = false;
};

// A caller whose greeting is right.
struct Guest {
  Socket socket;
  Rank rank;
  std::int32_t size = 0;
  std::string words;
  std::string code;
};
// Sends the host's answer. A guest that does not take it will notice by itself.
void answer_guest(const Guest& guest, const Member& host, Reception verdict,
                  std::string_view words);

// The host's end: takes connections of a listening socket and lets in those that greet right. All
// are greeted side by side, so that one that stays silent holds up no rank.
class Door {
 public:
  Door(const Member& host, std::string purpose, std::uint64_t max_words_bytes);
  // Returns nothing at the deadline.
  [[nodiscard]] std::optional<Guest> next_guest(const Socket& listener, Clock::time_point deadline);
  // Returns the end of an error: "" or who was turned away last, and why. It shows no run.
  [[nodiscard]] std::string refusals() const;

 private:
  struct Visitor {
    Socket socket;
    std::string nonce;  // the host's
    std::string heard;
    Clock::time_point deadline;
    bool greeted = false;  // the host has answered with its nonce
  };
  enum class Step { kMore, kGo, kGuest };

  void accept_all(const Socket& listener);
  [[nodiscard]] Step hear(Visitor& visitor);
  [[nodiscard]] Step judge(Visitor& visitor);
  [[nodiscard]] std::optional<Guest> hear_all(const std::vector<short>& events);

  const Member host_;
  const std::string purpose_;
  const std::uint64_t max_words_bytes_;
  std::list<Visitor> visitors_;  // oldest first
  Guest guest_;                  // of the last Step::kGuest
  std::string refusal_;          // why the last one with a wrong code was turned away
};

}  // namespace contextile
