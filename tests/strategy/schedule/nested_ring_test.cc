#include "strategy/schedule/nested_ring.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "contextile/base.h"

namespace contextile {
namespace {

NestedRing ring_of(std::int32_t size, std::int32_t inner) {
  return {size, inner, [](std::int32_t position) { return Rank{position}; }};
}

const std::vector<std::pair<std::int32_t, std::int32_t>>& shapes() {  // positions, inner
  static const std::vector<std::pair<std::int32_t, std::int32_t>> kShapes = {
      {1, 1}, {2, 1}, {2, 2}, {3, 3}, {4, 2}, {6, 1}, {6, 2}, {6, 3}, {6, 6}, {8, 4}, {12, 3}};
  return kShapes;
}

using Hop = std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>;
std::vector<Hop> hops_of(const std::vector<Transfer>& transfers, Kind kind) {
  std::vector<Hop> hops;
  for (const Transfer& t : transfers) {
    if (t.kind == kind) hops.emplace_back(t.src.value, t.dst.value, t.launch_stage, t.need_stage);
  }
  return hops;
}

TEST(NestedRing, KeysGoRoundTheirInnerRingWhileTheNextRingGetsThem) {
  // Two rings of three with keys of place 1 in ring 0, computed by hand.
  std::vector<Transfer> transfers;
  ring_of(6, 3).relay_forward(BlockId{0}, GroupId{0}, 1, 10, transfers);
  EXPECT_EQ(hops_of(transfers, Kind::kKv),
            (std::vector<Hop>{
                {1, 2, 10, 11}, {2, 0, 11, 12}, {1, 4, 10, 13}, {4, 5, 13, 14}, {5, 3, 14, 15}}));
}

TEST(NestedRing, BackwardReachesTheOtherRingFirstAndItsOwnPlaceLast) {
  std::vector<Transfer> transfers;
  ring_of(6, 3).relay_backward(
      BlockId{0}, GroupId{0}, 1, 0, [](std::int32_t) { return true; }, transfers);
  // Ring 1 works at stages 2 to 4, ring 0 at 5 to 7.
  EXPECT_EQ(
      hops_of(transfers, Kind::kKv),
      (std::vector<Hop>{{1, 4, 0, 1}, {4, 3, 1, 2}, {3, 5, 2, 3}, {1, 0, 4, 5}, {0, 2, 5, 6}}));
  EXPECT_EQ(
      hops_of(transfers, Kind::kDkv),
      (std::vector<Hop>{{3, 5, 3, 4}, {5, 4, 4, 5}, {4, 1, 5, 8}, {0, 2, 6, 7}, {2, 1, 7, 8}}));
  EXPECT_EQ(ring_of(6, 3).backward_stages(), 8);
}

TEST(NestedRing, EveryPositionMeetsAllKeysOnceAStep) {
  for (const auto& [size, inner] : shapes()) {
    SCOPED_TRACE(fmt::format("{} positions, inner {}", size, inner));
    const NestedRing ring = ring_of(size, inner);
    for (std::int32_t q = 0; q < size; ++q) {
      std::set<std::int32_t> forward;
      std::set<std::int32_t> backward;
      for (std::int32_t k = 0; k < size; ++k) {
        forward.insert(ring.forward_stage(q, k));
        backward.insert(ring.backward_stage(q, k));
      }
      EXPECT_EQ(*forward.begin(), 0);
      EXPECT_EQ(ring.forward_stage(q, q), 0);
      EXPECT_EQ(*forward.rbegin(), ring.forward_stages() - 1);
      EXPECT_EQ(forward.size(), static_cast<std::size_t>(size));
      EXPECT_EQ(ring.backward_stage(q, q), ring.backward_stages() - 1);
      EXPECT_EQ(*backward.rbegin() - *backward.begin(), size - 1);
      EXPECT_EQ(backward.size(), static_cast<std::size_t>(size));
    }
  }
}

// Simulates one block. Keys must be where they are used in time, and gradients of all positions
// that hold a share must end at home.
TEST(NestedRing, KeysArriveInTimeAndGradientsEndAtHome) {
  for (const auto& [size, inner] : shapes()) {
    for (std::int32_t home = 0; home < size; ++home) {
      for (const std::int32_t every : {1, 2, 5}) {  // every n-th position holds a share
        SCOPED_TRACE(
            fmt::format("{} positions, inner {}, home {}, every {}", size, inner, home, every));
        const NestedRing ring = ring_of(size, inner);
        const auto holds = [every](std::int32_t p) { return p % every == 0; };
        std::vector<Transfer> backward;
        ring.relay_backward(BlockId{0}, GroupId{0}, home, 3, holds, backward);
        std::map<std::int32_t, std::int32_t> has_keys{{home, 0}};  // position → first stage
        std::map<std::int32_t, std::set<std::int32_t>> gathered;  // position → shares that it has
        std::map<std::size_t, std::set<std::int32_t>> cargo;
        const std::int32_t end = 3 + ring.backward_stages();
        for (std::int32_t stage = 0; stage <= end; ++stage) {
          for (std::size_t i = 0; i < backward.size(); ++i) {  // arrivals
            const Transfer& t = backward[i];
            if (t.need_stage != stage) continue;
            if (t.kind == Kind::kKv) has_keys.emplace(t.dst.value, stage);
            if (t.kind == Kind::kDkv) gathered[t.dst.value].merge(cargo[i]);
          }
          for (std::size_t i = 0; i < backward.size(); ++i) {  // departures
            const Transfer& t = backward[i];
            if (t.launch_stage != stage) continue;
            if (t.kind == Kind::kKv) {
              ASSERT_TRUE(has_keys.contains(t.src.value));
            } else {
              EXPECT_FALSE(gathered[t.src.value].empty());
              cargo[i] = std::exchange(gathered[t.src.value], {});
            }
          }
          for (std::int32_t p = 0; p < size; ++p) {  // the stage itself
            if (!holds(p) || 3 + ring.backward_stage(p, home) != stage) continue;
            ASSERT_TRUE(has_keys.contains(p));
            gathered[p].insert(p);
          }
        }
        std::set<std::int32_t> expected;
        for (std::int32_t p = 0; p < size; ++p) {
          if (holds(p)) expected.insert(p);
        }
        EXPECT_EQ(gathered[home], expected);
      }
    }
  }
}

TEST(NestedRing, CrossesRingsOnceForEveryOtherRing) {
  for (const auto& [size, inner] : shapes()) {
    std::vector<Transfer> forward;
    std::vector<Transfer> backward;
    ring_of(size, inner).relay_forward(BlockId{0}, GroupId{0}, 0, 0, forward);
    ring_of(size, inner)
        .relay_backward(
            BlockId{0}, GroupId{0}, 0, 0, [](std::int32_t) { return true; }, backward);
    EXPECT_EQ(forward.size(), static_cast<std::size_t>(size - 1));
    EXPECT_EQ(backward.size(), static_cast<std::size_t>(2 * (size - 1)));
    const auto crossing = [inner = inner](const Transfer& t) {
      return t.src.value / inner != t.dst.value / inner;
    };
    EXPECT_EQ(std::count_if(forward.begin(), forward.end(), crossing), size / inner - 1);
    EXPECT_EQ(std::count_if(backward.begin(), backward.end(), crossing), 2 * (size / inner - 1));
  }
}

TEST(NestedRing, RefusesInnerRingsThatDoNotDivide) { EXPECT_THROW(ring_of(6, 4), InvalidArgument); }

}  // namespace
}  // namespace contextile
