// Tests that only concern a server that can go away.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "contextile/advanced/store.h"
#include "store/redis_server.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class RedisStoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const StoreKind& kind : store_kinds()) {
      if (kind.scheme == "redis" && !kind.missing.empty()) GTEST_SKIP() << kind.missing;
    }
    if (!RedisServer::available()) GTEST_SKIP() << "no redis-server on this machine";
  }
};

constexpr StoreOptions kPatient{.timeout = seconds(120)};

TEST_F(RedisStoreTest, AVanishedServerIsNamed) {
  RedisServer server;
  const auto started = open_store(server.address(), kPatient);
  const auto store = open_store(server.address(), {.timeout = milliseconds(500)});
  EXPECT_TRUE(store->put("key", {}, hours(1)));
  server.kill();
  const StoreValue large(1'000'000);  // more than the system takes at once
  for (int i = 0; i < 2; ++i) {       // the second call has no connection to begin with
    EXPECT_THAT(message_of<IoError>([&] { return store->put("run/3/1", large, hours(1)); }),
                AllOf(HasSubstr("store " + server.address() +
                                ": put 'run/3/1': expected a Redis "
                                "server, found none in "),
                      HasSubstr(" ms ("), HasSubstr("tries)")));
  }
  EXPECT_THROW(static_cast<void>(store->pull("key", seconds(60))), IoError);
  EXPECT_THROW(static_cast<void>(open_store(server.address(), {.timeout = milliseconds(200)})),
               IoError);
}

TEST_F(RedisStoreTest, ARestartedServerIsFoundAgain) {
  RedisServer server;
  const auto store = open_store(server.unix_address(), kPatient);
  EXPECT_TRUE(store->put("key", {}, hours(1)));
  server.kill();
  std::thread later([&] {
    std::this_thread::sleep_for(milliseconds(50));
    server.start();
  });
  EXPECT_TRUE(store->put("key", StoreValue(3), hours(1))) << "the old one's values are gone";
  later.join();
  EXPECT_EQ(store->get("key"), StoreValue(3));
}

TEST_F(RedisStoreTest, WhoWaitsIsServedByTheRestartedServer) {
  RedisServer server;
  const auto store = open_store(server.address(), kPatient);
  std::optional<StoreValue> found;
  std::thread waiting([&] { found = store->pull("key", seconds(120)); });
  std::this_thread::sleep_for(milliseconds(30));
  server.kill();
  server.start();
  const auto other = open_store(server.address(), kPatient);
  EXPECT_TRUE(other->put("key", StoreValue(5), hours(1)));
  waiting.join();
  EXPECT_EQ(found, StoreValue(5));
}

TEST_F(RedisStoreTest, AServerThatDoesNotAnswerIsNamed) {
  RedisServer server;
  static_cast<void>(open_store(server.address(), kPatient));
  const auto store = open_store(server.address(), {.timeout = milliseconds(500)});
  server.stop_answering();
  EXPECT_THAT(message_of<IoError>([&] { return store->get("key"); }),
              AllOf(HasSubstr(server.address() + ": get 'key'"), HasSubstr("no answer")));
  server.answer_again();
}

TEST_F(RedisStoreTest, WaitingForOneValueHoldsNobodyUp) {
  RedisServer server;
  const auto store = open_store(server.address(), kPatient);
  std::thread waiting([&] { EXPECT_EQ(store->pull("second", seconds(120)), StoreValue(2)); });
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_TRUE(store->put("first", StoreValue(1), hours(1)));
  EXPECT_TRUE(store->put("second", StoreValue(2), hours(1)));
  waiting.join();
}

TEST_F(RedisStoreTest, AsksWithThePassword) {
  RedisServer server({"--requirepass", "open sesame"});
  const std::string where = "127.0.0.1:" + std::to_string(server.port());
  const auto store = open_store("redis://:open%20sesame@" + where + "/2", kPatient);
  EXPECT_EQ(store->name(), "redis://" + where + "/2");
  EXPECT_TRUE(store->put("key", {}, hours(1)));
  EXPECT_THAT(message_of<IoError>([&] { return open_store("redis://" + where, kPatient); }),
              HasSubstr("NOAUTH"));
  EXPECT_THAT(
      message_of<IoError>([&] { return open_store("redis://me:wrong@" + where, kPatient); }),
      AllOf(HasSubstr("WRONGPASS"), Not(HasSubstr("wrong@"))));
}

TEST_F(RedisStoreTest, DatabasesAreApart) {
  RedisServer server;
  EXPECT_TRUE(open_store(server.address() + "/1", kPatient)->put("key", {}, hours(1)));
  EXPECT_FALSE(open_store(server.address() + "/2", kPatient)->get("key").has_value());
  EXPECT_THROW(static_cast<void>(open_store(server.address() + "/999", kPatient)), IoError);
}

TEST_F(RedisStoreTest, AFullServerIsNamed) {
  RedisServer server({"--maxmemory", "5mb", "--maxmemory-policy", "noeviction"});
  const auto store = open_store(server.address(), kPatient);
  const StoreValue value(1'000'000);
  const std::string message = message_of<IoError>([&] {
    for (int i = 0; i < 20; ++i) {
      static_cast<void>(store->put("key/" + std::to_string(i), value, hours(1)));
    }
  });
  EXPECT_THAT(message, HasSubstr("OOM"));
}

}  // namespace
}  // namespace contextile
