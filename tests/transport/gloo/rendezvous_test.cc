// Ranks find each other in cases where timing matters; gloo_test.py tests the rest with processes.
#include "transport/gloo/rendezvous.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/free_port.h"
#include "transport/gloo/greeting.h"
#include "transport/gloo/secret.h"
#include "transport/gloo/socket.h"

namespace contextile {
namespace {

constexpr std::chrono::seconds kTimeout{60};
const HostAndPort kSomewhere = {"127.0.0.1", "9"};

std::string address_of(std::uint16_t port) { return "tcp://127.0.0.1:" + std::to_string(port); }

TEST(AddressRendezvous, TakesARankThatComesForTheNextGroupBeforeRankZeroIsDoneWithThis) {
  const std::string address = address_of(free_port());
  const auto open = [&](std::int32_t rank, const std::string& run) {
    return open_rendezvous(address, {Rank{rank}, 2, run, ""}, kTimeout);
  };
  const auto exchange = [](Rendezvous& rendezvous, std::int32_t rank) {
    EXPECT_EQ(rendezvous.exchange({Rank{rank}, 2, kSomewhere}).size(), 2U);
  };
  std::thread other([&] {
    try {
      for (const std::string run : {"first", "second"}) exchange(*open(1, run), 1);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  });
  {
    const std::unique_ptr<Rendezvous> first = open(0, "first");
    exchange(*first, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until the other is there again
  }
  try {
    exchange(*open(0, "second"), 0);
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  other.join();
}

// Listens at a free port of the loopback interface.
struct Listener {
  Listener() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socket = listen_at(reinterpret_cast<const sockaddr&>(at), sizeof(at), 64);
    address = address_of(socket);
  }
  [[nodiscard]] Socket connect() const {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    at.sin_port = htons(static_cast<std::uint16_t>(std::stoi(address.port)));
    return connect_to(reinterpret_cast<const sockaddr&>(at), sizeof(at), Clock::now() + kTimeout);
  }
  Socket socket;
  HostAndPort address;
};

// Returns the error of rank 1 where `rank_zero` listens.
std::string error_of_rank_one(const std::function<void(const Socket&)>& rank_zero,
                              const std::string& secret = "") {
  const Listener listener;
  std::thread other([&] { rank_zero(listener.socket); });
  std::string found;
  try {
    const auto rendezvous = open_address(listener.address, {Rank{1}, 2, "run", secret}, kTimeout);
    static_cast<void>(rendezvous->exchange({Rank{1}, 2, kSomewhere}));
  } catch (const TransportError& error) {
    found = error.what();
  }
  other.join();
  return found;
}

// Sends these bytes to the first that comes, hears it to its end.
void answer_blindly(const Socket& listener, const std::string& answer) {
  ASSERT_TRUE(wait_for(listener, POLLIN, Clock::now() + kTimeout));
  const Socket client(::accept(listener.fd(), nullptr, nullptr));
  static_cast<void>(::send(client.fd(), answer.data(), answer.size(), MSG_NOSIGNAL));
  ::shutdown(client.fd(), SHUT_WR);
  char byte = 0;
  while (::recv(client.fd(), &byte, 1, 0) > 0) {
  }
}

const std::string kOpening = "contextile gloo2" + std::string(kNonceBytes, 'n');

TEST(AddressRendezvous, TakesNoMemoryForAnAnswerBeyondItsBounds) {
  const std::uint64_t size = std::uint64_t{1} << 30;
  const std::string header =
      "A" + std::string(7, '\0') + std::string(reinterpret_cast<const char*>(&size), sizeof(size));
  for (const std::string& answer : {kOpening + header, kOpening, std::string()}) {
    const auto rank_zero = [&](const Socket& listener) { answer_blindly(listener, answer); };
    EXPECT_THAT(error_of_rank_one(rank_zero), testing::HasSubstr("without an answer"));
  }
}

TEST(AddressRendezvous, TrustsNobodyWhoDoesNotKnowTheSecret) {
  const std::string forged = kOpening + "F" + std::string(15, '\0') + std::string(kCodeBytes, 'x');
  const auto rank_zero = [&](const Socket& listener) { answer_blindly(listener, forged); };
  EXPECT_THAT(error_of_rank_one(rank_zero), testing::HasSubstr("does not know the secret"));
}

TEST(AddressRendezvous, CutsTheWordsOfOthers) {
  const Member host{Rank{0}, 2, "run", ""};
  const std::string error = error_of_rank_one([&](const Socket& listener) {
    Door door(host, "rendezvous", 4096);
    const std::optional<Guest> guest = door.next_guest(listener, Clock::now() + kTimeout);
    ASSERT_TRUE(guest);
    answer_guest(*guest, host, Reception::kFailure, std::string(50'000, 'x'));
  });
  EXPECT_THAT(error, testing::HasSubstr("rank 0 says: xxx"));
  EXPECT_LT(error.size(), 5000U);
}

// ------------------------------------------------------------------------------------ greetings

const std::string kSecret = "a secret of these two ranks";

// Returns whether a process with that secret and run is let in, and what it hears.
struct Meeting {
  bool let_in = false;
  std::optional<Caller::Answer> answer;
  std::string refusals;
};
Meeting meeting_of(const Member& caller, const Member& host) {
  const Listener listener;
  Meeting meeting;
  std::thread calls([&] {
    Caller call(listener.connect(), caller, "test");
    if (!call.greet("hello", Clock::now() + kTimeout)) return;
    meeting.answer = call.answer(4096, Clock::now() + kTimeout);
  });
  Door door(host, "test", 4096);
  while (door.refusals().empty() && !meeting.let_in) {
    const auto guest =
        door.next_guest(listener.socket, Clock::now() + std::chrono::milliseconds(10));
    if (!guest) continue;
    meeting.let_in = guest->words == "hello";
    answer_guest(*guest, host, Reception::kWelcome, "welcome");
  }
  calls.join();
  meeting.refusals = door.refusals();
  return meeting;
}

TEST(Greeting, LetsInWhoKnowsTheSecretAndTheRun) {
  for (const std::string& secret : {std::string(), kSecret}) {
    const Meeting meeting = meeting_of({Rank{1}, 2, "run", secret}, {Rank{0}, 2, "run", secret});
    EXPECT_TRUE(meeting.let_in);
    ASSERT_TRUE(meeting.answer);
    EXPECT_EQ(meeting.answer->verdict, Reception::kWelcome);
    EXPECT_EQ(meeting.answer->words, "welcome");
  }
}

TEST(Greeting, TurnsAwayAnotherSecretOrRunAndSaysSoToBoth) {
  const Member host{Rank{0}, 2, "run", kSecret};
  const std::vector<std::pair<Member, std::string>> callers = {
      {{Rank{1}, 2, "run", "another secret of others"}, "another secret"},
      {{Rank{1}, 2, "another run", kSecret}, "of another run"},
      {{Rank{1}, 2, "run", ""}, "without a secret, this group has one"}};
  for (const auto& [caller, refusal] : callers) {
    const Meeting meeting = meeting_of(caller, host);
    EXPECT_FALSE(meeting.let_in);
    EXPECT_THAT(meeting.refusals, testing::HasSubstr(refusal));
    ASSERT_TRUE(meeting.answer);
    EXPECT_EQ(meeting.answer->verdict, Reception::kStranger);
  }
  EXPECT_THAT(meeting_of({Rank{1}, 2, "run", kSecret}, {Rank{0}, 2, "run", ""}).refusals,
              testing::HasSubstr("with a secret, this group has none"));
}

// Strangers that never greet are there first, and stay.
TEST(Greeting, IsHeldUpByNoStranger) {
  const Listener listener;
  const Member host{Rank{0}, 2, "run", kSecret};
  std::vector<Socket> strangers;
  for (const std::string& words :
       {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(5000, '\xff'),
        kOpening.substr(0, 20), kOpening, kOpening + std::string(100, '\x01')}) {
    strangers.push_back(listener.connect());
    static_cast<void>(::send(strangers.back().fd(), words.data(), words.size(), MSG_NOSIGNAL));
    static_cast<void>(listener.connect());  // closes again
  }
  std::thread rank([&] {
    Caller call(listener.connect(), {Rank{1}, 2, "run", kSecret}, "test");
    EXPECT_TRUE(call.greet("", Clock::now() + kTimeout));
    EXPECT_TRUE(call.answer(0, Clock::now() + kTimeout));
  });
  Door door(host, "test", 4096);
  const auto guest = door.next_guest(listener.socket, Clock::now() + kTimeout);
  ASSERT_TRUE(guest);
  EXPECT_EQ(guest->rank, Rank{1});
  answer_guest(*guest, host, Reception::kWelcome, "");
  rank.join();
}

// Everything that a rank sent is sent again by one that listened to it.
TEST(Greeting, DoesNotServeTwice) {
  const Member host{Rank{0}, 2, "run", kSecret};
  const auto recorded = [&] {
    const Listener listener;
    std::string heard;
    std::thread calls([&] {
      Caller call(listener.connect(), {Rank{1}, 2, "run", kSecret}, "test");
      static_cast<void>(call.greet("", Clock::now() + kTimeout));
    });
    EXPECT_TRUE(wait_for(listener.socket, POLLIN, Clock::now() + kTimeout));
    const Socket client(::accept(listener.socket.fd(), nullptr, nullptr));
    static_cast<void>(::send(client.fd(), kOpening.data(), kOpening.size(), MSG_NOSIGNAL));
    calls.join();
    std::array<char, 1000> bytes{};
    const ssize_t size = ::recv(client.fd(), bytes.data(), bytes.size(), 0);
    return std::string(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  }();
  EXPECT_EQ(recorded.find("run"), std::string::npos);
  EXPECT_EQ(recorded.find(kSecret), std::string::npos);
  const Listener listener;
  const Socket replay = listener.connect();
  ASSERT_EQ(::send(replay.fd(), recorded.data(), recorded.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(recorded.size()));
  Door door(host, "test", 4096);
  while (door.refusals().empty()) {
    EXPECT_FALSE(door.next_guest(listener.socket, Clock::now() + std::chrono::milliseconds(10)));
  }
}

// -------------------------------------------------------------------------------------- secrets

class SecretFile : public testing::Test {
 protected:
  void TearDown() override { std::remove(path_.c_str()); }
  [[nodiscard]] std::string secret_in(const std::string& text, mode_t mode = 0600) {
    std::remove(path_.c_str());  // the last one may not be written to
    std::ofstream(path_, std::ios::binary) << text;
    EXPECT_EQ(::chmod(path_.c_str(), mode), 0);
    GlooOptions options;
    options.secret_file = path_;
    return secret_of(options);
  }

 private:
  const std::string path_ = testing::TempDir() + "secret_" + std::to_string(::getpid());
};

TEST_F(SecretFile, EndsWithOneLineBreakThatDoesNotCount) {
  EXPECT_EQ(secret_in(kSecret), kSecret);
  EXPECT_EQ(secret_in(kSecret + "\n"), kSecret);
  EXPECT_EQ(secret_in(kSecret + "\r\n"), kSecret);
  EXPECT_EQ(secret_in(kSecret + "\n\n"), kSecret + "\n");
  EXPECT_EQ(secret_in(std::string(4096, 'x') + "\n").size(), 4096U);
}

TEST_F(SecretFile, IsRefusedWhereOthersMayUseItAndWhereItsSizeIsWrong) {
  EXPECT_EQ(secret_in(kSecret, 0440), kSecret);
  EXPECT_THROW(static_cast<void>(secret_in(kSecret, 0644)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(secret_in(kSecret, 0602)), InvalidArgument);
  EXPECT_THROW(static_cast<void>(secret_in("too short\n")), InvalidArgument);
  EXPECT_THROW(static_cast<void>(secret_in("")), InvalidArgument);
  EXPECT_THROW(static_cast<void>(secret_in(std::string(4097, 'x'))), InvalidArgument);
  GlooOptions options;
  options.secret_file = "/no/such/file";
  EXPECT_THROW(static_cast<void>(secret_of(options)), IoError);
  options.secret_file = "/dev/zero";
  EXPECT_THROW(static_cast<void>(secret_of(options)), InvalidArgument);
  options.secret = kSecret;
  EXPECT_THROW(static_cast<void>(secret_of(options)), InvalidArgument);
}

}  // namespace
}  // namespace contextile
