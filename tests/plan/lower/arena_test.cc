#include "plan/lower/arena.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace contextile {
namespace {

TEST(Arena, ReusesTheLowestPlaceThatFits) {
  Arena arena;
  EXPECT_EQ(arena.allocate(4), 0);
  EXPECT_EQ(arena.allocate(2), 4);
  EXPECT_EQ(arena.allocate(3), 6);
  arena.release(0, 4);
  EXPECT_EQ(arena.allocate(2), 0);
  EXPECT_EQ(arena.allocate(3), 9);  // [2, 4) is too small
  EXPECT_EQ(arena.extent(), 12);
}

TEST(Arena, GrowsTheTopmostHoleInsteadOfLeavingIt) {
  Arena arena;
  EXPECT_EQ(arena.allocate(4), 0);
  EXPECT_EQ(arena.allocate(4), 4);
  arena.release(4, 4);
  EXPECT_EQ(arena.allocate(10), 4);
  EXPECT_EQ(arena.extent(), 14);
}

TEST(Arena, NeverHandsOutOneUnitTwiceAndForgetsNothing) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Arena arena;
    std::map<std::int64_t, std::int64_t> live;
    for (int step = 0; step < 2000; ++step) {
      if (live.empty() || random() % 2 == 0) {
        const std::int64_t size = 1 + static_cast<std::int64_t>(random() % 50);
        const std::int64_t offset = arena.allocate(size);
        const auto next = live.lower_bound(offset);
        if (next != live.end()) {
          ASSERT_LE(offset + size, next->first);
        }
        if (next != live.begin()) {
          ASSERT_LE(std::prev(next)->first + std::prev(next)->second, offset);
        }
        ASSERT_LE(offset + size, arena.extent());
        live.emplace(offset, size);
      } else {
        auto it = live.begin();
        std::advance(it, static_cast<std::ptrdiff_t>(random() % live.size()));
        arena.release(it->first, it->second);
        live.erase(it);
      }
    }
    for (const auto& [offset, size] : live) arena.release(offset, size);
    EXPECT_EQ(arena.allocate(arena.extent()), 0);  // everything came back as one hole
  }
}

}  // namespace
}  // namespace contextile
