// Files that change while they are read.
#include "base/steady_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/file_bytes.h"
#include "contextile/base.h"
#include "support/message_of.h"

namespace contextile {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ChangingFiles : public ::testing::Test {
 protected:
  static constexpr std::size_t kSize = 100'000;

  void SetUp() override {
    folder_ =
        fs::path(::testing::TempDir()) / ("contextile_changing_" + std::to_string(::getpid()));
    fs::remove_all(folder_);
    fs::create_directory(folder_);
    path_ = folder_ / "file";
    put(path_, 'a', kSize);
    // A clock of files is coarse: a change that follows the first bytes at once has their time.
    fs::last_write_time(path_, fs::file_time_type::clock::now() - std::chrono::hours(1));
  }
  void TearDown() override { fs::remove_all(folder_); }

  static void put(const std::string& path, char c, std::size_t size) {
    std::ofstream(path, std::ios::binary) << std::string(size, c);
  }

  // Reads the file and calls change() between its first bytes and the rest.
  template <typename Change>
  [[nodiscard]] std::string read_while(const Change& change) const {
    const FileBytes file(path_, [&](std::span<const std::uint8_t>, std::string_view) {
      change();
      return kMaxTextBytes;
    });
    return std::string(file.text());
  }

  fs::path folder_;
  std::string path_;
};

TEST_F(ChangingFiles, ShrinkingIsAnErrorWithBothSizes) {
  EXPECT_EQ(message_of<IoError>(
                [&] { return read_while([&] { ASSERT_EQ(::truncate(path_.c_str(), 5000), 0); }); }),
            path_ + ": expected 100000 bytes, found 5000: the file shrank while it was read");
}

TEST_F(ChangingFiles, GrowingIsAnErrorWithBothSizes) {
  EXPECT_EQ(message_of<IoError>(
                [&] { return read_while([&] { std::ofstream(path_, std::ios::app) << "more"; }); }),
            path_ + ": expected 100000 bytes, found 100004: the file grew while it was read");
}

TEST_F(ChangingFiles, OtherBytesOfTheSameNumberAreAnError) {
  EXPECT_THAT(message_of<IoError>([&] { return read_while([&] { put(path_, 'b', kSize); }); }),
              HasSubstr(path_ + ": expected 100000 bytes that stay the same"));
}

TEST_F(ChangingFiles, AFileThatAnotherOneReplacesIsReadToItsEnd) {
  const std::string found = read_while([&] {
    put(folder_ / "new", 'b', 10);
    fs::rename(folder_ / "new", path_);
  });
  EXPECT_EQ(found, std::string(kSize, 'a'));
}

TEST_F(ChangingFiles, BytesThatWereReadOutliveTheFile) {
  const FileBytes file(
      path_, [](std::span<const std::uint8_t>, std::string_view) { return kMaxTextBytes; });
  ASSERT_EQ(::truncate(path_.c_str(), 0), 0);
  EXPECT_EQ(file.text(), std::string(kSize, 'a'));
}

TEST_F(ChangingFiles, PiecesOfAnOpenFileAreNotReadAfterAChange) {
  const SteadyFile file(path_);
  std::vector<std::uint8_t> piece(1000);
  file.read(99'000, piece);
  EXPECT_EQ(piece, std::vector<std::uint8_t>(1000, 'a'));
  EXPECT_EQ(message_of<IoError>([&] {
              file.read(99'500, piece);
              return 0;
            }),
            path_ + ": expected 1000 bytes from byte 99500 on, found 500");
  ASSERT_EQ(::truncate(path_.c_str(), 99'001), 0);
  EXPECT_THAT(message_of<IoError>([&] {
                file.read(0, piece);
                return 0;
              }),
              HasSubstr("expected 100000 bytes, found 99001"));
}

TEST_F(ChangingFiles, NoSizeIsWorthHalfOfAllMemory) {
  ASSERT_EQ(::truncate(path_.c_str(), std::int64_t{1} << 43), 0);
  EXPECT_THAT(message_of<IoError>([&] { return read_while([] {}); }),
              ::testing::AllOf(HasSubstr("half of this machine's memory"),
                               HasSubstr("found 8796093022208")));
}

TEST_F(ChangingFiles, OnlyRegularFilesAreReadInPieces) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto refusal = [](const std::string& path) {
    return message_of<IoError>([&] { return SteadyFile(path).size(); });
  };
  EXPECT_THAT(refusal(pipe), StartsWith(pipe + ": expected a regular file, found a pipe"));
  EXPECT_THAT(refusal("/dev/zero"), StartsWith("/dev/zero: expected a regular file"));
  EXPECT_EQ(refusal(folder_), folder_.string() + ": cannot read: Is a directory");
  EXPECT_EQ(refusal("/no/such/file"), "/no/such/file: cannot read: No such file or directory");
}

// Files of /sys say that they have a page of bytes.
TEST_F(ChangingFiles, AFileThatAlwaysSaysTooMuchIsReadToItsEnd) {
  const std::string path = "/sys/kernel/mm/transparent_hugepage/enabled";
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0 || status.st_size == 0) GTEST_SKIP() << "no " << path;
  const FileBytes file(path, expect_text("words"));
  EXPECT_THAT(file.text(), HasSubstr("always"));
  EXPECT_LT(file.bytes().size(), static_cast<std::size_t>(status.st_size));
}

// Another thread cuts the file short and fills it again, at any moment.
TEST_F(ChangingFiles, EndInAnErrorOrInBytesAndNeverInASignal) {
  put(path_, 'b', kSize);
  std::atomic<bool> done = false;
  std::thread writer([&] {
    while (!done) {
      ASSERT_EQ(::truncate(path_.c_str(), 0), 0);
      put(path_, 'b', kSize);
    }
  });
  for (int i = 0; i < 300; ++i) {
    try {
      const std::string found = read_while([] {});
      EXPECT_EQ(found, std::string(found.size(), 'b'));
    } catch (const IoError&) {
    }
  }
  done = true;
  writer.join();
}

}  // namespace
}  // namespace contextile
