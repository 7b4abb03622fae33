// Children that inherit a group by fork.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <thread>

#include "contextile/extend/transport.h"
#include "support/free_port.h"
#include "support/in_child.h"

namespace contextile {
namespace {

using Group = std::array<std::unique_ptr<Transport>, 2>;

// Both ranks in this process, each made by a thread of its own.
Group make_group() {
  const std::string rendezvous = "tcp://127.0.0.1:" + std::to_string(free_port());
  Group group;
  const auto join = [&](std::int32_t rank) {
    GlooOptions options;
    options.rank = Rank{rank};
    options.size = 2;
    options.rendezvous = rendezvous;
    group[static_cast<std::size_t>(rank)] = make_gloo_transport(options);
  };
  std::thread other([&] { join(1); });
  join(0);
  other.join();
  return group;
}

// Returns the number of sockets that this process holds.
std::int64_t num_sockets() {
  std::int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:")) ++count;
  }
  return count;
}

void use(Group& group) {
  std::thread other([&] { barrier(*group[1]); });
  barrier(*group[0]);
  other.join();
}

TEST(ForkedGroup, IsDroppedByAChildThatGoesOn) {
  Group group = make_group();
  EXPECT_EQ(ChildProcess([&] {
              for (auto& rank : group) rank.reset();
              return 0;
            }).status(),
            0);
  use(group);
}

TEST(ForkedGroup, SaysThatItBelongsToTheParent) {
  Group group = make_group();
  EXPECT_EQ(ChildProcess([&] {
              group[0]->abort("of a child");  // no peer hears of it
              try {
                barrier(*group[0]);
              } catch (const InvalidArgument& error) {
                return std::string(error.what()).find("forked from it") == std::string::npos ? 2
                                                                                             : 0;
              }
              return 1;
            }).status(),
            0);
  use(group);
}

TEST(ForkedGroup, LeavesTheChildNoSocket) {
  const std::int64_t before = num_sockets();
  Group group = make_group();
  EXPECT_EQ(num_sockets(), before + 2);
  EXPECT_EQ(ChildProcess([&] { return num_sockets() == before ? 0 : 1; }).status(), 0);
  use(group);
}

}  // namespace
}  // namespace contextile
