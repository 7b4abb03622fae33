// Ranks find each other in cases where timing matters; gloo_test.py tests the rest with processes.
#include "transport/gloo/rendezvous.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/free_port.h"

namespace contextile {
namespace {

std::string address_of(std::uint16_t port) { return "tcp://127.0.0.1:" + std::to_string(port); }

TEST(AddressRendezvous, TakesARankThatComesForTheNextGroupBeforeRankZeroIsDoneWithThis) {
  const std::string address = address_of(free_port());
  const auto open = [&](std::int32_t rank, const std::string& run) {
    GlooOptions options;
    options.rank = Rank{rank};
    options.size = 2;
    options.rendezvous = address;
    options.run_id = run;
    return open_rendezvous(options);
  };
  const auto exchange = [](Rendezvous& rendezvous, std::int32_t rank, const std::string& run) {
    EXPECT_EQ(rendezvous.exchange({Rank{rank}, 2, run, {"to 0", "to 1"}}).size(), 2U);
  };
  std::thread other([&] {
    try {
      for (const std::string run : {"first", "second"}) exchange(*open(1, run), 1, run);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  });
  {
    const std::unique_ptr<Rendezvous> first = open(0, "first");
    exchange(*first, 0, "first");
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until the other is there again
  }
  try {
    exchange(*open(0, "second"), 0, "second");
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
  }
  other.join();
}

// Returns the error of rank 1 if rank 0 answers with these bytes and ends the connection.
std::string error_of_answer(const std::string& answer) {
  const std::uint16_t port = free_port();
  const int server = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(port);
  EXPECT_EQ(::bind(server, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0);
  EXPECT_EQ(::listen(server, 1), 0);
  std::thread impostor([&] {
    const int client = ::accept(server, nullptr, nullptr);
    static_cast<void>(::send(client, answer.data(), answer.size(), MSG_NOSIGNAL));
    ::shutdown(client, SHUT_WR);
    char byte = 0;
    while (::recv(client, &byte, 1, 0) > 0) {
    }
    ::close(client);
  });
  std::string found;
  try {
    GlooOptions options;
    options.rank = Rank{1};
    options.size = 2;
    options.rendezvous = address_of(port);
    options.connect_timeout = std::chrono::seconds(20);
    static_cast<void>(open_rendezvous(options)->exchange({Rank{1}, 2, "", {"to 0", "to 1"}}));
  } catch (const TransportError& error) {
    found = error.what();
  }
  impostor.join();
  ::close(server);
  return found;
}

std::string with_size(std::uint64_t size, const std::string& text) {
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + text;
}

TEST(AddressRendezvous, TakesNoMemoryForAnAnswerBeyondItsBounds) {
  EXPECT_NE(error_of_answer(with_size(std::uint64_t{1} << 30, "")).find("without an answer"),
            std::string::npos);
  EXPECT_NE(error_of_answer("").find("without an answer"), std::string::npos);
}

TEST(AddressRendezvous, CutsTheWordsOfOthers) {
  const std::string words = "F" + std::string(50'000, 'x');
  const std::string error = error_of_answer(with_size(words.size(), words));
  EXPECT_NE(error.find("rank 0 says: xxx"), std::string::npos);
  EXPECT_LT(error.size(), 5000U);
}

}  // namespace
}  // namespace contextile
