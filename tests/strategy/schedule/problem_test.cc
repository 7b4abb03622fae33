#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "strategy/schedule/placed_tiles.h"

namespace contextile {
namespace {

// Three blocks of ten tokens on two nodes of two devices, block b owned by device b, two head
// groups.
struct ProblemExample {
  Workload workload;
  Cluster cluster;
  Blocking blocks;
  std::vector<Rank> owners;
  std::vector<PlacedTile> tiles;

  ProblemExample() {
    cluster.nodes = 2;
    cluster.devices_per_node = 2;
    for (std::int32_t b = 0; b < 3; ++b) {
      blocks.add(Range{b * 10, (b + 1) * 10});
      owners.emplace_back(b);
    }
  }
  void tile(std::int32_t q, std::int32_t kv, std::int32_t group, std::int32_t device) {
    tiles.push_back({BlockId{q}, BlockId{kv}, GroupId{group}, Rank{device}, 0, 100});
  }
  [[nodiscard]] ScheduleProblem problem(Direction direction, ForwardInputs inputs = {}) const {
    return schedule_problem(workload, cluster,
                            {.blocks = blocks,
                             .owners = owners,
                             .tiles = tiles,
                             .head_groups = 2,
                             .forward_inputs = inputs},
                            direction);
  }
};

// Returns routes as text. "kv 0.1>3" is the unit of kv of block 0 and group 1 to device 3. All go
// by their owners.
std::string routes_of(const ScheduleProblem& problem) {
  std::string text;
  for (const UnitRoute& route : problem.routes) {
    EXPECT_EQ(route.via, problem.owners[route.block.index()]);
    text += std::string(to_string(route.kind)) + " " + std::to_string(route.block.value) + "." +
            std::to_string(route.group.value) + ">" + std::to_string(route.device.value) + " ";
  }
  return text;
}

TEST(ScheduleProblem, SaysWhatItWasMadeOf) {
  ProblemExample example;
  example.tile(1, 0, 1, 3);
  example.workload.shape.q_heads = 6;
  const ScheduleProblem problem = example.problem(Direction::kBackward);
  EXPECT_EQ(problem.blocks, &example.blocks);
  EXPECT_EQ(problem.owners.data(), example.owners.data());
  EXPECT_EQ(problem.tiles.data(), example.tiles.data());
  EXPECT_EQ(problem.head_groups, 2);
  EXPECT_EQ(problem.num_devices, 4);
  EXPECT_EQ(problem.devices_per_node, 2);
  EXPECT_EQ(problem.direction, Direction::kBackward);
  EXPECT_EQ(problem.shape.q_heads, 6);
}

TEST(ScheduleProblem, HasOneRouteForEveryUnitOnAnotherDeviceThanItsOwner) {
  ProblemExample example;
  example.tile(1, 1, 0, 1);  // nothing moves
  example.tile(1, 0, 0, 3);
  example.tile(1, 0, 1, 3);
  example.tile(2, 0, 0, 3);  // the keys are there already
  example.tile(1, 2, 0, 0);
  EXPECT_EQ(routes_of(example.problem(Direction::kForward)),
            "q 1.0>0 q 1.0>3 q 1.1>3 q 2.0>3 kv 0.0>3 kv 0.1>3 kv 2.0>0 "
            "o 1.0>0 o 1.0>3 o 1.1>3 o 2.0>3 ");
}

TEST(ScheduleProblem, BackwardFetchesWhatForwardDidNotRetain) {
  ProblemExample example;
  example.tile(1, 0, 0, 0);
  EXPECT_EQ(routes_of(example.problem(Direction::kBackward)), "q 1.0>0 do 1.0>0 dq 1.0>0 ");
  EXPECT_EQ(routes_of(example.problem(Direction::kBackward, ForwardInputs::kRetained)),
            "do 1.0>0 dq 1.0>0 ");
  EXPECT_EQ(routes_of(example.problem(Direction::kForward, ForwardInputs::kRetained)),
            "q 1.0>0 o 1.0>0 ");
}

}  // namespace
}  // namespace contextile
