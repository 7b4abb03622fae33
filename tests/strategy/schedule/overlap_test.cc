#include "strategy/schedule/overlap.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

namespace contextile {
namespace {

// Two devices on one node: device 0 owns blocks 0 and 1, device 1 block 2; blocks of 10 tokens.
struct OverlapExample {
  Blocking blocks;
  std::vector<Rank> owners{Rank{0}, Rank{0}, Rank{1}};
  std::vector<PlacedTile> tiles;
  std::vector<UnitRoute> routes;
  std::vector<double> tile_us;

  OverlapExample() {
    for (std::int64_t b = 0; b < 3; ++b) blocks.add({10 * b, 10 * b + 10});
  }
  void tile(std::int32_t q, std::int32_t kv, std::int32_t device, double us) {
    tiles.push_back({BlockId{q}, BlockId{kv}, GroupId{0}, Rank{device}, 0, 100});
    tile_us.push_back(us);
  }
  [[nodiscard]] ArrangedDirection schedule(OverlapOptions options) const {
    AttentionShape shape;
    shape.q_heads = shape.kv_heads = 1;
    shape.head_dim = shape.value_dim = 16;
    return schedule_overlapped(
        {.blocks = &blocks,
         .owners = owners,
         .head_groups = 1,
         .num_devices = 2,
         .devices_per_node = 2,
         .direction = Direction::kForward,
         .shape = shape,
         .tiles = tiles,
         .routes = routes},
        {.tile_us = tile_us, .intra_us_per_byte = 1e-3, .inter_us_per_byte = 1e-2}, options);
  }
};

std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> stages(const ArrangedDirection& out) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> result;
  for (const PlacedTile& tile : out.tiles) {
    result[{tile.q_block.value, tile.kv_block.value}] = tile.stage;
  }
  return result;
}

TEST(Overlap, LocalTilesHideWhatArrives) {
  OverlapExample example;
  example.tile(2, 2, 1, 10);
  example.tile(2, 0, 1, 10);
  example.routes.push_back({Kind::kKv, BlockId{0}, GroupId{0}, Rank{1}, Rank{0}});
  const ArrangedDirection out = example.schedule({.stages = 2});
  const auto stage = stages(out);
  EXPECT_EQ(stage.at({2, 2}), 0);
  EXPECT_EQ(stage.at({2, 0}), 1);
  ASSERT_EQ(out.transfers.size(), 1U);
  EXPECT_EQ(out.transfers[0].launch_stage, 0);
  EXPECT_EQ(out.transfers[0].need_stage, 1);
}

TEST(Overlap, TilesWhoseResultsTravelRunBeforeLocalOnes) {
  OverlapExample example;
  example.tile(2, 2, 1, 10);  // the result stays
  example.tile(0, 2, 1, 10);  // queries come, the result goes back
  example.routes.push_back({Kind::kQ, BlockId{0}, GroupId{0}, Rank{1}, Rank{0}});
  example.routes.push_back({Kind::kO, BlockId{0}, GroupId{0}, Rank{1}, Rank{0}});
  example.tile(2, 1, 1, 10);
  example.routes.push_back({Kind::kKv, BlockId{1}, GroupId{0}, Rank{1}, Rank{0}});
  const ArrangedDirection out = example.schedule({.stages = 3});
  const auto stage = stages(out);
  EXPECT_EQ(stage.at({2, 2}), 0);  // no other tile has its inputs
  EXPECT_LT(stage.at({0, 2}), stage.at({2, 1}));
  for (const Transfer& transfer : out.transfers) {
    if (transfer.kind == Kind::kO) {
      EXPECT_EQ(transfer.launch_stage, stage.at({0, 2}) + 1);
    }
  }
}

TEST(Overlap, TransfersMayStartStagesAhead) {
  OverlapExample example;
  for (std::int32_t kv = 0; kv < 3; ++kv) example.tile(2, kv, 1, 10);
  example.routes.push_back({Kind::kKv, BlockId{0}, GroupId{0}, Rank{1}, Rank{0}});
  example.routes.push_back({Kind::kKv, BlockId{1}, GroupId{0}, Rank{1}, Rank{0}});
  for (const std::int32_t ahead : {1, 2, 5}) {
    for (const Transfer& transfer : example.schedule({.stages = 4, .ahead = ahead}).transfers) {
      EXPECT_EQ(transfer.launch_stage, std::max(0, transfer.need_stage - ahead));
    }
  }
}

TEST(Overlap, RefusesWhatItCannotSchedule) {
  OverlapExample example;
  example.tile(2, 0, 1, 10);
  EXPECT_THROW((void)example.schedule({.stages = 0}), InvalidArgument);
  EXPECT_THROW((void)example.schedule({.stages = 2, .ahead = 0}), InvalidArgument);
  example.tile_us.pop_back();
  EXPECT_THROW((void)example.schedule({.stages = 2}), InvalidArgument);
}

}  // namespace
}  // namespace contextile
