#include "base/file_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "contextile/base.h"

namespace contextile {
namespace {

std::string temporary_path(const std::string& name) {
  return testing::TempDir() + "contextile_" + std::to_string(::getpid()) + "_" + name;
}

TEST(FileBytes, ReadsARegularFile) {
  const std::string path = temporary_path("regular");
  std::ofstream(path, std::ios::binary) << std::string("a\0b\n", 4);
  EXPECT_EQ(FileBytes(path).text(), std::string_view("a\0b\n", 4));
  ::unlink(path.c_str());
}

TEST(FileBytes, ReadsAnEmptyFile) {
  const std::string path = temporary_path("empty");
  std::ofstream(path, std::ios::binary).flush();
  EXPECT_EQ(FileBytes(path).bytes().size(), 0U);
  ::unlink(path.c_str());
}

TEST(FileBytes, ReadsAPipeToItsEnd) {
  const std::string path = temporary_path("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::string content;
  for (int i = 0; i < 60'000; ++i) content += std::to_string(i) + "\n";
  std::thread writer([&] { std::ofstream(path, std::ios::binary) << content; });
  const FileBytes file(path);
  writer.join();
  EXPECT_EQ(file.text(), content);
  ::unlink(path.c_str());
}

TEST(FileBytes, FailsWithPathAndReason) {
  const auto message = [](const std::string& path) -> std::string {
    try {
      const FileBytes file(path);
    } catch (const IoError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(message("/no/such/file"), "/no/such/file: cannot read: No such file or directory");
  EXPECT_EQ(message("/"), "/: cannot read: Is a directory");
}

}  // namespace
}  // namespace contextile
