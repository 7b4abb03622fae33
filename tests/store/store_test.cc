// The duties of every store, tested over all of them.

#include "contextile/advanced/store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "store/redis_server.h"
#include "support/in_child.h"
#include "support/message_of.h"

namespace contextile {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kLong = hours(1);
constexpr StoreOptions kPatientStore{.timeout = seconds(120)};

StoreValue bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

StoreValue random_bytes(std::size_t size, std::uint64_t seed) {
  Rng rng(seed);
  StoreValue bytes(size);
  for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(rng.next());
  return bytes;
}

// A place for stores of any kind; opening it again finds what others have stored.
class StoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (const StoreKind& kind : store_kinds()) {
      if (kind.scheme == GetParam() && !kind.missing.empty()) GTEST_SKIP() << kind.missing;
    }
    if (GetParam().starts_with("redis")) {
      if (!RedisServer::available()) GTEST_SKIP() << "no redis-server on this machine";
      server_ = std::make_unique<RedisServer>();
    }
    store_ = open();
  }

  [[nodiscard]] std::shared_ptr<Store> open() const {
    if (GetParam() == "memory") return store_ ? store_ : open_store("memory:");
    if (GetParam() == "file") return open_store("file://" + folder_.path(), kPatientStore);
    return open_store(GetParam() == "redis" ? server_->address() : server_->unix_address(),
                      kPatientStore);
  }
  [[nodiscard]] Store& store() const { return *store_; }

 private:
  TemporaryFolder folder_;
  std::unique_ptr<RedisServer> server_;
  std::shared_ptr<Store> store_;
};

TEST_P(StoreTest, GivesWhatWasPut) {
  EXPECT_FALSE(store().get("key").has_value());
  EXPECT_TRUE(store().put("key", bytes_of("value"), kLong));
  EXPECT_EQ(store().get("key"), bytes_of("value"));
  EXPECT_EQ(store().pull("key", seconds(0)), bytes_of("value"));
  EXPECT_EQ(open()->get("key"), bytes_of("value"));
  EXPECT_FALSE(store().get("other").has_value());
  EXPECT_FALSE(store().name().empty());
}

TEST_P(StoreTest, KeepsWhatIsThere) {
  EXPECT_TRUE(store().put("key", bytes_of("first"), kLong));
  EXPECT_FALSE(store().put("key", bytes_of("second"), kLong));
  EXPECT_FALSE(open()->put("key", bytes_of("first"), kLong));
  EXPECT_EQ(store().get("key"), bytes_of("first"));
}

TEST_P(StoreTest, ReplacesWhenAsked) {
  store().replace("key", bytes_of("first"), kLong);
  store().replace("key", bytes_of("a second, longer one"), kLong);
  EXPECT_EQ(store().get("key"), bytes_of("a second, longer one"));
}

TEST_P(StoreTest, ErasesOnce) {
  EXPECT_FALSE(store().erase("key"));
  EXPECT_TRUE(store().put("key", bytes_of("value"), kLong));
  EXPECT_TRUE(store().erase("key"));
  EXPECT_FALSE(store().erase("key"));
  EXPECT_FALSE(store().get("key").has_value());
  EXPECT_TRUE(store().put("key", bytes_of("again"), kLong));
}

TEST_P(StoreTest, TakesAnyBytes) {
  const std::vector<std::string> keys = {"a",
                                         ".",
                                         "..",
                                         "/",
                                         "../../etc/passwd",
                                         "run/12/3",
                                         "lock",
                                         "draft-1",
                                         "with space\n",
                                         std::string("\0\x01\xff%2f", 6),
                                         "%",
                                         "%2F",
                                         "KEY",
                                         "key",
                                         std::string(80, '/'),
                                         std::string(79, '/') + "."};
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_TRUE(store().put(keys[i], random_bytes(i, i), kLong)) << i;
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    EXPECT_EQ(store().get(keys[i]), random_bytes(i, i)) << i;
    EXPECT_TRUE(store().erase(keys[i])) << i;
  }
}

TEST_P(StoreTest, KeepsEmptyValues) {
  EXPECT_TRUE(store().put("key", {}, kLong));
  EXPECT_FALSE(store().put("key", bytes_of("other"), kLong));
  EXPECT_EQ(store().pull("key", seconds(0)), StoreValue{});
  EXPECT_TRUE(store().renew("key", {}, kLong));
  EXPECT_FALSE(store().renew("missing", {}, kLong));
}

TEST_P(StoreTest, KeepsLargeValues) {
  const StoreValue large = random_bytes(std::size_t{64} << 20, 3);
  EXPECT_TRUE(store().put("large", large, kLong));
  EXPECT_EQ(store().pull("large", seconds(60)), large);
  EXPECT_TRUE(store().erase("large"));
}

TEST_P(StoreTest, ForgetsWhatHasExpired) {
  EXPECT_TRUE(store().put("key", bytes_of("short"), milliseconds(1)));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(store().get("key").has_value());
  EXPECT_FALSE(store().pull("key", milliseconds(1)).has_value());
  EXPECT_FALSE(store().renew("key", bytes_of("short"), kLong));
  EXPECT_FALSE(store().erase("key"));
  EXPECT_TRUE(store().put("key", bytes_of("long"), kLong));
  EXPECT_EQ(store().get("key"), bytes_of("long"));
}

TEST_P(StoreTest, KeepsWhatIsRenewed) {
  EXPECT_TRUE(store().put("claim", bytes_of("mine"), seconds(30)));
  EXPECT_FALSE(store().renew("claim", bytes_of("his"), milliseconds(1)));
  EXPECT_TRUE(store().renew("claim", bytes_of("mine"), milliseconds(1)));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(store().get("claim").has_value());
}

TEST_P(StoreTest, WaitsForWhatIsNotThereYet) {
  std::thread other([another = open()] {
    std::this_thread::sleep_for(milliseconds(30));
    static_cast<void>(another->put("late", random_bytes(100'000, 5), kLong));
  });
  EXPECT_EQ(store().pull("late", seconds(120)), random_bytes(100'000, 5));
  other.join();
  EXPECT_EQ(store().get("late"), random_bytes(100'000, 5)) << "pulling leaves it";
}

TEST_P(StoreTest, ServesAllWhoWaitForOneValue) {
  std::atomic<int> num_right = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, mine = open()] {
      if (mine->pull("late", seconds(120)) == bytes_of("value")) ++num_right;
    });
  }
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_TRUE(store().put("late", bytes_of("value"), kLong));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_right, 4);
  std::this_thread::sleep_for(milliseconds(5));
  EXPECT_TRUE(store().renew("late", bytes_of("value"), milliseconds(1)));
  std::this_thread::sleep_for(milliseconds(20));
  EXPECT_FALSE(store().get("late").has_value()) << "waiting for it does not lengthen its life";
}

TEST_P(StoreTest, GivesUpWaitingAtTheTimeout) {
  EXPECT_FALSE(store().pull("never", milliseconds(30)).has_value());
  EXPECT_FALSE(store().pull("never", milliseconds(-5)).has_value());
}

TEST_P(StoreTest, GivesEachClaimToOne) {
  constexpr int kThreads = 4;
  constexpr int kClaims = 50;
  std::vector<std::atomic<int>> owners(kClaims);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t, mine = open()] {
      for (int c = 0; c < kClaims; ++c) {
        const std::string key = "claim/" + std::to_string(c);
        if (mine->put(key, bytes_of(std::to_string(t)), kLong))
          ++owners[static_cast<std::size_t>(c)];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::atomic<int>& num_owners : owners) EXPECT_EQ(num_owners, 1);
}

TEST_P(StoreTest, GivesAnExpiredClaimToOne) {
  for (int round = 0; round < 10; ++round) {
    const std::string key = "claim/" + std::to_string(round);
    EXPECT_TRUE(store().put(key, bytes_of("dead"), milliseconds(1)));
    std::this_thread::sleep_for(milliseconds(5));
    std::atomic<int> owners = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t, mine = open()] {
        if (mine->put(key, bytes_of(std::to_string(t)), kLong)) ++owners;
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(owners, 1);
  }
}

TEST_P(StoreTest, ShowsWholeValuesOnly) {
  std::atomic<bool> done = false;
  std::thread writer([&, mine = open()] {
    for (std::uint64_t i = 0; i < 40; ++i) {
      mine->replace("key", StoreValue(10'000 + i, static_cast<std::uint8_t>(i)), kLong);
    }
    done = true;
  });
  while (!done) {
    const std::optional<StoreValue> value = store().get("key");
    if (!value) continue;
    const std::uint8_t first = value->front();
    ASSERT_EQ(*value, StoreValue(10'000UL + first, first));
  }
  writer.join();
}

TEST_P(StoreTest, RefusesWhatIsOutOfBounds) {
  const StoreValue value = bytes_of("value");
  EXPECT_EQ(message_of([&] { return store().put("", value, kLong); }),
            "store: put: expected a key of 1 to 80 bytes, found 0: ''");
  EXPECT_THROW(static_cast<void>(store().get(std::string(81, 'k'))), InvalidArgument);
  EXPECT_EQ(message_of([&] { return store().put("key", value, milliseconds(0)); }),
            "store: put 'key': expected an expiry of 1 to 86400000000 ms, found 0");
  EXPECT_THROW(static_cast<void>(store().put("key", value, kMaxStoreExpiry + seconds(1))),
               InvalidArgument);
  // Only its size is looked at.
  const std::span<const std::uint8_t> huge(value.data(), kMaxStoreValueBytes + 1);
  EXPECT_EQ(message_of([&] { return store().put("key", huge, kLong); }),
            "store: put 'key': expected a value of at most 268435456 bytes, found 268435457");
  EXPECT_FALSE(store().get("key").has_value());
}

INSTANTIATE_TEST_SUITE_P(Every, StoreTest,
                         ::testing::Values("memory", "file", "redis", "redis+unix"),
                         [](const auto& info) {
                           return info.param == "redis+unix" ? "redis_unix" : info.param;
                         });

// Answers for a child of this process must not mix with those for the process itself.
TEST_P(StoreTest, ServesAChildMadeByFork) {
  constexpr int kTimes = 200;
  ASSERT_TRUE(store().put("parent", bytes_of("1"), kLong));
  const bool is_shared = GetParam() != "memory";
  const ChildProcess child([&] {
    try {
      for (int i = 0; i < kTimes; ++i) {
        store().replace("child", bytes_of("2"), kLong);
        if (store().get("child") != bytes_of("2")) return 1;
      }
      return is_shared ? 0 : 2;
    } catch (const InvalidArgument&) {
      return is_shared ? 3 : 0;
    }
  });
  for (int i = 0; i < kTimes; ++i) EXPECT_EQ(store().get("parent"), bytes_of("1"));
  EXPECT_EQ(child.status(), 0);
  EXPECT_EQ(store().get("child").has_value(), is_shared);
}

TEST(StoreAddress, EveryKindIsTested) {
  std::vector<std::string_view> schemes;
  for (const StoreKind& kind : store_kinds()) schemes.push_back(kind.scheme);
  EXPECT_EQ(schemes, (std::vector<std::string_view>{"memory", "file", "redis", "redis+unix"}));
}

TEST(StoreAddress, UnknownOnesAreRefused) {
  EXPECT_EQ(message_of([] { return open_store("rediss://host"); }),
            "store: expected one of memory:, file:///FOLDER, redis://HOST[:PORT][/DATABASE], "
            "redis+unix:///SOCKET, found 'rediss://host'; did you mean 'redis'?");
  EXPECT_THROW(static_cast<void>(open_store("")), InvalidArgument);
  EXPECT_THROW(static_cast<void>(open_store("memory")), InvalidArgument);
  EXPECT_THROW(static_cast<void>(open_store("memory:name")), InvalidArgument);
  EXPECT_THROW(static_cast<void>(open_store("file://relative")), InvalidArgument);
  EXPECT_THROW(static_cast<void>(open_store("memory:", {.timeout = milliseconds(0)})),
               InvalidArgument);
}

TEST(StoreAddress, PasswordsAreNotShown) {
  const std::string message = message_of([] { return open_store("http://me:secret@host"); });
  EXPECT_EQ(message.find("secret"), std::string::npos) << message;
}

}  // namespace
}  // namespace contextile
