#include "base/replaced_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>

#include "base/new_file.h"
#include "contextile/base.h"
#include "support/message_of.h"

namespace contextile {
namespace {

namespace fs = std::filesystem;

class ReplacedFiles : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) /
              ("contextile_" + std::to_string(::getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directory(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ / name; }
  [[nodiscard]] std::ptrdiff_t num_files() const {
    return std::distance(fs::directory_iterator(folder_), {});
  }

  fs::path folder_;
};

void put(const std::string& path, const std::string& text) { std::ofstream(path) << text; }
std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}
void replace(const std::string& path, const std::string& text) {
  ReplacedFile file(path);
  file.write(text);
  file.commit();
}
std::string failure_of(const std::string& path) {
  return message_of<IoError>([&] { replace(path, "new"); });
}

TEST_F(ReplacedFiles, HoldTheOldContentUntilTheCommit) {
  put(path("a"), "old");
  {
    ReplacedFile file(path("a"));
    file.stream() << "new" << 1;
    EXPECT_EQ(content(path("a")), "old");
    EXPECT_EQ(num_files(), 2);
    file.commit();
  }
  EXPECT_EQ(content(path("a")), "new1");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(ReplacedFiles, AreUntouchedWithoutACommit) {
  put(path("a"), "old");
  {
    ReplacedFile file(path("a"));
    file.write("new");
    ReplacedFile other(path("b"));
    other.write("new");
  }
  EXPECT_EQ(content(path("a")), "old");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(ReplacedFiles, TakeMoreThanABuffer) {
  const std::string text(1'000'000, 'x');
  replace(path("a"), text);
  EXPECT_EQ(content(path("a")), text);
}

TEST_F(ReplacedFiles, KeepTheModeOfTheOldFile) {
  put(path("a"), "old");
  ::chmod(path("a").c_str(), 0640);
  replace(path("a"), "new");
  EXPECT_EQ(fs::status(path("a")).permissions(), fs::perms{0640});
}

TEST_F(ReplacedFiles, BehindSymbolicLinksLeaveTheLinks) {
  fs::create_directory(path("folder"));
  put(path("folder/target"), "old");
  fs::create_symlink("folder/target", path("inner"));
  fs::create_symlink(path("inner"), path("outer"));
  replace(path("outer"), "new");
  EXPECT_TRUE(fs::is_symlink(path("outer")));
  EXPECT_TRUE(fs::is_symlink(path("inner")));
  EXPECT_EQ(content(path("folder/target")), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(path("folder")), {}), 1);
}

TEST_F(ReplacedFiles, BehindADanglingLinkAreMade) {
  fs::create_symlink("target", path("link"));
  replace(path("link"), "new");
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(content(path("target")), "new");
}

TEST_F(ReplacedFiles, AreNoFoldersAndNoSockets) {
  EXPECT_EQ(failure_of(folder_), folder_.string() + ": cannot write: Is a directory");
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = path("socket");
  ASSERT_LT(name.size(), sizeof(address.sun_path));
  name.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_EQ(failure_of(name),
            name + ": expected a regular file, a pipe or a character device, found another kind");
  ::close(socket);
  EXPECT_TRUE(fs::is_socket(name));
}

TEST_F(ReplacedFiles, InAFolderThatIsMissingCannotBeWritten) {
  EXPECT_EQ(failure_of(path("no/such")),
            path("no/such") + ": cannot write: No such file or directory");
}

TEST_F(ReplacedFiles, ThatArePipesAreWrittenTo) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  std::string found;
  std::thread reader([&] { found = content(path("pipe")); });
  replace(path("pipe"), "through");
  reader.join();
  EXPECT_EQ(found, "through");
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
}

TEST_F(ReplacedFiles, SayThatADeviceIsFull) {
  if (!fs::is_character_file("/dev/full")) GTEST_SKIP() << "needs /dev/full";
  EXPECT_EQ(failure_of("/dev/full"), "/dev/full: cannot write: No space left on device");
}

TEST_F(ReplacedFiles, ThatAreUnfinishedCanBeRemoved) {
  ReplacedFile file(path("a"));
  ReplacedFile other(path("b"));
  EXPECT_EQ(num_files(), 2);
  remove_unfinished_files();
  EXPECT_EQ(num_files(), 0);
}

// A link that lies in a folder that others write to is not written through.
TEST_F(ReplacedFiles, DoNotFollowLinksInAFolderOfOthers) {
  put(path("other"), "another user's");
  const std::size_t thread = std::hash<std::thread::id>{}(std::this_thread::get_id());
  for (const std::string& name :
       {fmt::format("a.{}.{:x}.tmp", ::getpid(), thread), std::string("a.tmp")}) {
    fs::create_symlink(path("other"), path(name));
  }
  replace(path("a"), "new");
  EXPECT_EQ(content(path("a")), "new");
  EXPECT_EQ(content(path("other")), "another user's");
}

TEST_F(ReplacedFiles, HaveAnotherTemporaryNameEachTime) {
  const auto name_of_temporary = [&] {
    ReplacedFile file(path("a"));
    return fs::directory_iterator(folder_)->path().filename().string();
  };
  const std::string first = name_of_temporary();
  EXPECT_NE(first, name_of_temporary());
  EXPECT_EQ(first.size(), std::string("a.0123456789abcdef.tmp").size());
}

// The new bytes of a private file are private from the first one on.
TEST_F(ReplacedFiles, AreNoMoreOpenThanTheOldOnesWhileTheyAreWritten) {
  const mode_t before = ::umask(0);
  put(path("a"), "old");
  ASSERT_EQ(::chmod(path("a").c_str(), 0600), 0);
  ReplacedFile file(path("a"));
  file.write("new");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    struct stat status {};
    ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600U) << entry.path();
  }
  ::umask(before);
}

TEST(NewFiles, HaveRandomNamesOrSayWhyTheyAreMissing) {
  const std::string folder = ::testing::TempDir();
  const NewFile missing = make_new_file(folder + "no such folder/a", "", kReadWriteForAll);
  EXPECT_EQ(missing.descriptor, -1);
  EXPECT_EQ(missing.error, ENOENT);
  EXPECT_EQ(missing.path, "");
  const NewFile made = make_new_file(folder + "contextile_new_", ".txt", kReadWriteForOwner);
  ASSERT_GE(made.descriptor, 0);
  const std::string text(300'000, 'x');
  EXPECT_EQ(write_and_close(made, text), 0);
  EXPECT_EQ(content(made.path), text);
  const NewFile other = make_new_file(folder + "contextile_new_", ".txt", kReadWriteForOwner);
  EXPECT_NE(other.path, made.path);
  EXPECT_EQ(write_and_close(other, ""), 0);
  fs::remove(made.path);
  fs::remove(other.path);
}

}  // namespace
}  // namespace contextile
