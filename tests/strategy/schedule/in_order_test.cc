#include "strategy/schedule/in_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace contextile {
namespace {

// Two nodes of two devices; blocks of 10 tokens, block b owned by owners[b].
struct Example {
  Direction direction = Direction::kForward;
  Blocking blocks;
  std::vector<Rank> owners{Rank{0}, Rank{0}, Rank{1}, Rank{2}};
  std::vector<PlacedTile> tiles;
  std::vector<UnitRoute> routes;
  std::vector<double> tile_us;

  explicit Example(Direction the_direction = Direction::kForward) : direction(the_direction) {
    for (std::int64_t b = 0; b < 4; ++b) blocks.add({10 * b, 10 * b + 10});
  }
  void tile(std::int32_t q, std::int32_t kv, std::int32_t device, double us) {
    tiles.push_back({BlockId{q}, BlockId{kv}, GroupId{0}, Rank{device}, 0, 100});
    tile_us.push_back(us);
  }
  void route(Kind kind, std::int32_t block, std::int32_t device, std::int32_t via) {
    routes.push_back({kind, BlockId{block}, GroupId{0}, Rank{device}, Rank{via}});
  }
  [[nodiscard]] ArrangedDirection schedule(InOrderOptions options) const {
    AttentionShape shape;
    shape.q_heads = shape.kv_heads = 1;
    shape.head_dim = shape.value_dim = 16;
    return schedule_in_order({.blocks = &blocks,
                              .owners = owners,
                              .head_groups = 1,
                              .num_devices = 4,
                              .devices_per_node = 2,
                              .direction = direction,
                              .shape = shape,
                              .tiles = tiles,
                              .routes = routes},
                             tile_us, options);
  }
};

std::int32_t stage_of_tile(const ArrangedDirection& out, std::int32_t q, std::int32_t kv) {
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

TEST(InOrder, ForwardRunsLocalRowsFirstAndThenThoseThatReceiveLeast) {
  Example example;
  example.tile(0, 0, 0, 10);  // local
  example.tile(1, 1, 0, 5);   // waits for two blocks, all tiles of the row together
  example.tile(1, 2, 0, 5);
  example.tile(1, 3, 0, 5);
  example.route(Kind::kKv, 2, 0, 1);
  example.route(Kind::kKv, 3, 0, 2);
  const ArrangedDirection out = example.schedule({.stages = 2});
  EXPECT_EQ(stage_of_tile(out, 0, 0), 0);
  const std::int32_t row = stage_of_tile(out, 1, 1);
  EXPECT_GE(row, 1);
  EXPECT_EQ(stage_of_tile(out, 1, 2), row);
  EXPECT_EQ(stage_of_tile(out, 1, 3), row);
  const Transfer keys = transfer_of(out, Kind::kKv, 2, 0);
  EXPECT_EQ(keys.launch_stage, row - 1);
  EXPECT_EQ(keys.need_stage, row);

  Example two;  // rows 0 and 1 on device 0: the second receives less, so it goes first
  two.tile(0, 2, 0, 10);
  two.tile(0, 3, 0, 10);
  two.tile(1, 2, 0, 20);
  two.route(Kind::kKv, 2, 0, 1);
  two.route(Kind::kKv, 3, 0, 2);
  const ArrangedDirection rows = two.schedule({.stages = 2});
  EXPECT_EQ(stage_of_tile(rows, 1, 2), 1);
  EXPECT_EQ(stage_of_tile(rows, 0, 2), 2);
  EXPECT_EQ(transfer_of(rows, Kind::kKv, 2, 0).need_stage, 1);
  EXPECT_EQ(transfer_of(rows, Kind::kKv, 3, 0).need_stage, 2);
}

TEST(InOrder, ARelayHasWhatItPassesOn) {
  Example example;
  example.tile(3, 0, 2, 10);
  example.tile(2, 0, 3, 10);
  example.owners = {Rank{0}, Rank{0}, Rank{3}, Rank{2}};
  example.route(Kind::kKv, 0, 2, 0);
  example.route(Kind::kKv, 0, 3, 2);
  for (const std::int32_t ahead : {1, 2, 4}) {
    const ArrangedDirection out = example.schedule({.stages = 1, .ahead = ahead});
    const Transfer first = transfer_of(out, Kind::kKv, 0, 2);
    const Transfer second = transfer_of(out, Kind::kKv, 0, 3);
    EXPECT_LT(first.launch_stage, first.need_stage);
    EXPECT_LE(first.need_stage, second.launch_stage);
    EXPECT_LT(second.launch_stage, second.need_stage);
    EXPECT_EQ(second.need_stage, stage_of_tile(out, 2, 0));
    EXPECT_LE(first.need_stage, stage_of_tile(out, 3, 0));
  }
}

TEST(InOrder, BackwardBeginsWithColumnsWhoseGradientsTravelFurthest) {
  Example example(Direction::kBackward);
  example.tile(0, 0, 0, 10);  // stays
  example.tile(0, 2, 0, 10);  // to the other device of the node
  example.tile(0, 3, 0, 10);  // to the other node; keys are there already
  example.route(Kind::kDkv, 2, 0, 1);
  example.route(Kind::kDkv, 3, 0, 2);
  const ArrangedDirection out = example.schedule({.stages = 2});
  EXPECT_EQ(stage_of_tile(out, 0, 3), 0);
  EXPECT_EQ(stage_of_tile(out, 0, 2), 1);
  EXPECT_EQ(stage_of_tile(out, 0, 0), 2);
  const auto gradient = std::ranges::find_if(out.transfers, [](const Transfer& transfer) {
    return transfer.kind == Kind::kDkv && transfer.block.value == 3;
  });
  ASSERT_NE(gradient, out.transfers.end());
  EXPECT_EQ(gradient->src.value, 0);
  EXPECT_EQ(gradient->dst.value, 2);
  EXPECT_EQ(gradient->launch_stage, 1);
  EXPECT_GT(gradient->need_stage, 2);  // no device waits for it
}

TEST(InOrder, AColumnWaitsForItsInputs) {
  Example example(Direction::kBackward);
  example.tile(2, 3, 0, 10);
  for (const Kind kind : {Kind::kQ, Kind::kDo, Kind::kDq}) example.route(kind, 2, 0, 1);
  example.route(Kind::kDkv, 3, 0, 2);
  const ArrangedDirection out = example.schedule({.stages = 1});
  EXPECT_EQ(stage_of_tile(out, 2, 3), 1);
  EXPECT_EQ(transfer_of(out, Kind::kDo, 2, 0).launch_stage, 0);
}

TEST(InOrder, RefusesWhatItCannotSchedule) {
  Example example;
  example.tile(2, 0, 1, 10);
  EXPECT_THROW((void)example.schedule({.stages = 0}), InvalidArgument);
  EXPECT_THROW((void)example.schedule({.stages = 2, .ahead = 0}), InvalidArgument);
  example.tile_us.pop_back();
  EXPECT_THROW((void)example.schedule({.stages = 2}), InvalidArgument);
}

}  // namespace
}  // namespace contextile
