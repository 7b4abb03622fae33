#include "base/file_bytes.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <thread>

#include "contextile/base.h"
#include "support/message_of.h"

namespace contextile {
namespace {

std::string temporary_path(const std::string& name) {
  return testing::TempDir() + "contextile_" + std::to_string(::getpid()) + "_" + name;
}

const FirstLook kAnything = [](std::span<const std::uint8_t>, std::string_view) {
  return kMaxTextBytes;
};

// The message of the failure, whatever its type.
std::string failure_of(const std::string& path, const FirstLook& look) {
  return message_of<Error>([&] { const FileBytes file(path, look); });
}

TEST(FileBytes, ReadsARegularFile) {
  const std::string path = temporary_path("regular");
  std::ofstream(path, std::ios::binary) << std::string("a\0b\n", 4);
  const FileBytes file(path, kAnything);
  EXPECT_EQ(file.text(), std::string_view("a\0b\n", 4));
  EXPECT_EQ(file.name(), path);
  ::unlink(path.c_str());
}

TEST(FileBytes, ReadsAnEmptyFile) {
  const std::string path = temporary_path("empty");
  std::ofstream(path, std::ios::binary).flush();
  EXPECT_EQ(FileBytes(path, kAnything).bytes().size(), 0U);
  ::unlink(path.c_str());
}

TEST(FileBytes, ReadsAPipeToItsEnd) {
  const std::string path = temporary_path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::string content;
  for (int i = 0; i < 60'000; ++i) content += std::to_string(i) + "\n";
  std::thread writer([&] { std::ofstream(path, std::ios::binary) << content; });
  const FileBytes file(path, kAnything);
  writer.join();
  EXPECT_EQ(file.text(), content);
  ::unlink(path.c_str());
}

TEST(FileBytes, FailsWithPathAndReason) {
  EXPECT_EQ(failure_of("/no/such/file", kAnything),
            "/no/such/file: cannot read: No such file or directory");
  EXPECT_EQ(failure_of("/", kAnything), "/: cannot read: Is a directory");
}

TEST(FileBytes, StopsReadingWhatHasNoEnd) {
  const FirstLook first_10_000 = [](std::span<const std::uint8_t>, std::string_view) {
    return std::uint64_t{10'000};
  };
  EXPECT_EQ(failure_of("/dev/zero", first_10_000),
            "/dev/zero: expected at most 10000 bytes, found more");
}

TEST(FileBytes, LooksAtTheFirstBytesOfAnySource) {
  const FirstLook text = expect_text("lengths");
  EXPECT_EQ(failure_of("/dev/zero", text),
            "/dev/zero: expected lengths, found the byte 0x00 at 0: no text");
  const std::string path = temporary_path("sparse");
  std::ofstream(path, std::ios::binary) << "512\n";
  ASSERT_EQ(::truncate(path.c_str(), std::int64_t{1} << 36), 0);
  EXPECT_EQ(failure_of(path, text), path + ": expected lengths, found the byte 0x00 at 4: no text");
  ::unlink(path.c_str());
}

TEST(FileBytes, TakesTextOfEveryLanguage) {
  const std::string path = temporary_path("text");
  std::ofstream(path, std::ios::binary) << "\xef\xbb\xbf"
                                           "512\r\n\t1024 \xc3\xa4\n";
  EXPECT_EQ(failure_of(path, expect_text("lengths")), "no error");
  ::unlink(path.c_str());
}

TEST(FileBytes, ReadsStandardInputForADash) {
  const std::string path = temporary_path("stdin");
  std::ofstream(path, std::ios::binary) << "from standard input";
  const int before = ::dup(STDIN_FILENO);
  const int file = ::open(path.c_str(), O_RDONLY);
  ::dup2(file, STDIN_FILENO);
  const FileBytes bytes("-", kAnything);
  EXPECT_EQ(bytes.text(), "from standard input");
  EXPECT_EQ(bytes.name(), "standard input");
  ::dup2(before, STDIN_FILENO);
  ::close(before);
  ::close(file);
  ::unlink(path.c_str());
}

}  // namespace
}  // namespace contextile
