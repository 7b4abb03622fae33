// Servers that are no Redis, or answer what Redis never would.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "contextile/advanced/store.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Answers the first command of a connection with a greeting, every other one with `answer`, and
// keeps the connection open: who waits for more waits in vain.
class FakeServer {
 public:
  explicit FakeServer(std::string answer, std::string greeting = "+PONG\r\n")
      : answer_(std::move(answer)), greeting_(std::move(greeting)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    listener_ = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::bind(listener_, any, size) != 0 || ::listen(listener_, 8) != 0 ||
        ::getsockname(listener_, any, &size) != 0) {
      throw std::runtime_error("no server for the test");
    }
    address_ = "redis://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    thread_ = std::thread([this] { serve(); });
  }
  ~FakeServer() {
    done_ = true;
    thread_.join();
    ::close(listener_);
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  void serve() {
    while (!done_) {
      if (!readable(listener_)) continue;
      const int connection = ::accept(listener_, nullptr, nullptr);
      answer_commands(connection);
      ::close(connection);
    }
  }

  void answer_commands(int connection) const {
    std::array<char, 4096> command{};
    for (const std::string* next = &greeting_; !done_; next = &answer_) {
      while (!readable(connection)) {
        if (done_) return;
      }
      if (::recv(connection, command.data(), command.size(), 0) <= 0) return;
      std::string_view rest = *next;
      while (!rest.empty()) {
        const ssize_t sent = ::send(connection, rest.data(), rest.size(), MSG_NOSIGNAL);
        if (sent <= 0) return;
        rest.remove_prefix(static_cast<std::size_t>(sent));
      }
    }
  }

  [[nodiscard]] static bool readable(int descriptor) {
    pollfd waiting{descriptor, POLLIN, 0};
    return ::poll(&waiting, 1, 10) > 0;
  }

  const std::string answer_;
  const std::string greeting_;
  std::string address_;
  int listener_ = -1;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

class RedisAnswers : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const StoreKind& kind : store_kinds()) {
      if (kind.scheme == "redis" && !kind.missing.empty()) GTEST_SKIP() << kind.missing;
    }
  }

  // The error of a get that is answered so. It comes at once: the store's patience is far longer
  // than a test.
  static std::string error_of(const std::string& answer) {
    const FakeServer server(answer);
    const auto store = open_store(server.address(), {.timeout = seconds(3600)});
    return message_of<IoError>([&] { return store->get("key"); });
  }
};

TEST_F(RedisAnswers, AreValuesOrNothing) {
  const FakeServer value("$3\r\nabc\r\n");
  EXPECT_EQ(open_store(value.address())->get("key"), (StoreValue{'a', 'b', 'c'}));
  const FakeServer empty("$0\r\n\r\n");
  EXPECT_EQ(open_store(empty.address())->get("key"), StoreValue{});
  for (const char* nothing : {"$-1\r\n", "*-1\r\n"}) {
    const FakeServer server(nothing);
    EXPECT_EQ(open_store(server.address())->get("key"), std::nullopt);
  }
}

TEST_F(RedisAnswers, OfManyPiecesAreReadWhole) {
  const std::string text(3'000'000, 'x');
  const FakeServer server("$3000000\r\n" + text + "\r\n");
  const auto found = open_store(server.address(), {.timeout = seconds(3600)})->get("key");
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(std::string(found->begin(), found->end()), text);
}

TEST_F(RedisAnswers, ThatAnnounceArraysAreRefusedBeforeMemoryIsReserved) {
  for (const char* size : {"2000000000", "4294967295", "1", "0", "x", ""}) {
    EXPECT_THAT(error_of("*" + std::string(size) + "\r\n"),
                HasSubstr("get 'key': expected an answer, found an array of '" + std::string(size) +
                          "' values"));
  }
}

TEST_F(RedisAnswers, ThatAnnounceMoreThanAValueAreRefusedBeforeTheyAreRead) {
  for (const char* size : {"268435457", "999999999999", "9223372036854775808", "-5", "x"}) {
    EXPECT_THAT(error_of("$" + std::string(size) + "\r\n"),
                HasSubstr("expected an answer, found a value of '" + std::string(size) +
                          "' bytes, of which at most 268435456 are stored"));
  }
}

TEST_F(RedisAnswers, WithoutAnEndAreCutOff) {
  for (const char* kind : {"+", "-", ":", "$", "*"}) {
    EXPECT_THAT(error_of(kind + std::string(100'000, '1')),
                HasSubstr("found more than 65536 bytes of an answer"));
  }
}

TEST_F(RedisAnswers, OfOtherProtocolsAreNamed) {
  EXPECT_THAT(error_of("HTTP/1.1 400 Bad Request\r\n\r\n"),
              HasSubstr("found an answer that begins with 'HTTP/1.1 400"));
  EXPECT_THAT(error_of("%1\r\n"), HasSubstr("found an answer that begins with '%1"));
  const FakeServer server("", "SSH-2.0-OpenSSH_9.2\r\n");
  EXPECT_THAT(message_of<IoError>([&] { return open_store(server.address()); }),
              HasSubstr("found an answer that begins with 'SSH-2.0"));
}

TEST_F(RedisAnswers, GiveNoOrdersToATerminal) {
  EXPECT_THAT(error_of("-ERR \x1b[31m red\r\n"), AllOf(HasSubstr("ERR"), Not(HasSubstr("\x1b"))));
  EXPECT_THAT(error_of("\x1b[31m"), Not(HasSubstr("\x1b")));
}

}  // namespace
}  // namespace contextile
