#include "strategy/schedule/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace contextile {
namespace {

// Three devices on one node; blocks of 1000 tokens, block b owned by owners[b]. A unit of keys or
// queries of a block occupies a port for 10 us.
struct Example {
  Blocking blocks;
  std::vector<Rank> owners{Rank{0}, Rank{0}, Rank{1}, Rank{2}};
  std::vector<PlacedTile> tiles;
  std::vector<UnitRoute> routes;
  std::vector<double> tile_us;
  Cluster cluster;

  Example() {
    for (std::int64_t b = 0; b < 4; ++b) blocks.add({1000 * b, 1000 * b + 1000});
    cluster.nodes = 1;
    cluster.devices_per_node = 3;
    cluster.nics_per_node = 1;
    cluster.intra_gbytes_per_s = 6.4;  // 64 bytes per token of K and V
  }
  void tile(std::int32_t q, std::int32_t kv, std::int32_t device, double us) {
    tiles.push_back({BlockId{q}, BlockId{kv}, GroupId{0}, Rank{device}, 0, 100});
    tile_us.push_back(us);
  }
  void route(Kind kind, std::int32_t block, std::int32_t device, std::int32_t via) {
    routes.push_back({kind, BlockId{block}, GroupId{0}, Rank{device}, Rank{via}});
  }
  [[nodiscard]] ArrangedDirection schedule(TimelineOptions options) const {
    AttentionShape shape;
    shape.q_heads = shape.kv_heads = 1;
    shape.head_dim = shape.value_dim = 16;
    return schedule_timeline({.blocks = &blocks,
                              .owners = owners,
                              .head_groups = 1,
                              .num_devices = 3,
                              .devices_per_node = 3,
                              .direction = Direction::kForward,
                              .shape = shape,
                              .tiles = tiles,
                              .routes = routes},
                             tile_us, cluster, options);
  }
};

std::int32_t stage_of(const ArrangedDirection& out, std::int32_t q, std::int32_t kv) {
  const auto it = std::ranges::find_if(out.tiles, [&](const PlacedTile& tile) {
    return tile.q_block.value == q && tile.kv_block.value == kv;
  });
  return it == out.tiles.end() ? -1 : it->stage;
}

Transfer transfer_of(const ArrangedDirection& out, Kind kind, std::int32_t block,
                     std::int32_t dst) {
  const auto it = std::ranges::find_if(out.transfers, [&](const Transfer& transfer) {
    return transfer.kind == kind && transfer.block.value == block && transfer.dst.value == dst;
  });
  EXPECT_NE(it, out.transfers.end());
  return it == out.transfers.end() ? Transfer{} : *it;
}

TEST(Timeline, LocalTilesHideWhatArrives) {
  Example example;
  example.tile(2, 2, 1, 10);
  example.tile(2, 0, 1, 10);
  example.route(Kind::kKv, 0, 1, 0);
  const ArrangedDirection out = example.schedule({.slots = 2});
  EXPECT_EQ(stage_of(out, 2, 2), 0);
  EXPECT_EQ(stage_of(out, 2, 0), 1);
  ASSERT_EQ(out.transfers.size(), 1U);
  EXPECT_EQ(out.transfers[0].launch_stage, 0);
  EXPECT_EQ(out.transfers[0].need_stage, 1);
}

// One port sends to two devices, one unit per slot. The device with work of its own can wait.
TEST(Timeline, DevicesThatWouldStarveAreServedFirst) {
  Example example;
  example.tile(2, 2, 1, 30);  // device 1 has 30 us of its own
  example.tile(2, 0, 1, 10);
  example.route(Kind::kKv, 0, 1, 0);
  example.tile(3, 1, 2, 40);  // device 2 has no such work
  example.route(Kind::kKv, 1, 2, 0);
  const ArrangedDirection out = example.schedule({.slots = 4});  // slots of 10 us
  EXPECT_EQ(transfer_of(out, Kind::kKv, 1, 2).launch_stage, 0);
  EXPECT_EQ(stage_of(out, 3, 1), 1);
  EXPECT_EQ(transfer_of(out, Kind::kKv, 0, 1).launch_stage, 1);
  const ArrangedDirection early = example.schedule({.slots = 4, .ahead = 2});
  EXPECT_EQ(transfer_of(early, Kind::kKv, 0, 1).launch_stage, 0);
}

TEST(Timeline, TilesWhoseResultsTravelRunBeforeLocalOnes) {
  Example example;
  example.tile(2, 2, 1, 5);
  example.tile(0, 2, 1, 10);  // queries come, the result goes back
  example.route(Kind::kQ, 0, 1, 0);
  example.route(Kind::kO, 0, 1, 0);
  example.tile(2, 1, 1, 10);
  example.route(Kind::kKv, 1, 1, 0);
  const ArrangedDirection out = example.schedule({.slots = 4});
  EXPECT_LT(stage_of(out, 0, 2), stage_of(out, 2, 1));
  const Transfer result = transfer_of(out, Kind::kO, 0, 0);
  EXPECT_GT(result.launch_stage, stage_of(out, 0, 2));
  EXPECT_GT(result.need_stage, result.launch_stage);
}

TEST(Timeline, RelaysPassOnWhatTheyHave) {
  Example example;
  example.tile(3, 0, 2, 40);
  example.route(Kind::kKv, 0, 1, 0);
  example.route(Kind::kKv, 0, 2, 1);  // through device 1, which has no tile of it
  example.route(Kind::kQ, 1, 1, 0);   // no tile needs it: does not move
  const ArrangedDirection out = example.schedule({.slots = 4});
  ASSERT_EQ(out.transfers.size(), 2U);
  const Transfer first = transfer_of(out, Kind::kKv, 0, 1);
  const Transfer second = transfer_of(out, Kind::kKv, 0, 2);
  EXPECT_LE(first.need_stage, second.launch_stage);
  EXPECT_EQ(second.src, Rank{1});
  EXPECT_LE(second.need_stage, stage_of(out, 3, 0));
}

TEST(Timeline, SlotsWithNothingToWaitForAreOneCall) {
  Example example;
  for (std::int32_t kv = 0; kv < 2; ++kv) {
    for (std::int32_t q = 0; q < 2; ++q) example.tile(q, kv, 0, 10);
  }
  for (const PlacedTile& tile : example.schedule({.slots = 8}).tiles) EXPECT_EQ(tile.stage, 0);
}

TEST(Timeline, RefusesWhatItCannotSchedule) {
  Example example;
  example.tile(2, 0, 1, 10);
  EXPECT_THROW((void)example.schedule({.slots = 0}), InvalidArgument);
  EXPECT_THROW((void)example.schedule({.slots = 2, .ahead = 0}), InvalidArgument);
  example.route(Kind::kKv, 0, 1, 0);
  example.route(Kind::kKv, 0, 1, 0);
  EXPECT_THROW((void)example.schedule({.slots = 2}), InvalidArgument);
  example.routes.pop_back();
  example.tile_us.pop_back();
  EXPECT_THROW((void)example.schedule({.slots = 2}), InvalidArgument);
}

}  // namespace
}  // namespace contextile
