#include "strategy/schedule/divisions.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

namespace contextile {
namespace {

// Four blocks of ten tokens on two nodes of two devices, block b owned by device b.
struct Fixture {
  Blocking blocks;
  std::vector<Rank> owners;
  std::vector<PlacedTile> tiles;
  std::vector<UnitRoute> routes;
  AttentionShape shape;

  Fixture() {
    for (std::int32_t b = 0; b < 4; ++b) {
      blocks.add(Range{b * 10, (b + 1) * 10});
      owners.emplace_back(b);
    }
  }
  void tile(std::int32_t q, std::int32_t kv, std::int32_t device, std::int64_t pairs = 100) {
    tiles.push_back({BlockId{q}, BlockId{kv}, GroupId{0}, Rank{device}, 0, pairs});
  }
  void route(Kind kind, std::int32_t block, std::int32_t device, std::int32_t via) {
    routes.push_back({kind, BlockId{block}, GroupId{0}, Rank{device}, Rank{via}});
  }
  [[nodiscard]] ArrangedDirection schedule(DivisionOptions options = {}) const {
    return schedule_divisions({.blocks = &blocks,
                               .owners = owners,
                               .head_groups = 1,
                               .num_devices = 4,
                               .direction = Direction::kForward,
                               .shape = shape,
                               .tiles = tiles,
                               .routes = routes},
                              options);
  }
};

std::int32_t stage_of(const ArrangedDirection& arranged, std::int32_t q, std::int32_t kv) {
  for (const PlacedTile& tile : arranged.tiles) {
    if (tile.q_block.value == q && tile.kv_block.value == kv) return tile.stage;
  }
  return -1;
}

const Transfer* find(const ArrangedDirection& arranged, Kind kind, std::int32_t src,
                     std::int32_t dst) {
  for (const Transfer& t : arranged.transfers) {
    if (t.kind == kind && t.src.value == src && t.dst.value == dst) return &t;
  }
  return nullptr;
}

TEST(Divisions, LocalTilesComeFirstAndRemoteOnesAfter) {
  Fixture f;
  f.tile(1, 1, 1);
  f.tile(1, 0, 1);
  f.route(Kind::kKv, 0, 1, 0);
  const ArrangedDirection arranged = f.schedule({.share = PairShare::kReached});
  EXPECT_EQ(stage_of(arranged, 1, 1), 0);
  EXPECT_EQ(stage_of(arranged, 1, 0), 1);
  const Transfer* moved = find(arranged, Kind::kKv, 0, 1);
  ASSERT_NE(moved, nullptr);
  EXPECT_EQ(moved->launch_stage, 0);
  EXPECT_EQ(moved->need_stage, 1);
}

TEST(Divisions, APairMovesItsShareADivision) {
  Fixture f;
  f.blocks = {};
  f.owners.clear();
  for (std::int32_t b = 0; b < 8;
       ++b) {  // eight blocks on device 0, one tile with each on device 1
    f.blocks.add(Range{b * 10, (b + 1) * 10});
    f.owners.emplace_back(0);
  }
  f.blocks.add(Range{80, 90});
  f.owners.emplace_back(1);
  for (std::int32_t b = 0; b < 8; ++b) {
    f.tile(8, b, 1);
    f.route(Kind::kKv, b, 1, 0);
  }
  const ArrangedDirection arranged = f.schedule({.divisions = 4});
  std::map<std::int32_t, int> moved;
  for (const Transfer& t : arranged.transfers) ++moved[t.need_stage];
  // The last division moves the rest.
  EXPECT_EQ(moved, (std::map<std::int32_t, int>{{1, 2}, {2, 2}, {3, 4}}));
}

TEST(Divisions, ATileThatWouldExceedAShareWaits) {
  Fixture f;
  f.blocks = {};
  f.owners.clear();
  // Device 0 sends three blocks, so that a share of a quarter is less than one of them.
  for (std::int32_t b = 0; b < 3; ++b) {
    f.blocks.add(Range{b * 10, (b + 1) * 10});
    f.owners.emplace_back(0);
  }
  f.blocks.add(Range{30, 40});
  f.owners.emplace_back(1);
  for (std::int32_t b = 0; b < 3; ++b) {
    f.tile(3, b, 1);
    f.route(Kind::kKv, b, 1, 0);
  }
  const auto moved = [](const ArrangedDirection& arranged) {
    std::map<std::int32_t, int> count;
    for (const Transfer& t : arranged.transfers) ++count[t.need_stage];
    return count;
  };
  EXPECT_EQ(moved(f.schedule()), (std::map<std::int32_t, int>{{3, 3}}));
  EXPECT_EQ(moved(f.schedule({.share = PairShare::kReached})),
            (std::map<std::int32_t, int>{{1, 1}, {2, 1}, {3, 1}}));
}

TEST(Divisions, ARelayHasTheUnitADivisionEarlier) {
  Fixture f;
  f.tile(2, 0, 2);
  f.tile(3, 0, 3);
  f.route(Kind::kKv, 0, 2, 0);
  f.route(Kind::kKv, 0, 3, 2);
  const ArrangedDirection arranged = f.schedule();
  const Transfer* across = find(arranged, Kind::kKv, 0, 2);
  const Transfer* inside = find(arranged, Kind::kKv, 2, 3);
  ASSERT_TRUE(across != nullptr && inside != nullptr);
  EXPECT_LE(across->need_stage, inside->launch_stage);
  EXPECT_GE(stage_of(arranged, 3, 0), 2);
  EXPECT_EQ(find(arranged, Kind::kKv, 0, 3), nullptr);
}

TEST(Divisions, ResultsLeaveAfterAllAttentionThroughTheirRelay) {
  Fixture f;
  f.tile(0, 2, 2);
  f.tile(0, 3, 3);
  f.route(Kind::kQ, 0, 2, 0);
  f.route(Kind::kQ, 0, 3, 0);
  f.route(Kind::kO, 0, 2, 0);
  f.route(Kind::kO, 0, 3, 2);
  const ArrangedDirection arranged = f.schedule();
  std::int32_t last = 0;
  for (const PlacedTile& tile : arranged.tiles) last = std::max(last, tile.stage);
  const Transfer* inside = find(arranged, Kind::kO, 3, 2);
  const Transfer* home = find(arranged, Kind::kO, 2, 0);
  ASSERT_TRUE(inside != nullptr && home != nullptr);
  EXPECT_GT(inside->launch_stage, last);
  EXPECT_GE(home->launch_stage, inside->need_stage);
}

TEST(Divisions, EarlyResultsLeaveAfterTheirLastTile) {
  Fixture f;
  f.tile(0, 2, 2);
  f.tile(2, 1, 2, 1);
  f.route(Kind::kQ, 0, 2, 0);
  f.route(Kind::kO, 0, 2, 0);
  f.route(Kind::kKv, 1, 2, 1);
  const ArrangedDirection after = f.schedule({.share = PairShare::kReached});
  const ArrangedDirection early =
      f.schedule({.share = PairShare::kReached, .results = ResultTiming::kEarly});
  EXPECT_EQ(find(early, Kind::kO, 2, 0)->launch_stage, stage_of(early, 0, 2) + 1);
  EXPECT_GT(find(after, Kind::kO, 2, 0)->launch_stage, find(early, Kind::kO, 2, 0)->launch_stage);
}

TEST(Divisions, RefuseWhatHasNoRoute) {
  Fixture f;
  f.tile(1, 0, 1);
  EXPECT_THROW(static_cast<void>(f.schedule()), InvalidArgument);
  f.route(Kind::kKv, 0, 1, 0);
  EXPECT_THROW(static_cast<void>(f.schedule({.divisions = 1})), InvalidArgument);
  f.route(Kind::kKv, 0, 1, 0);
  EXPECT_THROW(static_cast<void>(f.schedule()), InvalidArgument);
}

}  // namespace
}  // namespace contextile
