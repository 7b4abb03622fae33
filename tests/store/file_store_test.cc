// Tests that only concern values in files.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "contextile/advanced/store.h"
#include "store/redis_server.h"
#include "store/value_file.h"
#include "support/message_of.h"

namespace contextile {
namespace {

namespace fs = std::filesystem;
using std::chrono::hours;
using std::chrono::milliseconds;

std::vector<std::string> files_of(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void write(const std::string& path, std::string_view text) { std::ofstream(path) << text; }

TEST(FileStore, MakesItsFolder) {
  const TemporaryFolder parent;
  const auto store = open_store("file://" + parent.path() + "/new");
  EXPECT_TRUE(store->put("key", {}, hours(1)));
  EXPECT_EQ(store->name(), "file://" + parent.path() + "/new");
  EXPECT_THROW(static_cast<void>(open_store("file://" + parent.path() + "/a/b")), IoError);
  write(parent.path() + "/file", "");
  EXPECT_THROW(static_cast<void>(open_store("file://" + parent.path() + "/file")), IoError);
}

TEST(FileStore, KeepsNothingOfWhatIsErased) {
  const TemporaryFolder folder;
  const auto store = open_store("file://" + folder.path());
  EXPECT_TRUE(store->put("a/b", {}, hours(1)));
  EXPECT_FALSE(store->put("a/b", {}, hours(1)));
  EXPECT_EQ(files_of(folder.path()), (std::vector<std::string>{"lock", "v-a%2fb"}));
  EXPECT_TRUE(store->erase("a/b"));
  EXPECT_EQ(files_of(folder.path()), std::vector<std::string>{"lock"});
}

TEST(FileStore, SweepsWhatHasExpired) {
  const TemporaryFolder folder;
  const std::string address = "file://" + folder.path();
  EXPECT_TRUE(open_store(address)->put("short", {}, milliseconds(1)));
  EXPECT_TRUE(open_store(address)->put("long", {}, hours(1)));
  write(folder.path() + "/draft-1", "of a process that was killed");
  write(folder.path() + "/draft-2", "of one that is at work");
  fs::last_write_time(folder.path() + "/draft-1", fs::file_time_type::clock::now() - hours(1));
  std::this_thread::sleep_for(milliseconds(20));
  static_cast<void>(open_store(address));
  EXPECT_EQ(files_of(folder.path()), (std::vector<std::string>{"draft-2", "lock", "v-long"}));
}

TEST(FileStore, NamesWhatIsNoValue) {
  const TemporaryFolder folder;
  const auto store = open_store("file://" + folder.path());
  const std::string file = folder.path() + "/v-key";
  write(file, "something else, longer than a header");
  EXPECT_EQ(message_of<IoError>([&] { return store->get("key"); }),
            file +
                ": expected a value of a store, which begins with 'CTXVALUE' and has at least 24 "
                "bytes, found 'somethin' and 36 bytes");
  write(file, "");
  EXPECT_THROW(static_cast<void>(store->get("key")), IoError);
  EXPECT_THROW(static_cast<void>(store->put("key", {}, hours(1))), IoError);
  store->replace("key", {}, hours(1));
  EXPECT_EQ(store->get("key"), StoreValue{});
  fs::resize_file(file, 23);
  EXPECT_THROW(static_cast<void>(store->get("key")), IoError);
  fs::resize_file(file, 25);
  EXPECT_EQ(message_of<IoError>([&] { return store->get("key"); }),
            file +
                ": expected a value of 1 bytes (of the file) and at most 268435456, found 0 (of "
                "its header)");
}

TEST(FileStore, APipeInTheFolderIsNoValueAndKeepsNobodyWaiting) {
  const TemporaryFolder folder;
  const auto store = open_store("file://" + folder.path());
  ASSERT_EQ(::mkfifo((folder.path() + "/v-key").c_str(), 0600), 0);
  EXPECT_THROW(static_cast<void>(store->get("key")), IoError);
  EXPECT_TRUE(store->put("other", {}, hours(1)));
}

TEST(FileStore, HeadersComeBack) {
  for (const std::int64_t end_ms : {std::int64_t{0}, std::int64_t{1} << 62, std::int64_t{-1}}) {
    const auto bytes = encode_value_header({end_ms, 7});
    const ValueHeader header = decode_value_header(bytes, 31, "file");
    EXPECT_EQ(header.end_ms, end_ms);
    EXPECT_EQ(header.value_bytes, 7);
  }
  const auto huge = encode_value_header({0, ~std::uint64_t{0}});
  EXPECT_THROW(static_cast<void>(decode_value_header(huge, 23, "file")), IoError);
}

// A process that stores as fast as it can until it is killed.
pid_t start_writer(const std::string& address) {
  const pid_t process = ::fork();
  if (process != 0) return process;
  try {
    const auto store = open_store(address);
    for (std::uint8_t i = 0;; ++i) store->replace("key", StoreValue(300'000, i), hours(1));
  } catch (...) {
    ::_exit(1);
  }
}

TEST(FileStore, SurvivesKilledWriters) {
  const TemporaryFolder folder;
  const std::string address = "file://" + folder.path();
  const auto store = open_store(address, {.timeout = std::chrono::seconds(120)});
  for (int round = 0; round < 5; ++round) {
    const pid_t writer = start_writer(address);
    EXPECT_TRUE(store->pull("key", std::chrono::seconds(120)).has_value());
    std::this_thread::sleep_for(milliseconds(3 * round));
    ::kill(writer, SIGKILL);
    ::waitpid(writer, nullptr, 0);
    const std::optional<StoreValue> value = store->get("key");
    ASSERT_TRUE(value.has_value());
    EXPECT_EQ(*value, StoreValue(300'000, value->front())) << "never in part";
    EXPECT_TRUE(store->erase("key")) << "the dead one's lock is given back";
  }
}

TEST(FileStore, AProcessThatKeepsTheLockIsNamed) {
  const TemporaryFolder folder;
  const std::string address = "file://" + folder.path();
  const auto store = open_store(address, {.timeout = milliseconds(50)});
  const pid_t writer = start_writer(address);
  EXPECT_TRUE(store->pull("key", std::chrono::seconds(120)).has_value());
  // Sooner or later it is stopped while it holds the lock.
  std::string message;
  for (int i = 0; i < 2000 && message.empty(); ++i) {
    ::kill(writer, SIGSTOP);
    try {
      store->replace("other", {}, hours(1));
    } catch (const IoError& error) {
      message = error.what();
    }
    ::kill(writer, SIGCONT);
    std::this_thread::sleep_for(milliseconds(1));
  }
  ::kill(writer, SIGKILL);
  ::waitpid(writer, nullptr, 0);
  if (message.empty()) GTEST_SKIP() << "it was never stopped there";
  EXPECT_EQ(message,
            "store " + address +
                ": replace 'other': expected the lock of the folder within 50 ms, found it "
                "held by another process");
}

}  // namespace
}  // namespace contextile
