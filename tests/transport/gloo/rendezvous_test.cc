// How ranks find each other, where timing matters; gloo_test.py does the rest with processes.
#include "transport/gloo/rendezvous.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace contextile {
namespace {

// An address that nobody has at the moment.
std::string free_address() {
  const int server = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  const bool found =
      ::bind(server, generic, size) == 0 && ::getsockname(server, generic, &size) == 0;
  ::close(server);
  if (!found) throw std::runtime_error("no free port");
  return "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

TEST(AddressRendezvous, TakesARankThatComesForTheNextGroupBeforeRankZeroIsDoneWithThis) {
  const std::string address = free_address();
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

}  // namespace
}  // namespace contextile
